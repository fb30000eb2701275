"""Which rows the guards judge and a plan shows: those that the run attempts, never fewer; those that were refused before apart."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest

from dbt_reverse_etl.app.preview import preview
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.outcome import Delivery
from dbt_reverse_etl.delivery.counts import NO_ROWS, PerOperation
from dbt_reverse_etl.delivery.facts import PARKED
from dbt_reverse_etl.delivery.planning import count
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import RunResult
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.delivery.waves import WaveSize
from dbt_reverse_etl.sinks.base import Batch, Mode, SparkSink
from dbt_reverse_etl.terminal.console import line
from tests.support.delivery.desk import POLICY, Desk
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.reference import DictSource
from tests.support.effort import until

KEYS = [f"k{number}" for number in range(10)]
RETRY = replace(POLICY, retry_now=True)
DAY = timedelta(days=1).total_seconds()


class Guarded(Desk):
    """Knows what its guard judged, and which rows came to the sink."""

    def __init__(self, sink: type[PlainSink] = PlainSink) -> None:
        super().__init__(sink)
        self.judged = self.refused = NO_ROWS
        self.tried: dict[
            str, tuple[int | None, str]
        ] = {}  # rows whose newest attempt was refused: their value, and what became of it
        self.came: Counter[str] = Counter()
        self.seconds = 0.0  # of a request
        self._deliver, self.sink.deliver = self.sink.deliver, self._noted  # type: ignore[method-assign]

    def _noted(self, batch: Batch) -> Delivery:
        came = {row["key"]: row["_operation"] for row in batch.rows.to_pylist()}
        self.came.update(operation for key, operation in came.items() if key not in self.seen)
        self.seen |= came.keys()
        self.clock.sleep(self.seconds)
        return self._deliver(batch)

    def pushed(self, image: dict[str, int] | None = None) -> RunResult:
        self.judged = self.refused = NO_ROWS
        self.came, self.seen = Counter(), set[str]()
        if image is not None:
            self.changelog.capture(image)
        return run(self._job(), replace(self._ports(), guard=self._judge), self.policy)

    def _judge(self, planned: PerOperation, refused: PerOperation, state: State) -> str:
        self.judged, self.refused = planned, refused
        return ""

    def again(self, image: dict[str, int]) -> int:
        """How many rows that came had been refused with the value that they have in `image`; what came is noted for the next run."""
        values = {key: image.get(key) for key in self.seen}
        words = ["rejected", PARKED, *["no_match"] * (self.mode is Mode.UPDATE_ONLY)]
        same = sum((value, word) == self.tried.get(key) for key, value in values.items() for word in words)
        left = {key: row.outcome for key, row in self.state().undelivered.items()}
        # A row that had another value meanwhile counts again.
        self.tried = {key: one for key, one in self.tried.items() if key not in self.seen and left.get(key) == one[1]}
        self.tried |= {key: (values[key], left[key]) for key in self.seen & left.keys()}
        return same

    def refuse(self, *keys: str, word: str = "rejected") -> None:
        self.sink.script = {key: [word] * 99 for key in keys}


def with_parked_deletes() -> Guarded:
    desk = Guarded()
    desk.pushed(dict.fromkeys(KEYS, 1))
    desk.refuse("k0", "k1")
    desk.pushed(dict.fromkeys(KEYS[2:], 1))
    for _ in range(4):
        desk.clock.sleep(DAY)
        desk.pushed()
    assert {row.outcome for row in desk.state().undelivered.values()} == {PARKED}
    return desk


@pytest.mark.guarantee("Guards")
def test_deletes_that_are_parked_do_not_count_against_those_of_a_new_snapshot() -> None:
    desk = with_parked_deletes()
    desk.pushed(dict.fromkeys(KEYS[3:], 1))
    assert desk.judged == PerOperation(delete=1)
    desk.policy = RETRY
    desk.pushed()
    assert (desk.judged, desk.refused) == (PerOperation(delete=2), PerOperation(delete=2)), "nobody waits"


@pytest.mark.guarantee("Guards")
def test_a_parked_row_counts_again_once_it_has_another_value() -> None:
    desk = with_parked_deletes()
    desk.pushed({**dict.fromkeys(KEYS[2:], 1), "k0": 5})
    assert (desk.judged, desk.refused, desk.came) == (PerOperation(update=1), NO_ROWS, Counter(update=1))


@pytest.mark.guarantee("Guards")
def test_rows_without_a_match_do_not_count_for_they_have_passed_the_guards() -> None:
    desk = Guarded()
    desk.mode = Mode.UPDATE_ONLY
    desk.refuse("k0", "k1", "k2", word="no_match")
    image = dict.fromkeys(KEYS, 1)
    desk.pushed(image)
    desk.pushed({**image, "k5": 2})
    assert desk.judged.total == 1
    desk.clock.sleep(DAY)
    desk.pushed({**image, "k5": 3})
    assert (desk.judged.total, desk.refused.total) == (4, 3), "they are sent, and may be there by now"
    desk.clock.sleep(DAY)
    desk.mode = Mode.MIRROR
    desk.pushed()
    assert (desk.judged.total, desk.refused.total) == (3, 0), "another mode makes them"


@pytest.mark.guarantee("Guards")
def test_a_row_that_comes_due_while_the_run_sends_waits_for_the_next_run() -> None:
    desk = Guarded()
    desk.policy, desk.sink.batch_rows = replace(POLICY, waves=WaveSize(1, grow_below=-1)), 1
    desk.refuse("k7")
    desk.pushed(dict.fromkeys(KEYS, 1))
    desk.sink.script, desk.seconds = {}, 400.0
    desk.pushed(dict.fromkeys(KEYS[:7], 2) | dict.fromkeys(KEYS[7:], 1))
    assert "k7" not in desk.seen
    assert desk.judged.total == desk.came.total() == 7
    desk.pushed()
    assert desk.seen == {"k7"}


@pytest.mark.guarantee("Guards")
def test_a_new_value_that_is_not_sent_does_not_pass_for_one_that_was_refused() -> None:
    desk = Guarded()
    desk.refuse("k0", word="unknown_applied")
    desk.pushed(dict.fromkeys(KEYS, 1))
    desk.refuse("k0")
    desk.pushed()
    desk.policy = POLICY.parking_doubt()
    desk.pushed(dict.fromkeys(KEYS[1:], 1))
    assert "k0" not in desk.seen, "an earlier request may have arrived, so it is not sent by itself"
    desk.policy = RETRY
    desk.pushed()
    assert (desk.judged, desk.refused, desk.seen) == (PerOperation(delete=1), NO_ROWS, {"k0"})


@pytest.mark.guarantee("Guards")
@pytest.mark.parametrize("kind", [PlainSink, TransactionalSink])
@pytest.mark.parametrize("parks", [False, True])
def test_the_guards_judge_exactly_what_comes_to_the_destination(kind: type[PlainSink], parks: bool) -> None:
    fewer = list[int]()
    for seed in until(60, lambda: len(fewer) > 10):
        rnd, desk = random.Random(seed), Guarded(kind)
        plain = replace(POLICY.parking_doubt() if parks else POLICY, waves=WaveSize(3, grow_below=-1))
        image = dict[str, int]()
        for _ in range(8):
            desk.policy = replace(plain, retry_now=rnd.random() < 0.1)
            words = ["rejected", "no_match", *["unknown_lost", "unknown_applied"][: 2 * (kind is PlainSink)]]
            desk.sink.script = {key: [rnd.choice(words)] * 99 for key in rnd.sample(KEYS, 3)}
            desk.mode = rnd.choice([Mode.MIRROR, Mode.MIRROR, Mode.UPDATE_ONLY])
            new = rnd.random() < 0.7
            image = {key: rnd.randint(1, 2) for key in KEYS if rnd.random() < 0.8} if new else image
            result = desk.pushed(image if new else None)
            came = PerOperation(**desk.came)
            again = desk.again(image)
            if result.status in ("succeeded", "partial"):
                assert (desk.judged, desk.refused.total) == (came, again), f"seed {seed}"
            assert desk.judged.total >= came.total, f"seed {seed}"
            fewer.extend([seed] * (result.planned.total > came.total))
            desk.clock.sleep(rnd.choice([60, 3600, DAY]))


def test_where_spark_writes_all_rows_at_once_those_that_wait_count() -> None:
    desk = with_parked_deletes()
    source, state = desk._source_for(desk.state()), desk.state()
    ports = Mock(sink=Mock(spec=SparkSink), clock=desk.clock)
    policies = [replace(POLICY, executors_from=rows) for rows in (1, 1000)]
    counted = [count(source, state, ports, policy, Mode.MIRROR) for policy in policies]
    assert [(found.wait.num_rows, found.refused.total) for found in counted] == [(0, 2), (2, 0)]


class Sampled(DictSource):
    def sample(self, rows: int) -> object:
        return self.wave(0, 65536).select(["_operation", "_key"]).sort_by("_operation").slice(0, rows)


@pytest.mark.parametrize(
    ("policy", "said", "keys"), [(POLICY, "+0 ~0 -1, 2 waiting", {"k2"}), (RETRY, "+0 ~0 -3", {"k0", "k1", "k2"})]
)
def test_a_plan_counts_and_samples_what_a_push_would_attempt(policy: Policy, said: str, keys: set[str]) -> None:
    desk = with_parked_deletes()
    desk.changelog.capture(dict.fromkeys(KEYS[3:], 1))
    desk.source = Sampled
    source = desk._source_for(desk.state())
    assert isinstance(source, Sampled)
    found = preview(source, desk.state(), desk._ports(), policy, Mode.MIRROR, 3, 2)  # type: ignore[arg-type]
    assert {key for _, key in found["sample"]} == keys
    assert said + " in" in line(1, 1, Report("s", "crm.s", "planned", is_plan=True, **found))
