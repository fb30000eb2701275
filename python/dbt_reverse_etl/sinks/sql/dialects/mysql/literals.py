"""Arrow columns as the rows of INSERT statements into a staging table: column by column, pure, no Python object per value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.sinks.sql.columns import Changes
from dbt_reverse_etl.sinks.sql.dialects.mysql.kinds import TEXT

_BYTES = pa.large_binary()
# Of utf8mb4 no byte of a longer character is one of these; sql_mode lets the backslash escape.
_ESCAPES = ((b"\\", b"\\\\"), (b"'", b"\\'"), (b"\0", b"\\0"))


def rows_of(changes: Changes, types: Sequence[str]) -> Any:
    """`(place,is a delete,fields ...),` for each row of a batch; the staged fields have these types."""
    literals = [_bare(changes.places), _bare(changes.deleted.cast(pa.int8()))]
    for array, of_type in zip(changes.fields.values(), types, strict=True):
        literals.append(pc.fill_null(WRITTEN.get(of_type, _bare)(array), pa.scalar(b"NULL", _BYTES)))
    begin, comma, end, nothing = (pa.scalar(piece, _BYTES) for piece in (b"(", b",", b"),", b""))
    return pc.binary_join_element_wise(begin, pc.binary_join_element_wise(*literals, comma), end, nothing)


def _bare(array: Any) -> Any:
    """Numbers."""
    return array.cast(pa.large_string()).cast(_BYTES)


def _quoted(array: Any) -> Any:
    """Texts of the connection's character set, utf8mb4."""
    return _string(array.cast(pa.large_string()).cast(_BYTES), b"'")


def _binary(array: Any) -> Any:
    return _string(array.cast(_BYTES), b"_binary'")


def _string(array: Any, begin: bytes) -> Any:
    for character, escaped in _ESCAPES:
        array = pc.replace_substring(array, character, escaped)
    return pc.binary_join_element_wise(pa.scalar(begin, _BYTES), array, pa.scalar(b"'", _BYTES), pa.scalar(b"", _BYTES))


WRITTEN = {"longblob": _binary, **dict.fromkeys((TEXT, "datetime(6)", "date"), _quoted)}
