"""Which rows the guards judge and a plan shows: those that the run attempts, never fewer."""

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
from dbt_reverse_etl.delivery.planning import waiting
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
        self.judged = NO_ROWS
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
        self.judged, self.came, self.seen = NO_ROWS, Counter(), set[str]()
        if image is not None:
            self.changelog.capture(image)
        return run(self._job(), replace(self._ports(), guard=self._judge), self.policy)

    def _judge(self, planned: PerOperation, state: State) -> str:
        self.judged = planned
        return ""

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
    assert desk.judged == PerOperation(delete=2), "nobody waits"


@pytest.mark.guarantee("Guards")
def test_a_parked_row_counts_again_once_it_has_another_value() -> None:
    desk = with_parked_deletes()
    desk.pushed({**dict.fromkeys(KEYS[2:], 1), "k0": 5})
    assert (desk.judged, desk.came) == (PerOperation(update=1), Counter(update=1))


@pytest.mark.guarantee("Guards")
def test_rows_without_a_match_do_not_count_until_they_are_due() -> None:
    desk = Guarded()
    desk.mode = Mode.UPDATE_ONLY
    desk.refuse("k0", "k1", "k2", word="no_match")
    image = dict.fromkeys(KEYS, 1)
    desk.pushed(image)
    desk.pushed({**image, "k5": 2})
    assert desk.judged.total == 1
    desk.clock.sleep(DAY)
    desk.pushed({**image, "k5": 3})
    assert desk.judged.total == 4, "they are sent, and may be there by now"


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
@pytest.mark.parametrize("kind", [PlainSink, TransactionalSink])
@pytest.mark.parametrize("parks", [False, True])
def test_the_guards_judge_exactly_what_comes_to_the_destination(kind: type[PlainSink], parks: bool) -> None:
    fewer = list[int]()
    for seed in until(60, lambda: len(fewer) > 10):
        rnd, desk = random.Random(seed), Guarded(kind)
        plain = replace(POLICY.parking_doubt() if parks else POLICY, waves=WaveSize(3, grow_below=-1))
        for _ in range(8):
            desk.policy = replace(plain, retry_now=rnd.random() < 0.1)
            words = ["rejected", "no_match", *["unknown_lost", "unknown_applied"][: 2 * (kind is PlainSink)]]
            desk.sink.script = {key: [rnd.choice(words)] * 99 for key in rnd.sample(KEYS, 3)}
            desk.mode = rnd.choice([Mode.MIRROR, Mode.MIRROR, Mode.UPDATE_ONLY])
            image = {key: rnd.randint(1, 2) for key in KEYS if rnd.random() < 0.8}
            result = desk.pushed(image if rnd.random() < 0.7 else None)
            came = PerOperation(**desk.came)
            if result.status in ("succeeded", "partial"):
                assert desk.judged == came, f"seed {seed}"
            assert desk.judged.total >= came.total, f"seed {seed}"
            fewer.extend([seed] * (result.planned.total > came.total))
            desk.clock.sleep(rnd.choice([60, 3600, DAY]))


def test_where_spark_writes_all_rows_at_once_those_that_wait_count() -> None:
    desk = with_parked_deletes()
    source, state = desk._source_for(desk.state()), desk.state()
    sink = Mock(spec=SparkSink)
    counted = [
        waiting(source, state, sink, Mode.MIRROR, POLICY, desk.clock.now(), far=far).num_rows for far in (True, False)
    ]
    assert counted == [0, 2]


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
    found = preview(source, desk.state(), desk._ports(), policy, Mode.MIRROR, 3)  # type: ignore[arg-type]
    assert {key for _, key in found["sample"]} == keys
    assert said + " in" in line(1, 1, Report("s", "crm.s", "planned", is_plan=True, **found))
