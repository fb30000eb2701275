"""What servers and poolers say, in words, and which servers are never written to: without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.sql.dialects.mysql import session as mysql
from dbt_reverse_etl.sinks.sql.dialects.mysql.table import read_table
from dbt_reverse_etl.sinks.sql.table import Name

PLACE = {"host": "db.example.com", "database": "crm", "user": "crm_push.abcdef"}
FATAL, RETRYABLE = Outcome.FATAL, Outcome.RETRYABLE


class Server:
    """A connection to a server that answers each statement with one row."""

    def __init__(
        self, answers: dict[str, tuple[Any, ...]], version: int = 160_000, encoding: str | None = None
    ) -> None:
        self.answers, self.said, self.closed, self.open = answers, list[str](), False, True
        self.info = SimpleNamespace(server_version=version, parameter_status=lambda _name: encoding)

    def execute(self, statement: str | bytes, _values: Any = None) -> Server:
        self.said.append(statement.decode() if isinstance(statement, bytes) else statement)
        return self

    def cursor(self) -> Server:
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        return next((row for part, row in self.answers.items() if part in self.said[-1]), None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return []

    def close(self) -> None:
        self.closed = True


def test_a_row_that_is_too_large_for_its_table_is_at_fault_itself_and_a_table_that_cannot_be_made_stops_the_sync() -> (
    None
):
    error = pymysql.err.OperationalError(1118, "Row size too large (> 8126). Changing some columns to TEXT ...")
    assert mysql.row_is_at_fault(error)
    assert mysql.failure(error) == (FATAL, "the row is too large for its table (1118)")


def test_an_auto_increment_column_without_a_value_left_is_named_with_what_to_do() -> None:
    error = pymysql.err.InternalError(1467, "Failed to read auto-increment value from storage engine")
    assert mysql.failure(error) == (FATAL, "no value is left for the AUTO_INCREMENT column (1467): make it bigint")


@pytest.mark.parametrize(("kind", "words"), [("SYSTEM VERSIONED", "a system-versioned table"), ("VIEW", "view")])
def test_a_system_versioned_table_is_not_called_a_view(kind: str, words: str) -> None:
    table = read_table(Server({"TABLE_TYPE": (kind, "InnoDB")}), Name("crm", "people", "`"))  # type: ignore[arg-type]
    assert table is not None
    assert table.wrong is not None
    assert words in table.wrong[0]
