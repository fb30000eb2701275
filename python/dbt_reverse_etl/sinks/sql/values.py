"""Arrow columns as the values of a database: column by column, pure, and exact or refused."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from dbt_reverse_etl.sinks.refusals import Converted, without
from dbt_reverse_etl.values.arrow import outside_years
from dbt_reverse_etl.values.encoding import decimal_texts

YEAR = "a year outside 1 to 9999"

Convert = Callable[[Any], Converted]
Fits = Callable[[Any, pa.DataType], bool]


def as_it_is(array: Any) -> Converted:
    """Nothing is changed or refused."""
    return array, []


class Kind(NamedTuple):
    """What a database does with the values of some Arrow types; nested ones arrive as JSON texts.

    Attributes:
        has: whether a type is one of these.
        column: the type of a column that holds every value; `{0}` is the Arrow type.
        fits: whether a column keeps the values as they are; one that is too long or too large is refused by its row.
        convert: the values as the database takes them.
        staged: the type of a column of the staging table, where that is another one.
    """

    has: Callable[[pa.DataType], bool]
    column: str
    fits: Fits
    convert: Convert = as_it_is
    staged: str = ""


def one_of(*kinds: str) -> Fits:
    """Whether the type of a column is one of these."""
    return lambda column, _plain: column.kind in kinds


def cast_to(target: pa.DataType) -> Convert:
    """A conversion that refuses nothing."""
    return lambda array: (array.cast(target), [])


def decimal_text(array: Any) -> Converted:
    """Decimals as text with all digits, never an exponent."""
    return decimal_texts(array), []


def timestamp_micros(array: Any) -> Converted:
    """Timestamps as int64 microseconds since 1970, in UTC where they have a zone."""
    outside = outside_years(array)
    return without(array.cast(pa.int64()), outside), [(outside, YEAR)]


def date_days(array: Any) -> Converted:
    """Dates as int32 days since 1970."""
    outside = outside_years(array)
    return without(array.cast(pa.int32()), outside), [(outside, YEAR)]


def then(convert: Convert, *targets: pa.DataType) -> Convert:
    """A conversion whose values are cast to these types, one after the other."""

    def converted(array: Any) -> Converted:
        array, refusals = convert(array)
        for target in targets:
            array = array.cast(target)
        return array, refusals

    return converted


# `2024-01-31 10:00:00.000000`, `2024-01-31`
timestamp_text = then(timestamp_micros, pa.timestamp("us"), pa.string())
date_text = then(date_days, pa.date32(), pa.string())


def pieces_of(rows: Any, most: int) -> Iterator[memoryview]:
    """The bytes of an array of large binaries, as many whole ones at once as fit."""
    if not len(rows):
        return
    _, offsets, data = rows.buffers()
    ends = memoryview(offsets).cast("q")[rows.offset : rows.offset + len(rows) + 1]
    first = 0
    while first < len(rows):
        after = max(bisect_right(ends, ends[first] + most) - 1, first + 1)
        yield memoryview(data)[ends[first] : ends[after]]
        first = after
