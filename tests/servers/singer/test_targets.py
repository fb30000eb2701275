"""Published targets that write to databases, read back from there: what they store is what was delivered."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.singer.settings import SingerOptions, SingerSettings
from dbt_reverse_etl.sinks.singer.sink import SingerSink
from dbt_reverse_etl.testing import PEOPLE, TYPES, Row, deliver, next_run, opened, person
from tests.support.servers.postgres import PASSWORD, ROLE, Database, new_database
from tests.support.servers.singer_targets import POSTGRES, SQLITE, installed
from tests.support.sinks.json_values import as_json

HISTORY: list[list[tuple[str, Row]]] = [
    [("insert", person(number)) for number in range(5)],
    [("update", person(1, "Grace", None)), ("delete", {"id": 2}), ("delete", {"id": 3}), ("insert", person(7))],
    [("insert", person(3, "back again")), ("delete", {"id": 2})],
]
END = [person(0), person(1, "Grace", None), person(3, "back again"), person(4), person(7)]
NUL = pa.string(), [text for text in TYPES["string"][1] if "\0" not in text]


def task_of(schema: pa.Schema = PEOPLE) -> SinkTask:
    options = SingerOptions(deletes="sdc_deleted_at")
    return SinkTask("a1", "people", 1, "people", Mode.MIRROR, ("id",), schema, options=options)


def push(settings: dict[str, Any], *batches: list[tuple[str, Row]], schema: pa.Schema = PEOPLE) -> None:
    """Each batch in a run of its own."""
    task = task_of(schema)
    for number, changes in enumerate(batches):
        with opened(SingerSink(SingerSettings.model_validate(settings)), next_run(task, number + 1)) as sink:
            assert set(deliver(sink, task, changes)) == {Outcome.DELIVERED}


def typed_rows(types: dict[str, tuple[pa.DataType, list[Any]]]) -> tuple[pa.Schema, list[Row]]:
    """A row for each value of a type, and one of NULLs."""
    rows: list[Row] = [{"id": number} for number in range(1 + max(len(values) for _, values in types.values()))]
    for name, (_, values) in types.items():
        for number, value in enumerate(values):
            rows[number][name] = value
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in types.items())])
    return schema, [{name: row.get(name) for name in schema.names} for row in rows]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[dict[str, Any], sqlite3.Connection]]:
    config = {"database": str(tmp_path / "crm"), "disable_collection": True}
    with closing(sqlite3.connect(tmp_path / "crm.db")) as connection:
        connection.row_factory = sqlite3.Row
        yield {"command": installed(SQLITE), "config": config, "log_file": str(tmp_path / "log")}, connection


@pytest.mark.guarantee("Singer")
def test_sqlite_holds_inserts_updates_and_marked_deletes(file: tuple[dict[str, Any], sqlite3.Connection]) -> None:
    settings, connection = file
    push(settings, *HISTORY)
    alive = "SELECT id, name, score FROM people WHERE _sdc_deleted_at IS NULL ORDER BY id"
    assert [dict(row) for row in connection.execute(alive)] == END
    assert [row["id"] for row in connection.execute("SELECT id FROM people WHERE _sdc_deleted_at > '2024'")] == [2]


@pytest.mark.guarantee("Singer")
def test_sqlite_holds_every_plain_type_exactly(file: tuple[dict[str, Any], sqlite3.Connection]) -> None:
    settings, connection = file
    schema, rows = typed_rows({name: entry for name, entry in TYPES.items() if not pa.types.is_nested(entry[0])})
    push(settings, [("insert", row) for row in rows], schema=schema)
    names = ", ".join(schema.names)
    stored = [dict(row) for row in connection.execute(f"SELECT {names} FROM people ORDER BY id")]
    assert stored == [
        {field.name: value if (value := row[field.name]) is None else as_json(field, value) for field in schema}
        for row in rows
    ]


@pytest.fixture
def database() -> Database:
    database = new_database()
    database.run(f"GRANT CREATE, USAGE ON SCHEMA public TO {ROLE}")
    return database


def settings_of(database: Database, tmp_path: Path) -> dict[str, Any]:
    url = f"postgresql+psycopg://{ROLE}:{PASSWORD}@/{database.name}?host={quote(database.socket)}"
    config = {"sqlalchemy_url": url, "default_target_schema": "public"}
    return {"command": installed(POSTGRES), "config": config, "log_file": str(tmp_path / "log")}


@pytest.mark.full
@pytest.mark.guarantee("Singer")
def test_postgres_holds_inserts_updates_and_marked_deletes(database: Database, tmp_path: Path) -> None:
    push(settings_of(database, tmp_path), *HISTORY)
    alive = database.rows("SELECT id, name, score FROM people WHERE _sdc_deleted_at IS NULL ORDER BY id")
    assert [dict(zip(PEOPLE.names, row, strict=True)) for row in alive] == END
    assert database.rows("SELECT id, name FROM people WHERE _sdc_deleted_at > '2024-01-01'") == [(2, None)]


@pytest.mark.full
@pytest.mark.guarantee("Singer")
def test_postgres_holds_every_type_exactly(database: Database, tmp_path: Path) -> None:
    schema, rows = typed_rows(TYPES | {"string": NUL})
    push(settings_of(database, tmp_path), [("insert", row) for row in rows], schema=schema)
    names = ", ".join(f'"{name}"' for name in schema.names)
    stored = [
        dict(zip(schema.names, row, strict=True)) for row in database.rows(f"SELECT {names} FROM people ORDER BY id")
    ]
    for row in stored:  # numeric holds each digit of the shortest text of a float
        row |= {name: None if row[name] is None else float(row[name]) for name in ("float32", "float64")}
    assert stored == [
        {field.name: None if row[field.name] is None else _in_postgres(field, row[field.name]) for field in schema}
        for row in rows
    ]
    assert ("decimal", "numeric") in database.rows(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'people'"
    )


def _in_postgres(field: pa.Field, value: Any) -> Any:
    if pa.types.is_timestamp(field.type) and field.type.tz:
        return value.astimezone(timezone.utc).replace(tzinfo=None)
    as_it_is = (pa.types.is_decimal, pa.types.is_date)
    return value if any(is_type(field.type) for is_type in as_it_is) else as_json(field, value)


@pytest.mark.full
@pytest.mark.guarantee("Singer")
def test_a_row_that_postgres_refuses_leaves_its_batch_unknown_and_is_shown_in_the_log_file_only(
    database: Database, tmp_path: Path
) -> None:
    task = task_of()
    with opened(SingerSink(SingerSettings.model_validate(settings_of(database, tmp_path))), task) as sink:
        database.run("ALTER TABLE people ADD CHECK (name <> 'canary-1732050807')")
        assert (
            deliver(sink, task, [("insert", person(1, "canary-1732050807")), ("insert", person(2))])
            == [Outcome.UNKNOWN] * 2
        )
        assert database.rows("SELECT count(*) FROM people") == [(0,)]
        assert "canary-1732050807" in (tmp_path / "log").read_text()
        assert deliver(sink, task, [("insert", person(2))]) == [Outcome.DELIVERED]
    assert database.rows("SELECT id FROM people") == [(2,)]
