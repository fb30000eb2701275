"""Arrow to JSON: ours against the writer of arrow-rs, and against Python objects and `json`."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec

import orjson
import pyarrow as pa

from dbt_reverse_etl.values.encoding import encode_lines, encode_rows
from tests.benchmarks.rows import people
from tests.benchmarks.turns import fastest, report


def encoding(rows: int, rounds: int) -> None:
    """Rows of ten columns of usual types, in memory."""
    if find_spec("arro3") is None:
        print("JSON: left out, arro3-io needs Python 3.11")
        return
    from arro3.io import write_ndjson

    table = pa.table(people(pa.array(range(rows), pa.int64()), "x"))

    def by_arrow_rs() -> bytes:
        lines = io.BytesIO()
        write_ndjson(table, lines)
        return lines.getvalue()

    def by_json() -> list[bytes]:
        return [json.dumps(row, default=str).encode() for row in table.to_pylist()]

    # The first row's time is a whole second, which arrow-rs writes without a fraction, and so is the thousandth's thousandth.
    ours, theirs = (lines.splitlines()[1:1000] for lines in (encode_lines(table)[0], by_arrow_rs()))
    assert [*map(orjson.loads, ours)] == [*map(orjson.loads, theirs)]
    figures = fastest(
        max(rounds, 10),
        {
            "lines": lambda: done(encode_lines(table)),
            "arrow-rs": lambda: done(by_arrow_rs()),
            "rows": lambda: done(encode_rows(table)),
        },
    )
    figures |= fastest(1, {"json": lambda: done(by_json())})
    report(f"{rows} rows as JSON Lines / by the writer of arrow-rs", figures["lines"] / figures["arrow-rs"], "<= 1.3")
    report(f"to_pylist and json, {rows} rows / ours, bytes for each row", figures["json"] / figures["rows"], ">= 10")


def done(_: object) -> None:
    """`fastest` measures what tells nothing itself."""
