"""What the records of batches say of the buckets of a claim, against what was applied row by row."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from dbt_reverse_etl.delivery.streams import PERIOD, Stripes, TaskStream, in_buckets, whole_claim
from dbt_reverse_etl.delivery.waves import batches
from dbt_reverse_etl.sinks.base import Applied, Batch, Limits
from dbt_reverse_etl.sinks.buckets import BatchBuckets, Buckets, Chunk
from dbt_reverse_etl.sinks.sql.claim_record import Part, answer_of, parts_of
from dbt_reverse_etl.warehouse.executors import _chunks
from tests.support.effort import scaled

LO, HI = 128, 896  # the buckets of the claim


@dataclass
class Truth:
    """Each planned row by its number: its bucket, and whether it was applied."""

    bucket: dict[int, int] = field(default_factory=dict)
    applied: set[int] = field(default_factory=set)
    parts: list[Part] = field(default_factory=list)

    def of(self, wanted: Callable[[set[bool]], bool]) -> set[int]:
        """Buckets by what became of their rows."""
        found: dict[int, set[bool]] = {}
        for row, bucket in self.bucket.items():
            found.setdefault(bucket, set()).add(row in self.applied)
        return {bucket for bucket, fates in found.items() if wanted(fates)}


def table_of(rows: list[tuple[int, int]]) -> pa.Table:
    """Row numbers and their buckets."""
    numbers, buckets = [row for row, _ in rows], [bucket for _, bucket in rows]
    return pa.table({"row": pa.array(numbers, pa.int64()), "_bucket": pa.array(buckets, pa.int32())})


def deliver(rnd: random.Random, truth: Truth, chunk: Chunk, table: pa.Table) -> None:
    """As `send` does it: the new rows, then those that were refused before; others wait."""
    group = {row: rnd.choice("nnnnnrw") if rnd.random() < 0.1 else "n" for row in table.column("row").to_pylist()}
    parts = {word: table.filter(pa.array([group[row] == word for row in group])) for word in "nrw"}
    held = {*parts["r"].column("_bucket").to_pylist(), *parts["w"].column("_bucket").to_pylist()}
    sent(rnd, truth, Buckets(chunk, parts["n"].column("_bucket"), held), parts["n"])
    sent(rnd, truth, Buckets(replace(chunk, own=()), parts["r"].column("_bucket"), held), parts["r"])


def sent(rnd: random.Random, truth: Truth, buckets: Buckets, table: pa.Table) -> None:
    """Some batches are applied, some are not, some come as two, and of some a row is refused."""
    for batch in batches(table, Limits(rows=rnd.randint(1, 30)), buckets.edge):
        middle = rnd.randint(batch.start, batch.stop)
        for rows in rnd.choice([[batch], [batch], [range(batch.start, middle), range(middle, batch.stop)]]):
            kept: list[int] | range = rows if rnd.random() < 0.9 else [row for row in rows if rnd.random() < 0.8]
            if not kept or rnd.random() < 0.3:
                continue
            refused = [place for place in range(len(kept)) if rnd.random() < 0.02]
            truth.parts += parts_of(Batch(table, "c", last=False, buckets=BatchBuckets(buckets, kept)), refused)
            numbers = table.column("row").take(pa.array([*kept], pa.int64())).to_pylist()
            truth.applied |= {number for place, number in enumerate(numbers) if place not in refused}


def planned(rnd: random.Random, truth: Truth) -> list[tuple[int, int]]:
    """Rows of the claim: of most buckets few, of some many."""
    most = rnd.choice([1, 3, 60])
    some = rnd.sample(range(LO, HI), rnd.randint(1, HI - LO))
    rows = [bucket for bucket in some for _ in range(rnd.choice([1, 1, 2, most]))]
    truth.bucket = dict(enumerate(rows))
    return [*truth.bucket.items()]


def by_tasks(rnd: random.Random, rows: list[tuple[int, int]]) -> Iterator[tuple[Chunk, pa.Table]]:
    """Partitions have stripes, tasks have partitions one after the other, and rows come in tables of any size."""
    stripes = Stripes(rnd.choice([1, 2, 3, 7, 100, 256]))
    partitions = rnd.randint(1, min(8, stripes.count))
    lies = {slot: slot * partitions // stripes.count for slot in range(stripes.count)}
    tasks = rnd.randint(1, 3)
    for task in range(tasks):
        mine: list[tuple[int, int]] = []
        for partition in range(task, partitions, tasks):
            of_partition = [row for row in rows if lies[row[1] % PERIOD * stripes.count // PERIOD] == partition]
            mine += sorted(of_partition, key=lambda row: row[1])
        stream = TaskStream(stripes)
        for table in _chunks(table_of(mine).to_batches(max_chunksize=rnd.randint(1, 40)), Limits(rows=1), stream.end):
            yield stream.chunk(table), table


def by_the_driver(rnd: random.Random, rows: list[tuple[int, int]]) -> Iterator[tuple[Chunk, pa.Table]]:
    rnd.shuffle(rows)
    yield whole_claim(LO, HI), in_buckets(table_of(rows))


def numbers(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {number for lo, hi in ranges for number in range(lo, hi)}


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("sender", [by_tasks, by_the_driver])
def test_a_bucket_is_delivered_where_all_its_rows_were_applied_and_in_doubt_where_some_were(
    sender: Callable[..., Iterator[tuple[Chunk, pa.Table]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = random.SystemRandom().randrange(10**9)
    for seed in range(start, start + scaled(60)):
        rnd, truth = random.Random(seed), Truth()
        monkeypatch.setattr("dbt_reverse_etl.warehouse.executors._CHUNK", rnd.randint(1, 80))
        for chunk, table in sender(rnd, planned(rnd, truth)):
            deliver(rnd, truth, chunk, table)
        answer = answer_of(truth.parts) or Applied()
        assert isinstance(answer, Applied), f"seed {seed}"
        with_rows = {*truth.bucket.values()}
        delivered, in_doubt = numbers(answer.delivered) & with_rows, numbers(answer.in_doubt)
        assert delivered <= truth.of(lambda fates: fates == {True}), f"seed {seed}"
        assert truth.of(lambda fates: fates == {True, False}) <= in_doubt, f"seed {seed}"
        assert truth.of(lambda fates: True in fates) <= delivered | in_doubt, f"seed {seed}"
        assert all(len(part.text) <= 128 for part in truth.parts), "some databases hold no more"
        assert len({part.text for part in truth.parts}) == len(truth.parts)


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("sender", [by_tasks, by_the_driver])
def test_where_nothing_is_refused_exactly_the_buckets_of_the_applied_batches_are_delivered(
    sender: Callable[..., Iterator[tuple[Chunk, pa.Table]]],
) -> None:
    start = random.SystemRandom().randrange(10**9)
    for seed in range(start, start + scaled(60)):
        rnd, truth = random.Random(seed), Truth()
        size = rnd.randint(1, 40)
        for chunk, table in sender(rnd, planned(rnd, truth)):
            buckets, of = Buckets(chunk, table.column("_bucket"), ()), table.column("_bucket").to_pylist()
            for rows in batches(table, Limits(rows=size), buckets.edge):
                divided = of[rows.stop - 1 : rows.stop + 1] == [of[rows.start]] * 2
                assert divided or of[rows.stop - 1] not in of[rows.stop :], "a bucket that fits into a batch is in one"
                if rnd.random() < 0.5:
                    truth.parts += parts_of(Batch(table, "c", last=False, buckets=BatchBuckets(buckets, rows)), ())
                    truth.applied |= {*table.column("row")[rows.start : rows.stop].to_pylist()}
        answer = answer_of(truth.parts) or Applied()
        assert isinstance(answer, Applied)
        with_rows = {*truth.bucket.values()}
        assert numbers(answer.delivered) & with_rows == truth.of(lambda fates: fates == {True}), f"seed {seed}"
        assert numbers(answer.in_doubt) & with_rows == truth.of(lambda fates: fates == {True, False}), f"seed {seed}"


def test_what_a_task_sends_of_a_large_wave_is_one_record_and_what_it_had_sent_at_a_crash_is_few_ranges() -> None:
    stripes = Stripes(8)
    first = [(row, bucket) for row, bucket in enumerate(range(65536)) if bucket % PERIOD * 8 // PERIOD == 3]
    table = table_of(first)
    stream = TaskStream(stripes)
    buckets = Buckets(stream.chunk(table), table.column("_bucket"), ())
    batch, *_ = batches(table, Limits(rows=4_000), buckets.edge)
    parts = parts_of(Batch(table, "c", last=False, buckets=BatchBuckets(buckets, batch)), ())
    assert len(parts) == 1
    answer = answer_of(parts)
    assert isinstance(answer, Applied)
    assert (len(answer.delivered), answer.in_doubt) == (4_000 // 32, ())


def test_a_batch_of_which_too_much_would_have_to_be_said_is_in_doubt() -> None:
    rows = [(row, bucket) for row, bucket in enumerate(random.Random(1).sample(range(65536), 30_000))]
    table = table_of(rows)
    own = tuple((bucket, bucket + 1) for _, bucket in rows)
    buckets = Buckets(Chunk("s", own), table.column("_bucket"), ())
    parts = parts_of(Batch(table, "c", last=False, buckets=BatchBuckets(buckets, range(len(rows)))), ())
    answer = answer_of(parts)
    assert isinstance(answer, Applied)
    assert len(parts) == 1
    assert answer.delivered == ()
    assert {bucket for _, bucket in rows} <= numbers(answer.in_doubt)


@pytest.mark.guarantee("Crashes and claims")
def test_records_of_the_versions_before_say_only_whether_a_claim_is_whole() -> None:
    old, closed = Part("0123456789abcdef" * 2, False, 0), Part("fedcba9876543210" * 2, True, 0)
    assert answer_of([old]) is False
    assert answer_of([old, closed]) is True
    assert answer_of([old, Part(closed.text, True, 1)]) is False
    assert answer_of([old, Part("0011223344556677:a:0-10", False, 0)]) is False, "an old task beside a new one"
    assert answer_of([]) is None
