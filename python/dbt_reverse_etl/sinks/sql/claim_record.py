"""What a transactional sink records of a batch, in its transaction, and what the records say of a claim.

A record has an id of its own (`part`), which says which buckets of the claim the batch completes: `<id>:<sender>:<entries>`. Versions
before wrote the id alone; of a claim with such a record it is only known whether it is whole.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dbt_reverse_etl.base.outcome import Delivery
from dbt_reverse_etl.sinks.base import Applied, Batch
from dbt_reverse_etl.sinks.buckets import Coverage, Piece
from dbt_reverse_etl.sinks.ranges import Ranges, coarse, minus, singles, union

_LONGEST = 128  # the column of some databases holds no more
_MOST_TEXTS = 64  # of one batch; a batch with more is in doubt whole
_MOST_TOUCHED = 64
_ENTRY = re.compile(r"(?P<touched>~?)(?P<lo>\d+)-(?P<hi>\d+)(?:\*(?P<count>\d+)\+(?P<step>\d+))?")
_PIECE = re.compile(r"(?P<bucket>\d+)@(?P<first>\d+)-(?P<stop>\d+)(?P<is_end>\.?)")


@dataclass(frozen=True)
class Part:
    """One record of a claim, as it is stored."""

    text: str
    closed: bool
    left_out: int


@dataclass(frozen=True)
class Unanswered:
    """A batch whose COMMIT had no answer: its record is asked before the batch is written again.

    Attributes:
        part: its record.
        answer: holds if the record is there.
    """

    batch: Batch
    part: Part
    answer: Delivery

    def is_of(self, batch: Batch) -> bool:
        """Whether this batch is that one, come again."""
        return self.batch.claim == batch.claim and self.batch.rows.equals(batch.rows)


def parts_of(batch: Batch, refused: Collection[int]) -> list[Part]:
    """The records of a batch of which these rows are refused; all are written with its rows. The first one tells whether it was applied."""
    name = secrets.token_hex(8)
    left_out = batch.left_out + len(refused)
    texts = [name] if batch.buckets is None else [*_texts(name, batch.buckets.coverage(refused))]
    return [Part(text, batch.last and not number, 0 if number else left_out) for number, text in enumerate(texts)]


def answer_of(parts: Sequence[Part]) -> bool | Applied | None:
    """What the records of a claim say of it, as `Sink.settle` returns it."""
    if not parts:
        return None
    if any(part.closed for part in parts) and not sum(part.left_out for part in parts):
        return True
    coverages = [_read(part.text) for part in parts]
    return False if None in coverages else applied(coverage for coverage in coverages if coverage is not None)


def applied(coverages: Iterable[Coverage]) -> Applied:
    """What several batches of a claim did together."""
    whole, touched, pieces = list[tuple[int, int]](), list[tuple[int, int]](), dict[tuple[str, int], list[Piece]]()
    for coverage in coverages:
        whole += coverage.whole
        touched += coverage.touched
        for piece in coverage.pieces:
            pieces.setdefault((coverage.sender, piece.bucket), []).append(piece)
    complete = {bucket for (_, bucket), found in pieces.items() if _is_complete(found)}
    delivered = union([*whole, *singles(complete)])
    return Applied(delivered, minus([*touched, *singles(bucket for _, bucket in pieces)], delivered))


def _is_complete(pieces: Sequence[Piece]) -> bool:
    reached = 0
    for piece in sorted(pieces, key=lambda piece: piece.first):
        if piece.first > reached:
            return False
        reached = max(reached, piece.stop)
        if piece.is_end:
            return True
    return False


def _texts(name: str, coverage: Coverage) -> Iterator[str]:
    entries = [*_entries(coverage)]
    head = f":{coverage.sender}:"
    texts = [*_joined(entries, _LONGEST - len(name) - len(head) - len(f".{_MOST_TEXTS}"))]
    if len(texts) > _MOST_TEXTS:
        everything = [*coverage.whole, *coverage.touched, *singles(piece.bucket for piece in coverage.pieces)]
        texts = [*_joined([f"~{lo}-{hi}" for lo, hi in coarse(everything, 1)], _LONGEST)]
    for number, text in enumerate(texts):
        yield f"{name}{f'.{number}' if number else ''}{head}{text}"


def _entries(coverage: Coverage) -> Iterator[str]:
    yield from _progressions(coverage.whole)
    for piece in coverage.pieces:
        yield f"{piece.bucket}@{piece.first}-{piece.stop}{'.' if piece.is_end else ''}"
    for lo, hi in coarse(coverage.touched, _MOST_TOUCHED):
        yield f"~{lo}-{hi}"


def _progressions(ranges: Ranges) -> Iterator[str]:
    """Ranges of one width at equal distances are one entry: so lie the buckets of a task."""
    start = 0
    while start < len(ranges):
        lo, hi = ranges[start]
        step = ranges[start + 1][0] - lo if start + 1 < len(ranges) else 0
        count = 1
        while start + count < len(ranges) and ranges[start + count] == (lo + count * step, hi + count * step):
            count += 1
        yield f"{lo}-{hi}" + (f"*{count}+{step}" if count > 1 else "")
        start += count


def _joined(entries: Sequence[str], longest: int) -> Iterator[str]:
    text = ""
    for entry in entries:
        if text and len(text) + 1 + len(entry) > longest:
            yield text
            text = ""
        text = f"{text},{entry}" if text else entry
    yield text


def _read(text: str) -> Coverage | None:
    """What `_texts` was given, or a part of it; None: it says nothing of buckets."""
    _, found, rest = text.partition(":")
    if not found:
        return None
    sender, _, entries = rest.partition(":")
    whole, touched, pieces = list[tuple[int, int]](), list[tuple[int, int]](), list[Piece]()
    for entry in filter(None, entries.split(",")):
        if piece := _PIECE.fullmatch(entry):
            pieces.append(Piece(int(piece["bucket"]), int(piece["first"]), int(piece["stop"]), bool(piece["is_end"])))
        elif part := _ENTRY.fullmatch(entry):
            (touched if part["touched"] else whole).extend(_expanded(part))
        else:
            return None
    return Coverage(sender, tuple(whole), tuple(pieces), tuple(touched))


def _expanded(part: re.Match[str]) -> Iterator[tuple[int, int]]:
    lo, hi, step = int(part["lo"]), int(part["hi"]), int(part["step"] or 0)
    for number in range(int(part["count"] or 1)):
        yield lo + number * step, hi + number * step
