"""The SQL for databases of which no server is at hand, SQL Server and Oracle, as their dialects compile it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mssql, oracle, postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, StatementError
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.elements import ClauseElement

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.sqlalchemy.errors import failure
from dbt_reverse_etl.sinks.sql.sqlalchemy.record import Record
from dbt_reverse_etl.sinks.sql.sqlalchemy.statements import Statements, statements
from dbt_reverse_etl.sinks.sql.sqlalchemy.table import create_table, new_table, object_name, task_problems
from dbt_reverse_etl.sinks.sql.sqlalchemy.types import Type, keeps
from dbt_reverse_etl.sinks.sql.sqlalchemy.values import EMPTY, NOT_FINITE, SUBNORMAL, changes_of
from dbt_reverse_etl.testing import TYPES, batch_of
from tests.support.sinks.people import a_task

_dialects: Any = {"mssql": mssql, "oracle": oracle, "postgresql": postgresql}
SCHEMA = pa.schema([("id", pa.int64()), ("Tenant", pa.string()), ("e mail", pa.string()), ("score", pa.float64())])
TASK = a_task(SCHEMA, object="sales.people", key=("id", "Tenant"))


def dialect(name: str) -> Dialect:
    made: Dialect = _dialects[name].dialect()
    return made


def sql(element: ClauseElement, name: str) -> str:
    """In lines that begin with a keyword, so that it can be read."""
    text = " ".join(str(element.compile(dialect=dialect(name))).split())
    for word in ("USING", "ON (", "WHEN", "WHERE", "VALUES", "FROM"):
        text = text.replace(f" {word}", f"\n{word}")
    return text


def without_versions(ddl: str) -> str:
    """SQLAlchemy 2.0 does not know the BOOLEAN that Oracle has since 23ai."""
    return ddl.replace("bool SMALLINT", "bool BOOLEAN").replace("closed SMALLINT", "closed BOOLEAN")


def made(name: str, mode: Mode = Mode.MIRROR) -> Statements:
    place = object_name(TASK.object)
    assert place
    return statements(new_table(place, TASK), TASK.key, mode, name)


def written(name: str, mode: Mode = Mode.MIRROR) -> str:
    write = made(name, mode).write
    assert isinstance(write, ClauseElement)
    return sql(write, name)


@pytest.mark.guarantee("SQLAlchemy")
def test_sql_server_upserts_by_a_merge_that_keeps_others_from_adding_the_key() -> None:
    assert written("mssql") == (
        "MERGE INTO sales.people WITH (HOLDLOCK) AS target\n"
        "USING (SELECT CAST(:c0 AS BIGINT) AS c0, "
        "CAST(:c1 AS NVARCHAR(255)) COLLATE Latin1_General_100_BIN2 AS c1, "
        "CAST(:c2 AS NVARCHAR(max)) AS c2, CAST(:c3 AS DOUBLE PRECISION) AS c3) AS source\n"
        "ON (target.id = source.c0 AND target.[Tenant] = source.c1)\n"
        "WHEN MATCHED THEN UPDATE SET target.[e mail] = source.c2, target.score = source.c3\n"
        "WHEN NOT MATCHED THEN INSERT (id, [Tenant], [e mail], score)\n"
        "VALUES (source.c0, source.c1, source.c2, source.c3);"
    )


@pytest.mark.guarantee("SQLAlchemy")
def test_oracle_upserts_by_a_merge_whose_parameters_stand_where_they_are_stored() -> None:
    assert written("oracle") == (
        "MERGE INTO sales.people target\n"
        "USING DUAL\n"
        'ON (target.id = :c0 AND target."Tenant" = :c1)\n'
        'WHEN MATCHED THEN UPDATE SET target."e mail" = :c2, target.score = :c3\n'
        'WHEN NOT MATCHED THEN INSERT (id, "Tenant", "e mail", score)\n'
        "VALUES (:c0, :c1, :c2, :c3)"
    )


@pytest.mark.parametrize("name", ["mssql", "oracle"])
def test_insert_only_never_updates_and_update_only_never_inserts(name: str) -> None:
    only_new, only_there = written(name, Mode.INSERT_ONLY), written(name, Mode.UPDATE_ONLY)
    assert "WHEN NOT MATCHED" in only_new
    assert "UPDATE" not in only_new
    assert only_there.startswith("UPDATE sales.people SET ")
    assert "INSERT" not in only_there


def test_update_only_and_deletes_name_the_whole_key() -> None:
    assert written("mssql", Mode.UPDATE_ONLY) == (
        "UPDATE sales.people SET [e mail]=:c2, score=:c3\nWHERE sales.people.id = :c0 AND sales.people.[Tenant] = :c1"
    )
    assert sql(made("oracle").delete, "oracle") == (  # type: ignore[arg-type]
        'DELETE\nFROM sales.people\nWHERE sales.people.id = :c0 AND sales.people."Tenant" = :c1'
    )


def test_postgres_upserts_by_the_key_alone_so_that_any_other_unique_value_is_an_error() -> None:
    assert written("postgresql").endswith(
        'ON CONFLICT (id, "Tenant") DO UPDATE SET "e mail" = excluded."e mail", score = excluded.score'
    )


@pytest.mark.parametrize("name", ["mssql", "oracle"])
def test_a_question_for_keys_stays_below_the_parameters_that_the_server_takes(name: str) -> None:
    questions = made(name).there([(number, "x") for number in range(1_001)])
    sizes = [len(question.compile(dialect=dialect(name)).params) for question in questions]
    assert sum(sizes) == 2 * 1_001
    assert max(sizes) <= 1_000


@pytest.mark.guarantee("SQLAlchemy")
def test_a_value_is_never_in_the_text() -> None:
    questions = made("mssql").there([(1, "canary'; DROP TABLE people --")])
    assert "canary" not in sql(questions[0], "mssql")


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        (
            "mssql",
            "CREATE TABLE sales._dbt_reverse_etl_fences ( sync_id VARCHAR(128) NOT NULL, fence BIGINT NOT NULL, "
            "PRIMARY KEY (sync_id) ) CREATE TABLE sales._dbt_reverse_etl_claims ( sync_id VARCHAR(128) NOT NULL, "
            "claim VARCHAR(128) NOT NULL, part VARCHAR(128) NOT NULL, closed BIT NOT NULL, left_out BIGINT NOT NULL, "
            "PRIMARY KEY (sync_id, claim, part) )",
        ),
        (
            "oracle",
            'CREATE TABLE sales."_dbt_reverse_etl_fences" ( sync_id VARCHAR2(128 CHAR) NOT NULL, fence NUMBER(19) NOT NULL, '
            'PRIMARY KEY (sync_id) ) CREATE TABLE sales."_dbt_reverse_etl_claims" ( sync_id VARCHAR2(128 CHAR) NOT NULL, '
            "claim VARCHAR2(128 CHAR) NOT NULL, part VARCHAR2(128 CHAR) NOT NULL, closed BOOLEAN NOT NULL, "
            "left_out NUMBER(19) NOT NULL, PRIMARY KEY (sync_id, claim, part) )",
        ),
    ],
)
def test_the_record_and_the_fence_are_two_tables_of_our_own(name: str, tables: str) -> None:
    record = Record("sales", "5c", 1)
    texts = [str(CreateTable(table).compile(dialect=dialect(name))) for table in (record.fences, record.claims_table)]
    assert without_versions(" ".join(" ".join(texts).split())) == tables


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize("name", ["mssql", "oracle"])
def test_the_fence_is_locked_by_an_update_that_changes_nothing(name: str) -> None:
    table = "sales._dbt_reverse_etl_fences" if name == "mssql" else 'sales."_dbt_reverse_etl_fences"'
    assert sql(Record("sales", "5c", 1).locking, name).split("\n")[0] == f"UPDATE {table} SET sync_id={table}.sync_id"


EVERY_TYPE = {
    "mssql": "id BIGINT NOT NULL, int8 SMALLINT NULL, int16 SMALLINT NULL, int32 INTEGER NULL, int64 BIGINT NULL, "
    "uint32 BIGINT NULL, float32 DOUBLE PRECISION NULL, float64 DOUBLE PRECISION NULL, bool BIT NULL, "
    "string NVARCHAR(max) NULL, binary VARBINARY(max) NULL, decimal NUMERIC(38, 10) NULL, date DATE NULL, "
    "time TIME(6) NULL, instant DATETIMEOFFSET(6) NULL, local DATETIME2(6) NULL, list NVARCHAR(max) NULL, "
    "struct NVARCHAR(max) NULL, map NVARCHAR(max) NULL",
    "oracle": "id NUMBER(19) NOT NULL, int8 SMALLINT, int16 SMALLINT, int32 INTEGER, int64 NUMBER(19), "
    "uint32 NUMBER(19), float32 BINARY_DOUBLE, float64 BINARY_DOUBLE, bool BOOLEAN, string CLOB, "
    'binary BLOB, "decimal" NUMERIC(38, 10), "date" DATE, instant TIMESTAMP WITH TIME ZONE, local TIMESTAMP, '
    "list CLOB, struct CLOB, map CLOB",
}


@pytest.mark.parametrize("name", ["mssql", "oracle"])
def test_a_table_that_is_made_has_a_type_for_each_type_of_the_model(name: str) -> None:
    fields = [(field, kind) for field, (kind, _) in TYPES.items() if name == "mssql" or field != "time"]
    task, place = a_task(pa.schema([("id", pa.int64()), *fields]), object="people"), object_name("people")
    assert place
    expected = f"CREATE TABLE people ( {EVERY_TYPE[name]}, PRIMARY KEY (id) )"
    assert without_versions(create_table(place, task, dialect(name))) == expected


def test_a_type_that_a_dialect_cannot_hold_is_refused() -> None:
    task = a_task(pa.schema([("id", pa.int64()), ("t", pa.time64("us")), ("d", pa.decimal256(40, 2))]))
    assert [len(task_problems(task, name)) for name in ("mssql", "oracle")] == [1, 2]
    by_day = a_task(pa.schema([("day", pa.date32()), ("x", pa.string())]))
    assert [len(task_problems(by_day, name)) for name in ("mssql", "oracle")] == [0, 1]


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize(
    ("name", "column", "kind"),
    [
        ("mssql", sa.VARCHAR(10), pa.string()),
        ("mssql", mssql.DATETIME(), pa.timestamp("us")),
        ("mssql", mssql.DATETIME2(3), pa.timestamp("us")),
        ("mssql", mssql.DATETIME2(7), pa.timestamp("us", "UTC")),
        ("mssql", mssql.REAL(), pa.float64()),
        ("mssql", mssql.MONEY(), pa.decimal128(10, 2)),
        ("mssql", mssql.NCHAR(5), pa.string()),
        ("mssql", sa.Numeric(10, 1), pa.decimal128(10, 2)),
        ("oracle", oracle.NUMBER(), pa.float64()),
        ("oracle", oracle.FLOAT(126), pa.float64()),
        ("oracle", oracle.DATE(), pa.timestamp("us")),
        ("postgresql", postgresql.UUID(), pa.string()),
    ],
)
def test_a_column_that_would_change_values_is_refused(name: str, column: Type, kind: pa.DataType) -> None:
    assert not keeps(column, kind, name)


@pytest.mark.parametrize(
    ("name", "column", "kind"),
    [
        ("mssql", mssql.NVARCHAR(10), pa.string()),
        ("mssql", sa.VARCHAR(10, "Latin1_General_100_CI_AS_SC_UTF8"), pa.string()),
        ("mssql", mssql.DATETIME2(7), pa.timestamp("us")),
        ("mssql", mssql.DATETIMEOFFSET(6), pa.timestamp("us", "UTC")),
        ("mssql", mssql.REAL(), pa.float32()),
        ("mssql", mssql.BIT(), pa.bool_()),
        ("oracle", oracle.NUMBER(), pa.decimal128(38, 10)),
        ("oracle", oracle.NUMBER(1), pa.bool_()),
        ("oracle", oracle.DATE(), pa.date32()),
        ("oracle", oracle.TIMESTAMP(timezone=True), pa.timestamp("us", "UTC")),
        ("postgresql", postgresql.JSONB(), pa.list_(pa.int64())),
    ],
)
def test_a_column_that_keeps_values_is_taken(name: str, column: Type, kind: pa.DataType) -> None:
    assert keeps(column, kind, name)


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize(
    ("name", "column", "kind", "value", "reason"),
    [
        ("oracle", sa.Text(), pa.string(), "", EMPTY),
        ("oracle", sa.LargeBinary(), pa.binary(), b"", EMPTY),
        ("oracle", oracle.BINARY_DOUBLE(), pa.float64(), float("nan"), NOT_FINITE),
        ("mssql", sa.Double(), pa.float64(), float("-inf"), NOT_FINITE),
        ("mssql", sa.Double(), pa.float64(), 5e-324, SUBNORMAL),
        ("mssql", mssql.NVARCHAR(3), pa.string(), "😀😀", "longer than the 3 characters of its column"),
        ("mssql", mssql.VARBINARY(2), pa.binary(), b"abc", "longer than the 2 bytes of its column"),  # type: ignore[no-untyped-call]
    ],
)
def test_a_value_that_would_be_stored_as_another_one_refuses_its_row(
    name: str, column: Type, kind: pa.DataType, value: Any, reason: str
) -> None:
    task = a_task(pa.schema([("id", pa.int64()), ("x", kind)]))
    rows = batch_of(task, [("insert", {"id": 1, "x": value}), ("insert", {"id": 2, "x": None})]).rows
    changes = changes_of(rows, {"id": sa.BigInteger(), "x": column}, task.key, name)
    assert changes.refused == {0: f"field x: {reason}"}
    assert changes.writes.column("row").to_pylist() == [1]


class _OfDriver(Exception):
    """As a driver that is not installed here would raise it."""


class _Pyodbc(_OfDriver):
    __module__ = "pyodbc"


VIOLATION = "[23000] [Server]Violation of UNIQUE KEY constraint 'one'. The value is (5). (2627) (SQLExecDirectW)"
REJECTED, RETRYABLE, FATAL = Outcome.REJECTED, Outcome.RETRYABLE, Outcome.FATAL


@pytest.mark.guarantee("SQLAlchemy")
@pytest.mark.parametrize(
    ("kind", "cause", "outcome", "reason"),
    [
        (IntegrityError, _Pyodbc(VIOLATION), REJECTED, "constraint violated (2627), one"),
        (
            DBAPIError,
            _Pyodbc("Lock request time out. (1222) (SQLExecDirectW)"),
            RETRYABLE,
            "the database failed (1222)",
        ),
        (DBAPIError, _Pyodbc("Transaction was deadlocked (1205) (SQLFetch)"), RETRYABLE, "the database failed (1205)"),
        (DBAPIError, _Pyodbc("Invalid object name (208) (SQLPrepare)"), FATAL, "the database failed (208)"),
        (DBAPIError, _Pyodbc("secret said by a trigger (50001) (SQLExec)"), REJECTED, "the database failed (50001)"),
        (
            DataError,
            _OfDriver("ORA-12899: value too large for column x (actual: 9)"),
            REJECTED,
            "value refused (ORA-12899)",
        ),
        (DBAPIError, _OfDriver("ORA-00060: deadlock detected"), RETRYABLE, "the database failed (ORA-00060)"),
        (DBAPIError, _OfDriver("ORA-20001: secret of a trigger"), REJECTED, "the database failed (ORA-20001)"),
        (OperationalError, _OfDriver("secret"), RETRYABLE, "the database failed (_OfDriver)"),
    ],
)
def test_an_error_of_a_driver_is_an_outcome_and_its_text_is_not_shown(
    kind: type[DBAPIError], cause: Exception, outcome: Outcome, reason: str
) -> None:
    error = kind("INSERT secret", {"x": "secret"}, cause)
    assert failure(error, writing=True, known=["one", "people"]) == (outcome, reason)


def test_what_would_be_a_rows_fault_is_fatal_where_no_row_is_written_and_a_lost_connection_is_not() -> None:
    error = IntegrityError("SELECT", None, _Pyodbc(VIOLATION))
    assert failure(error)[0] is FATAL
    lost = IntegrityError("SELECT", None, _OfDriver("gone"), connection_invalidated=True)
    assert failure(lost, writing=True)[0] is RETRYABLE
    assert failure(StatementError("x", "INSERT", None, ValueError("secret")), writing=True)[0] is REJECTED
