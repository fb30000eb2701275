"""Columns of JSON text, put together in Arrow: `encoding` says which."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson
import pyarrow as pa
import pyarrow.compute as pc

TEXT = pa.large_string()
NULL = pa.scalar("null", TEXT)
_NEEDS_ESCAPE = r'["\\\x00-\x1f]'
_ESCAPED = b'"\\' + bytes(range(0x20))


def lists_of(offsets: pa.Array, elements: pa.Array, brackets: str) -> pa.Array:
    """The elements between offsets as one text each, in brackets."""
    inside = pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), pa.scalar(",", TEXT))
    return joined(pa.scalar(brackets[0], TEXT), inside, pa.scalar(brackets[1], TEXT))


def objects_of(
    fields: Sequence[tuple[str, pa.Array, bool]], fixed: Sequence[tuple[str, str]], rows: int, end: str = "}"
) -> pa.Array:
    """Objects from columns of JSON, some of which still need their quotes, and from JSON that is the same in each row."""
    same = ((name, pa.scalar(text, TEXT), False) for name, text in fixed)
    parts: list[pa.Array | pa.Scalar] = []
    before = "{"
    for name, values, quoted in (*fields, *same):
        quote = '"' if quoted else ""
        parts += [pa.scalar(f"{before}{orjson.dumps(name).decode()}:{quote}", TEXT), values]
        before = f"{quote},"
    parts.append(pa.scalar(before.removesuffix(",") + end, TEXT))
    return joined(*parts) if fields else pa.repeat(pa.scalar("".join(part.as_py() for part in parts), TEXT), rows)


def joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Texts of each row one behind the other."""
    return pc.binary_join_element_wise(*parts, pa.scalar("", TEXT))


def quoted_text(text: pa.Array) -> pa.Array:
    """Texts in quotes; NULL stays."""
    quote = pa.scalar('"', TEXT)
    return joined(quote, text, quote)


def escaped(text: pa.Array) -> pa.Array:
    """Texts as they stand between the quotes of JSON."""
    data = data_of(text)
    if len(data.translate(None, _ESCAPED)) == len(data):  # nearly always, and fast: no value is looked at
        return text
    return rewritten(
        text, pc.match_substring_regex(text, _NEEDS_ESCAPE), lambda value: orjson.dumps(value).decode()[1:-1], into=text
    )


def data_of(text: pa.Array) -> bytes:
    """The bytes of all values."""
    _, offsets, data = text.buffers()
    if data is None or not len(text):
        return b""
    ends = memoryview(offsets).cast("q")
    return bytes(memoryview(data)[ends[text.offset] : ends[text.offset + len(text)]])


def replaced(text: pa.Array, old: bytes, new: bytes) -> pa.Array:
    """One byte by another in all values of an array that nothing else looks into."""
    valid, offsets, data = text.buffers()
    if data is None:
        return text
    buffers = [valid, offsets, pa.py_buffer(data.to_pybytes().replace(old, new))]
    return pa.Array.from_buffers(TEXT, len(text), buffers, offset=text.offset)


def rewritten(text: pa.Array, where: pa.Array, by: Callable[[str], str], *, into: pa.Array) -> pa.Array:
    """Compute the few marked values in Python; the others stay in Arrow."""
    if not where.true_count:
        return into
    marked = pc.fill_null(where, False)
    chosen = [by(value) for value in text.filter(marked).to_pylist()]
    return pc.replace_with_mask(into, marked, pa.array(chosen, TEXT))
