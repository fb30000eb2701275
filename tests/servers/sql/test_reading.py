"""What a destination holds as Arrow: values that we did not write mark their row and nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, Sink, SinkTask
from dbt_reverse_etl.sinks.reading import UNREADABLE, from_json, rows_of, rows_of_objects
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.sinks.sql.settings import SoftDeleteOptions, SqliteSettings
from dbt_reverse_etl.testing import deliver, opened
from tests.support.servers.postgres import new_database

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.int32())),
        ("raw", pa.binary()),
    ]
)


def task(**changes: Any) -> SinkTask:
    values: dict[str, Any] = {"sync_id": "s", "sync": "people", "fence": 1, "object": "people", "mode": Mode.MIRROR}
    return SinkTask(**values | {"key": ("id",), "schema": SCHEMA} | changes)


def found(sink: Sink, asked: SinkTask) -> list[dict[str, Any]]:
    tables = sink.read(asked)
    assert tables is not None
    return [row for table in tables for row in table.to_pylist()]


@pytest.mark.guarantee("What is sent", "A value that we did not write is a difference, never an error")
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (pa.int8(), "128"),
        (pa.int64(), "1.5"),
        (pa.bool_(), "2"),
        (pa.float64(), "many"),
        (pa.decimal128(4, 2), "1.234"),
        (pa.decimal128(4, 2), "x"),
        (pa.binary(), "zz"),
        (pa.date32(), "2024-02-30"),
        (pa.timestamp("us"), "infinity"),
        (pa.timestamp("us", "UTC"), "12024-01-01 00:00:00+00"),
        (pa.list_(pa.int64()), '{"a": 1}'),
        (pa.list_(pa.int64()), "[1"),
        (pa.struct([("a", pa.int64())]), "[1]"),
        (pa.map_(pa.string(), pa.int64()), "[1]"),
        (pa.list_(pa.timestamp("us", "UTC")), "[1]"),
        (pa.list_(pa.binary()), '["?"]'),
        (pa.string(), b"\xff"),
        # What Arrow and Python read all the same.
        (pa.int64(), "0x10"),
        (pa.int64(), "05"),
        (pa.decimal128(4, 2), "1_0"),
        (pa.decimal128(4, 2), "01.5"),
        (pa.list_(pa.int64()), "[1.9]"),
        (pa.list_(pa.int64()), "[true]"),
        (pa.list_(pa.bool_()), "[1]"),
        (pa.list_(pa.float64()), '["1.5"]'),
        (pa.list_(pa.float64()), "[true]"),
        (pa.list_(pa.decimal128(4, 2)), "[1.5]"),
        (pa.list_(pa.decimal128(4, 2)), '["1_0.00"]'),
        (pa.list_(pa.date32()), '["20240101"]'),
        (pa.list_(pa.timestamp("us", "UTC")), '["2024-01-01T00:00:00.0000009Z"]'),
        (pa.list_(pa.timestamp("us", "UTC")), '["2024-01-01T00:00:00.000000"]'),
        (pa.list_(pa.string()), '"ab"'),
        (pa.list_(pa.string()), '{"a": 9, "b": 8}'),
        (pa.struct([("a", pa.int64())]), '{"a": 1.7}'),
        (pa.struct([("a", pa.int64())]), '{"a": 1, "secret": true}'),
        (pa.struct([("a", pa.int64())]), "{}"),
        (pa.map_(pa.string(), pa.int64()), '[{"key": "a", "value": 1}]'),
        (pa.map_(pa.int64(), pa.int64()), '[{"key": 1, "value": 2, "more": 3}]'),
        (pa.map_(pa.int64(), pa.int64()), '[{"key": 1}]'),
        pytest.param(pa.list_(pa.int64()), "[" * 100_000, id="deeply nested"),
    ],
    ids=str,
)
def test_a_value_of_another_type_marks_its_row_alone(kind: pa.DataType, wrong: str | bytes) -> None:
    raw = wrong if isinstance(wrong, bytes) else wrong.encode()
    texts = {"id": pa.array(["1", "2", "3"]), "value": pa.array([None, raw, None], pa.binary())}
    table = rows_of(texts, pa.schema([("id", pa.int64()), ("value", kind)]))
    assert table.column(UNREADABLE).to_pylist() == [False, True, False]
    assert table.column("value").null_count == 3
    assert table.column("id").to_pylist() == [1, 2, 3]


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize(
    ("kind", "shown", "value"),
    [
        (pa.date32(), "2024-02-29 00:00:00", date(2024, 2, 29)),
        (pa.date32(), "2024-02-29 00:00:00.000000", date(2024, 2, 29)),
        (pa.int32(), "5.00", 5),
        (pa.int64(), "-9223372036854775808.0", -(2**63)),
        (pa.bool_(), "1.0", True),
        (pa.list_(pa.int64()), "[5.0, 9223372036854775807]", [5, 2**63 - 1]),
    ],
    ids=str,
)
def test_what_a_column_of_a_wider_type_shows_is_the_value_that_was_sent(
    kind: pa.DataType, shown: str, value: Any
) -> None:
    texts = pa.array([shown.encode(), None], pa.binary())
    read = rows_of({"value": texts}, pa.schema([("value", kind)]))
    assert read.to_pylist() == [{"value": value, UNREADABLE: False}, {"value": None, UNREADABLE: False}]
    other = shown.replace("00:00:00", "00:00:01").replace(".0", ".5")
    assert rows_of({"value": pa.array([other.encode()])}, read.schema.remove(1)).column(UNREADABLE).to_pylist() == [
        True
    ]


def test_of_the_objects_of_a_stream_too_only_the_row_with_another_number_is_marked() -> None:
    objects: list[dict[str, Any]] = [{"n": 1}, {"n": 1.9}, {"n": None}, {"n": True}, {"n": 2.0**64}]
    read = rows_of_objects(objects, [False] * len(objects), pa.schema([("n", pa.int64())]), from_json)
    assert read.column("n").to_pylist() == [1, None, None, None, None]
    assert read.column(UNREADABLE).to_pylist() == [False, True, False, True, True]


def test_an_sqlite_table_is_read_whatever_other_programs_wrote(tmp_path: Path) -> None:
    path = tmp_path / "crm.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("create table people (id, text, at, tags, raw, other)")
        connection.execute("insert into people values (1, '', '2024-01-01 00:00:00.5', '[1, null]', x'00ff', 0)")
        connection.execute("insert into people values (2, cast(x'ff' as text), 'soon', 7, 'text', 0)")
    rows = found(SqliteSink(SqliteSettings(path=str(path))), task())
    assert [row.pop(UNREADABLE) for row in rows] == [False, True]
    assert [rows[0]["text"], rows[0]["tags"], rows[0]["raw"]] == ["", [1, None], b"\x00\xff"]
    assert rows[0]["at"].isoformat() == "2024-01-01T00:00:00.500000+00:00"
    assert rows[1] == {"id": 2, "text": None, "at": None, "tags": None, "raw": None}


def test_a_postgres_table_is_read_whatever_other_programs_wrote_without_rows_marked_deleted() -> None:
    database = new_database()
    database.run(
        "create table people (id bigint primary key, text text, at timestamptz, tags int[], raw bytea, gone timestamptz);"
        f"grant all on people to {database.settings()['user']}"
    )
    options = SoftDeleteOptions(soft_delete="gone")
    assert not found(database.sink(), task(options=options)), "an empty table"
    database.run(
        "insert into people (id, text, at, tags, raw) values (1, '', '2024-01-01 00:00:00.5+00', '{1,null}', '\\x00ff');"
        "insert into people (id, text, at) values (2, null, 'infinity'), (3, E'a,\"b\"\\n\\r c', '0044-03-15 BC');"
        "insert into people (id, gone) values (4, now())"
    )
    rows = found(database.sink(), task(options=options))
    assert [row.pop(UNREADABLE) for row in rows] == [False, True, True]
    assert [rows[0]["text"], rows[0]["tags"], rows[0]["raw"]] == ["", [1, None], b"\x00\xff"]
    assert [row["text"] for row in rows[1:]] == [None, 'a,"b"\n\r c']


@pytest.mark.guarantee("What is sent")
def test_settings_of_a_postgres_role_round_no_number_that_is_read_and_a_huge_row_is_an_error_with_a_way_out() -> None:
    database = new_database()
    user = database.settings()["user"]
    database.run(
        f"create table people (id bigint primary key, v double precision, t text); grant all on people to {user};"
        f"alter role {user} set extra_float_digits = -3; insert into people values (1, 0.1::float8 + 0.2, '')"
    )
    schema = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("t", pa.string())])
    assert [row["v"] for row in found(database.sink(), task(schema=schema))] == [0.1 + 0.2]
    database.run("insert into people select n, 0, repeat('x', 17000000) from generate_series(2, 3) n")
    with pytest.raises(DestinationError, match="found a row of more than 8 MiB as text"):
        found(database.sink(), task(schema=schema))


@pytest.mark.guarantee("Postgres")
def test_a_postgres_table_keeps_a_byte_order_mark_and_wide_decimals_and_counts_rows_of_one_null() -> None:
    database = new_database()
    user = database.settings()["user"]
    database.run(
        f"create table people (id numeric(65,30), text text); grant all on people to {user};"
        "insert into people values (200000000.5, U&'\\FEFFAda'), (null, null)"
    )
    rows = found(database.sink(), task(schema=pa.schema([("text", pa.string()), ("id", pa.decimal128(10, 1))])))
    assert [tuple(row.values()) for row in rows] == [("\ufeffAda", Decimal("200000000.5"), False), (None, None, False)]
    texts = found(database.sink(), task(key=("text",), schema=pa.schema([("text", pa.string())])))
    assert [row["text"] for row in texts] == ["\ufeffAda", None]


# Field, its type, the column of the user, a value.
ARRAYS: list[tuple[str, pa.DataType, str, list[Any]]] = [
    ("wholes", pa.int64(), "text[]", [2**53 + 1, None]),
    ("days", pa.date32(), "timestamp[]", [date(2024, 2, 29)]),
    ("words", pa.string(), "jsonb[]", ['{"a": [1]}', "7", None]),
    ("doubles", pa.float64(), "float8[]", [-0.0, 5e-324, 0.1]),
    ("flags", pa.bool_(), "bool[]", [True, None, False]),
    ("moments", pa.timestamp("us", "UTC"), "timestamptz[]", [datetime(2024, 2, 29, 1, 2, 3, 4, timezone.utc)]),
    ("prices", pa.decimal128(9, 2), "numeric[]", [Decimal("-1.10")]),
]


@pytest.mark.guarantee("Postgres")
def test_what_was_delivered_into_arrays_is_read_as_it_was_delivered_whatever_the_type_of_their_elements() -> None:
    database = new_database()
    columns = ", ".join(f"{name} {column}" for name, _, column, _ in ARRAYS)
    database.table(f"create table people (id bigint primary key, {columns})")
    asked = task(schema=pa.schema([("id", pa.int64()), *((name, pa.list_(of)) for name, of, *_ in ARRAYS)]))
    rows: list[dict[str, Any]] = [
        {"id": 1} | {name: value for name, *_, value in ARRAYS},
        {"id": 2} | {name: [] for name, *_ in ARRAYS},
        {"id": 3} | {name: None for name, *_ in ARRAYS},
    ]
    with opened(database.sink(), asked) as sink:
        assert deliver(sink, asked, [("insert", row) for row in rows]) == [Outcome.DELIVERED] * 3
    read = found(database.sink(), asked)
    assert read == [row | {UNREADABLE: False} for row in rows]
    assert str(read[0]["doubles"][0]) == "-0.0"
    database.run("insert into people (id, wholes, doubles) values (4, '{{1},{2}}', null), (5, '{1.9}', '{1}')")
    assert [row["id"] for row in found(database.sink(), asked) if row[UNREADABLE]] == [4, 5]
