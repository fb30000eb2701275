"""The rows of a COPY as Arrow, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.sinks.sql.dialects.postgres.reading import BLOCK, read_copy


class Copied:
    """A connection whose COPY gives these lines, behind the constant that it asks for."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines

    def cursor(self) -> Copied:
        return self

    @contextmanager
    def copy(self, statement: bytes) -> Iterator[Iterator[bytes]]:
        constant = "0," if statement.startswith(b"COPY (SELECT 0, one.* FROM (") else ""
        yield (f"{constant}{line}\n".encode() for line in self._lines)


def read(*lines: str) -> list[Any]:
    task = SinkTask("5c", "people", 1, "people", Mode.MIRROR, ("name",), pa.schema([("name", pa.string())]))
    connection: Any = Copied(*lines)
    tables = read_copy(connection, 'SELECT "name" FROM "people"', task, ())
    return [row["name"] for table in tables for row in table.to_pylist() if not row[UNREADABLE]]


@pytest.mark.guarantee("Postgres")
def test_a_first_value_keeps_its_byte_order_mark_and_a_row_of_one_null_is_a_row() -> None:
    assert read("\ufeffAda", "", '""', "Grace") == ["\ufeffAda", None, "", "Grace"]


def test_a_huge_row_is_named_by_its_size_and_no_other_error_is() -> None:
    huge = "x" * (2 * BLOCK + 1)
    with pytest.raises(DestinationError, match="found a row of more than 8 MiB as text"):
        read(huge, huge)
    with pytest.raises(pa.ArrowInvalid, match="Expected 2 columns"):
        read("Ada,surplus")
