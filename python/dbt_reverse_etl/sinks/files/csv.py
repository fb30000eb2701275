"""Changes as CSV (as RFC 4180, but lines end with LF): a header, every value in quotes, NULL as nothing at all; values as in `encoding`, without JSON's quotes.

Spreadsheets run a text that begins like a formula, wherever it came from. So such a text, or one that begins with an apostrophe,
gets an apostrophe in front: spreadsheets do not run it, and a reader that takes one away has the value again.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dbt_reverse_etl.sinks.refusals import reasons_of, utf8
from dbt_reverse_etl.values.arrow import is_bytes, is_text
from dbt_reverse_etl.values.encoding import Nan, encode_values

_GUARDED = "^['=+\\-@\\t\\r\\n\uff1d\uff0b\uff0d\uff20]"


def csv_part(rows: pa.Table, nan: Nan) -> tuple[bytes, dict[int, str]]:
    """The file (empty without rows), and the rows that are not in it, for they have no exact form."""
    columns, refused = list[Any](), dict[int, str]()
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        texts, bad = _texts(column.combine_chunks(), name, nan)
        columns.append(texts)
        refused = bad | refused
    table = pa.table(columns, names=rows.column_names)
    if refused:
        table = table.take(pa.array([row for row in range(rows.num_rows) if row not in refused], pa.int64()))
    if not table.num_rows:
        return b"", refused
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(quoting_style="needed"))
    return bytes(sink.getvalue()), refused


def _texts(array: Any, name: str, nan: Nan) -> tuple[Any, dict[int, str]]:
    """Each value as text, and row -> reason of those that have none."""
    if is_text(array.type):
        texts, refusals = utf8(array)
        return _guarded(texts.cast(pa.large_string())), reasons_of(name, refusals)
    encoded = encode_values(array, name=name, nan=nan)
    texts = pa.array(encoded.rows, pa.large_binary()).cast(pa.large_string())
    texts = pc.if_else(pc.equal(texts, "null"), pa.scalar(None, pa.large_string()), texts)
    if not pa.types.is_nested(array.type):
        texts = pc.utf8_trim(texts, '"')
    return (_guarded(texts) if is_bytes(array.type) else texts), encoded.rejected


def _guarded(texts: Any) -> Any:
    runs = pc.match_substring_regex(texts, _GUARDED)
    apostrophe = pa.scalar("'", pa.large_string())
    return pc.if_else(runs, pc.binary_join_element_wise(apostrophe, texts, pa.scalar("", pa.large_string())), texts)
