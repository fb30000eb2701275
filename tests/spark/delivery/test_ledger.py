"""The ledger on Delta: facts survive as they were, one of several rivals starts, and a campaign of crashes converges."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from dbt_reverse_etl.base import sql
from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS, Counts, PerOperation
from dbt_reverse_etl.delivery.facts import (
    BUCKETS,
    NOT_WELL,
    Claim,
    ClaimsSettled,
    DoubtRecorded,
    Fact,
    Heartbeat,
    Range,
    RunFinished,
    RunStarted,
    Undelivered,
    WaveAcknowledged,
)
from dbt_reverse_etl.delivery.health import health, standing
from dbt_reverse_etl.delivery.position import State, fold
from dbt_reverse_etl.delivery.starting import late_facts
from dbt_reverse_etl.report import reading
from dbt_reverse_etl.warehouse import commits
from dbt_reverse_etl.warehouse import ledger as ledger_module
from dbt_reverse_etl.warehouse.ledger import _ADAPTERS, DeltaLedger, _row, decode
from dbt_reverse_etl.warehouse.overview import ALERT, REFUSED, TESTS, Heard, Refusal
from tests.support.delivery import histories
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.world import MemoryLedger, World
from tests.support.effort import scaled

NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)
MOMENTS = st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(timezone.utc))


UNDELIVERED = Undelivered("k", 1, None, 1, False, False, 1, "update", "rejected", "too long", 1, NOW, None)


@pytest.fixture
def ledger(spark: SparkSession) -> Iterator[DeltaLedger]:
    spark.sql("create schema if not exists ledger_tests")
    made = DeltaLedger(spark, "`ledger_tests`.`ledger`")
    made.create()
    made.create()
    yield made
    spark.sql("drop table if exists ledger_tests.ledger")


def started(fence: int, run_id: str, sync_id: str = "a1") -> RunStarted:
    return RunStarted(
        sync_id, fence, run_id, NOW, 7, "spec", {"spec": "{}"}, (Range(0, BUCKETS, 3, "spec"),), (), (),
        NOW + timedelta(minutes=5), "host:1", sync="crm's \\ contacts", changelog="uuid",
    )  # fmt: skip


st.register_type_strategy(datetime, MOMENTS)
st.register_type_strategy(Mapping, lambda kind: st.dictionaries(*map(st.from_type, get_args(kind))))


@settings(max_examples=scaled(200), suppress_health_check=[HealthCheck.too_slow])
@given(fact=st.one_of([st.from_type(kind) for kind in Fact.__args__]))
def test_every_fact_survives_its_row(fact: Fact) -> None:
    row = _row(fact)
    assert _ADAPTERS[row["fact"]].validate_json(row["body"]) == fact
    assert row["sync_id"] == fact.sync_id


@pytest.mark.guarantee("Leases and rivals")
def test_of_several_runs_with_one_fence_exactly_one_starts(ledger: DeltaLedger) -> None:
    barrier = threading.Barrier(3)
    answers: dict[str, bool] = {}

    def rival(name: str) -> None:
        barrier.wait()
        answers[name] = ledger.start(started(1, name)) is not None

    threads = [threading.Thread(target=rival, args=(f"run{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers.values()) == [False, False, True]
    assert not ledger.start(started(1, "late")), "a late repeat is refused, too"
    assert ledger.fence("a1") == 1
    state = ledger.read("a1")
    assert (state.fence, state.head, state.positions) == (1, 7, (Range(0, BUCKETS, 3, "spec"),))
    assert ledger.read("unknown") == State()
    overview = ledger.overview(["crm's \\ contacts"])
    assert overview.states["a1"] == state


@pytest.mark.guarantee("Crashes and claims")
def test_a_list_that_no_task_could_carry_is_recorded_in_one_commit_and_read_whole(
    ledger: DeltaLedger, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried: list[int] = []
    made = spark.createDataFrame

    def create(table: Any) -> DataFrame:
        carried.append(sum(map(len, table.column("body").to_pylist())))
        return made(table)

    rows = tuple(replace(UNDELIVERED, key=f'["é {number}"]', bucket=number) for number in range(40))
    first = replace(started(1, "first"), undelivered=rows)
    second = Heartbeat("a1", 1, NOW, NOW + timedelta(minutes=9))
    monkeypatch.setattr(ledger_module, "_PART", 500)
    monkeypatch.setattr(spark, "createDataFrame", create)
    assert ledger.start(first) == State()
    ledger.append(replace(acknowledged(1, "first-0", NOW), undelivered=rows[:30]), second)
    assert max(carried) <= 500
    found = spark.sql(f"select fact, body from {ledger.relation} order by seq, fact").collect()
    assert [row.fact for row in found] == ["heartbeat", "run_started", "wave_acknowledged"]
    assert decode(found[1].fact, found[1].body) == first
    assert ledger.read("a1").undelivered == {row.key: row for row in rows[:30]}
    assert spark.sql(f"describe history {ledger.relation}").count() == 3, "one commit a call"


def test_the_facts_of_one_commit_are_one_file(spark: SparkSession, ledger: DeltaLedger) -> None:
    """The facts of a run are few; each file of theirs is one more to list in every later look."""
    ledger.append(Heartbeat("a1", 1, NOW, NOW), Heartbeat("a1", 2, NOW, NOW))
    [commit] = spark.sql(f"describe history {ledger.relation} limit 1").collect()
    assert (commit.operationMetrics["numOutputRows"], commit.operationMetrics["numFiles"]) == ("2", "1")


@pytest.mark.full
@pytest.mark.guarantee("Leases and rivals")
def test_a_run_hears_of_every_commit_since_its_state_was_read(ledger: DeltaLedger) -> None:
    other = DeltaLedger(ledger._spark, ledger.relation)  # of another process
    assert ledger.start(started(1, "first"))
    known = ledger.overview(["crm's \\ contacts"]).states["a1"]
    assert ledger.start(started(2, "second"), known) is known, "nobody wrote, so nothing is read again"

    known = ledger.read("a1")
    other.append(DoubtRecorded("a1", 2, NOW, (), (Claim("doubt", 0, 10, 7, "spec"),), {}))
    before = ledger.start(started(3, "third"), known)
    assert before == ledger.read("a1", 2) != known, "a fact that came late"

    known = ledger.read("a1")
    assert other.start(started(4, "rival"))
    for number in range(20):  # more commits than one look shows
        other.append(Heartbeat("b2", number, NOW, NOW))
    assert ledger.start(started(4, "late"), known) is None
    assert ledger.fence("a1") == 4
    known = ledger.read("a1")
    assert ledger.start(started(5, "next"), known) is known, "all of them were heard of, so nothing is read again"

    columns = "sync_id, fence, seq, fact, recorded_at, sync, run_id, body"
    ledger._spark.sql(
        f"insert into {ledger.relation} select sync_id, 6, seq, fact, recorded_at, sync, 'older version', body "
        f"from (select {columns} from {ledger.relation} where fence = 5 and sync_id = 'a1')"
    )
    assert ledger.fence("a1") == 6, "a commit that does not say whose it is"


@pytest.mark.guarantee("Leases and rivals")
def test_a_push_does_not_create_a_ledger_again_that_was_dropped_meanwhile(ledger: DeltaLedger) -> None:
    assert ledger.start(started(1, "run"))
    ledger._spark.sql(f"drop table {ledger.relation}")
    with pytest.raises(ReverseEtlError, match="it was dropped meanwhile"):
        ledger.append(DoubtRecorded("a1", 1, NOW, (), (), {}))
    assert not ledger._spark.catalog.tableExists(ledger.relation)


@pytest.mark.guarantee("Leases and rivals")
def test_a_ledger_whose_history_has_a_gap_or_that_was_made_anew_is_asked_for_its_rows(
    ledger: DeltaLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.overview(["any"])
    assert ledger.start(started(1, "first"))
    assert ledger.fence("a1") == 1
    other, history = DeltaLedger(ledger._spark, ledger.relation), ledger._commits._history
    assert other.start(started(2, "rival"))
    other.append(Heartbeat("b2", 1, NOW, NOW))
    # The file of the rival's commit is gone: Delta leaves it out.
    monkeypatch.setattr(
        ledger._commits, "_history", lambda limit: [row for row in history(limit) if "rival" not in str(row)]
    )
    assert ledger.fence("a1") == 2

    anew = DeltaLedger(ledger._spark, ledger.relation)
    anew.overview(["any"])
    assert anew.fence("a1") == 2
    ledger._spark.sql(f"drop table {ledger.relation}")
    anew.create()
    assert anew.fence("a1") == 0


class Kept(MemoryLedger):
    """The real ledger, with the facts noted beside it as the world of the campaign wants them."""

    def __init__(self, real: DeltaLedger, world: World) -> None:
        super().__init__(world._note)
        self._real, self._newest = real, State()
        real.overview(["any"])  # from here on the ledger follows the commits

    def read(self, sync_id: str, fence: int | None = None) -> State:
        found = self._real.read(sync_id, fence)
        self._newest = found if fence is None else self._newest
        return found

    def start(self, started: RunStarted) -> State | None:
        known = self._newest if self._newest.fence == started.fence - 1 else None
        before = self._real.start(started, known)
        if before is not None:
            super().append(started)
        return before

    def append(self, *facts: Fact) -> None:
        self._real.append(*facts)
        super().append(*facts)

    def fence(self, sync_id: str) -> int:
        return self._real.fence(sync_id)


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize(
    ("sink", "seed"),
    [
        (PlainSink, 11),
        pytest.param(PlainSink, 23, marks=pytest.mark.full),
        pytest.param(TransactionalSink, 5, marks=pytest.mark.full),
    ],
)
def test_random_crashes_zombies_and_refusals_converge_on_the_real_ledger(
    ledger: DeltaLedger, monkeypatch: pytest.MonkeyPatch, sink: type[PlainSink], seed: int
) -> None:
    class OnDelta(World):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            self.ledger = Kept(ledger, self)

    monkeypatch.setattr(histories, "World", OnDelta)
    print(f"seed {seed}")
    assert histories.history(seed, sink, histories.Bias()) == []


def test_a_claim_of_an_older_fence_is_never_read(ledger: DeltaLedger) -> None:
    assert ledger.start(started(1, "first"))
    claim = Claim("c", 0, 10, 7, "spec")
    assert ledger.start(replace(started(2, "second"), claims=(claim,))) == ledger.read("a1", 1)
    assert ledger.read("a1").claims == (claim,)
    assert ledger.read("a1", 1).claims == ()


@pytest.mark.guarantee("dbt and its commands")
def test_the_models_call_a_run_well_ended_where_its_sync_was_well_then(ledger: DeltaLedger) -> None:
    refused = Counts(PerOperation(9), PerOperation(7), PerOperation(1), skipped=PerOperation(1))
    left = [replace(UNDELIVERED, key=key) for key in ("a", "b")]
    ends = list(itertools.product(("succeeded", "partial", "failed", "interrupted"), (NOT_WELL, 0, 1, 2, None)))
    expected, facts = {}, []
    for fence, (status, allowed) in enumerate(ends, 1):
        whole = status == "succeeded"
        begun = replace(started(fence, f"run{fence}"), undelivered=() if whole else tuple(left))
        counts = Counts(PerOperation(9), PerOperation(9)) if whole else refused
        end = RunFinished("a1", fence, 1, NOW, status, counts, counts.planned, allowed=allowed)
        expected[fence] = health(fold([begun, end]), allowed).is_well
        facts += [begun, end]
    ledger.append(*facts, started(99, "unfinished"))
    runs = ledger._spark.sql(f"select fence, ended_well from {sql.view('reverse_etl_runs', ledger.relation)}").collect()
    assert {row.fence: row.ended_well for row in runs} == {**expected, 99: False}
    assert set(expected.values()) == {True, False}


def test_the_report_shows_the_newest_runs_of_each_sync_and_a_success_before_them(ledger: DeltaLedger) -> None:
    facts: list[Fact] = []
    for sync_id, statuses in {"a1": ("succeeded", "succeeded", "failed", "failed"), "b2": ("failed",)}.items():
        for fence, status in enumerate(statuses, 1):
            at = NOW + timedelta(hours=fence)
            begun = replace(started(fence, f"{sync_id}-{fence}"), sync_id=sync_id, at=at)
            end = RunFinished(sync_id, fence, 1, at, status, NO_COUNTS, NO_ROWS)
            facts += [begun, end]
    ledger.append(*facts, replace(started(5, "a1-5"), at=NOW + timedelta(hours=5)))
    pusher: Any = SimpleNamespace(spark=ledger._spark, ledger=ledger)
    runs = reading._runs(pusher, {"a1": "a", "b2": "b", "c3": "c"}, 3)
    found = {sync_id: [(run.fence, run.status) for run in own] for sync_id, own in runs.items()}
    assert found == {"a1": [(3, "failed"), (4, "failed"), (5, "unfinished")], "b2": [(1, "failed")]}
    ends = {run.last_success_at and run.last_success_at.astimezone(timezone.utc) for run in runs["a1"]}
    assert ends == {NOW + timedelta(hours=2)}
    assert runs["b2"][0].last_success_at is None
    assert reading._runs(pusher, {}, 3) == {}


@pytest.mark.guarantee("dbt and its commands")
def test_the_models_count_the_rows_that_a_run_planned_and_did_not_reach_as_undelivered(ledger: DeltaLedger) -> None:
    stopped = Counts(
        PerOperation(9, 8, 7), PerOperation(4, 3, 2), failed=PerOperation(4, 5, 3), no_match=PerOperation(1, 0, 2)
    )
    expected, facts = {}, []
    for number, (status, listed) in enumerate(
        itertools.product(("succeeded", "partial", "failed", "interrupted", "superseded"), (0, 2, 20))
    ):
        left = [replace(UNDELIVERED, key=f"row {row}") for row in range(listed)]
        begun = replace(
            started(1, f"run {number}", f"sync {number}"),
            undelivered=(*left, replace(UNDELIVERED, key="no", outcome="no_match")),
        )
        end = RunFinished(begun.sync_id, 1, 1, NOW, status, stopped, stopped.planned)
        expected[begun.sync_id] = standing(fold([begun, end]), 0, NOW).undelivered
        facts += [begun, end]
    ledger.append(*facts)
    view = sql.view("reverse_etl_status", ledger.relation)
    found = ledger._spark.sql(f"select sync_id, undelivered_rows from {view}").collect()
    assert {row.sync_id: row.undelivered_rows for row in found} == expected
    assert set(expected.values()) == {0, 2, 12, 20}


def test_the_history_of_a_key_tells_a_row_without_a_match_from_an_undelivered_one(ledger: DeltaLedger) -> None:
    facts: list[Fact] = []
    for fence, outcome in enumerate(("no_match", "rejected", None), 1):
        left = (replace(UNDELIVERED, outcome=outcome, reason="why"),) if outcome else ()
        others = tuple(replace(UNDELIVERED, key=key, outcome="failed") for key in "ab")
        wave = replace(acknowledged(fence, "", NOW + timedelta(minutes=fence)), undelivered=(*others, *left))
        facts += [started(fence, f"run {fence}"), wave]
    ledger.append(*facts)
    rows = ledger._spark.sql(sql.render("key_deliveries", ledger.relation, ["a1"], "uuid", "k", 1)).collect()
    assert [(row.fence, row.outcome, row.reason) for row in rows] == [
        (1, "no_match", "why"),
        (2, "rejected", "why"),
        (3, None, None),
    ]


def random_run(rng: random.Random, sync_id: str) -> list[Fact]:
    """A run as far as it came; some begin with what was recorded late, or with what the destination has on record."""

    def ranges(least: int) -> tuple[Range, ...]:
        cuts = [0, *sorted(rng.sample(range(1, BUCKETS), 2)), BUCKETS]
        return tuple(Range(lo, hi, rng.randint(least, 7), "spec") for lo, hi in itertools.pairwise(cuts))

    begun = replace(started(2, f"run of {sync_id}", sync_id), positions=ranges(0))
    facts: list[Fact] = [begun]
    if rng.random() < 0.5:
        before = State(1, positions=ranges(3))
        facts += late_facts(begun, State(1, positions=begun.positions), before, transactional=True)
    if rng.random() < 0.5:
        facts.append(ClaimsSettled(sync_id, 2, len(facts), NOW, ranges(5)[: rng.randint(1, 2)], (), (), {}))
    for place in ranges(7)[: rng.choice([0, 1, 3, 3])]:
        wave = replace(acknowledged(2, "", NOW), sync_id=sync_id, lo=place.lo, hi=place.hi)
        facts.append(replace(wave, seq=len(facts)))
    return facts


@pytest.mark.full
@pytest.mark.guarantee("Report and alerts")
def test_the_position_in_the_status_model_is_the_oldest_one_that_the_facts_fold_to_late_ones_included(
    ledger: DeltaLedger,
) -> None:
    seed = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))
    rng = random.Random(seed)
    runs = {f"sync {number}": random_run(rng, f"sync {number}") for number in range(40)}
    ledger.append(*itertools.chain.from_iterable(runs.values()))
    view = sql.view("reverse_etl_status", ledger.relation)
    rows = ledger._spark.sql(f"select sync_id, position_snapshot_id as position from {view}").collect()
    found = {row.sync_id: row.position for row in rows}
    assert found.keys() == runs.keys()
    for sync_id, facts in runs.items():
        assert found[sync_id] == min(place.snapshot for place in fold(facts).positions), f"seed {seed}: {facts}"


def test_what_the_channels_have_heard_is_kept_by_name_and_the_newest_word_counts(ledger: DeltaLedger) -> None:
    told = {"crm": Heard("failing", is_sure=False), "ads": Heard("recovered")}
    ledger.record(ALERT, told, "run-1", NOW)
    ledger.record(ALERT, {"crm": Heard("failing")}, "run-1", NOW - timedelta(hours=1))  # another machine
    assert ledger.overview(["crm", "ads"]).heard == {"crm": Heard("failing"), "ads": Heard("recovered")}
    assert ledger.overview(["other"]).heard == {}
    ledger.record(ALERT, {"crm": Heard("recovered", relation="`dev`.`people`")}, "run-2", NOW)
    ledger.record(REFUSED, {"crm": Refusal("blocked", "few", None, "d4", 1, "`dev`.`people`")}, "run-2", NOW)
    ledger.record(REFUSED, {"crm": Refusal("blocked", "many", None, "a1", 2, "`prod`.`people`")}, "run-2", NOW)
    prod, dev = (ledger.overview(["crm"], (), {"crm": f"`{target}`.`people`"}) for target in ("prod", "dev"))
    assert (prod.heard, dev.heard) == ({"crm": Heard("failing")}, {"crm": Heard("recovered")}), "each target its own"
    assert prod.refusals["crm"] == Refusal("blocked", "many", NOW, "a1", 2)
    assert dev.refusals["crm"] == Refusal("blocked", "few", NOW, "d4", 1)
    assert ledger.overview(["crm"], (), {"crm": "Dev.people"}).refusals == dev.refusals, "quoting has changed since"


@pytest.mark.full
def test_an_overview_of_many_runs_is_as_large_as_that_of_one(ledger: DeltaLedger) -> None:
    def asked(request: str, minutes: int) -> None:
        values = f"'request', 0, 0, 'request', timestamp '{NOW + timedelta(minutes=minutes)}', 'crm', '{request}'"
        ledger._spark.sql(f'insert into {ledger.relation} select {values}, \'{{"operation":"resync"}}\'')

    request, later, sooner = (str(uuid.uuid4()) for _ in range(3))
    runs = [
        replace(started(fence, uuid.uuid4().hex, sync_id), sync="people" if fence < 30 else "crm", head=fence)
        for fence in range(1, 41)
        for sync_id in ("a1", "b2")
    ]
    ledger.record(REFUSED, {"crm": Refusal("busy", "the first push")}, "run", NOW)
    ledger.append(*[replace(run, run_id=request) if run.fence == 7 else run for run in reversed(runs)])
    for id_, minutes in [(request, 0), (later, 5), (sooner, 3)]:
        asked(id_, minutes)
    for minutes in (2, 9, 4):
        at = NOW + timedelta(minutes=minutes)
        ledger.record(REFUSED, {"crm": Refusal("busy", f"after {minutes}")}, "run", at)
        ledger.record(TESTS, {"model.x.people": [f"test {minutes}"]}, "run", at - timedelta(hours=minutes))
    asks = ledger._spark.sql(sql.render("ledger_overview", ledger.relation, ["crm", "model.x.people"]))
    rows = asks.collect()
    scans = re.findall(r"FileScan parquet (?:\S+)?\[(.*?)\] .*PartitionFilters: \[(.*?)\]", _plan(asks))
    assert sorted(("request" in partitions, "body" in columns) for columns, partitions in scans) == [
        (False, False),
        (True, True),
    ], _plan(asks)
    assert len(rows) == 2 + 3 + 1 + 1, "two syncs, three requests, a refusal, the tests of a model"
    found = ledger.overview(["crm", "model.x.people"], {"a1", "b2"})
    assert {sync_id: state.head for sync_id, state in found.states.items()} == {"a1": 40, "b2": 40}
    assert {sync_id: run.sync for sync_id, run in found.started.items()} == {"a1": "crm", "b2": "crm"}
    assert found.aliases == {"a1": {"people", "crm"}, "b2": {"people", "crm"}}
    assert [one.id for one in found.requests["crm"]] == [sooner, later]
    assert found.refusals["crm"].message == "after 4"
    assert found.failing == {"model.x.people": ("test 4",)}, "the last record, whatever its clock said"


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString()).partition("== Initial Plan ==")[0]


@pytest.mark.guarantee("Crashes and claims")
def test_a_restore_is_found_behind_the_commits_after_it_and_an_older_one_is_not(
    ledger: DeltaLedger, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def now() -> datetime:
        return spark.sql("select current_timestamp()").collect()[0][0].astimezone(timezone.utc)

    monkeypatch.setattr(commits, "_AT_ONCE", 1)
    before = now()
    assert ledger.restored_at(before) is None
    ledger.append(Heartbeat("a1", 1, NOW, NOW))
    spark.sql(f"restore table {ledger.relation} to version as of 0")
    for _ in range(3):
        ledger.append(Heartbeat("a1", 1, NOW, NOW))
    restored = ledger.restored_at(before)
    assert restored is not None
    assert before <= restored <= now()
    assert ledger.restored_at(restored + timedelta(milliseconds=1)) is None


def acknowledged(fence: int, claim: str, at: datetime) -> WaveAcknowledged:
    return WaveAcknowledged("a1", fence, 1, at, 0, BUCKETS, 7, "spec", NO_COUNTS, (), (claim,), (), at)


@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("is_late", [False, True])
def test_an_acknowledgement_is_late_where_the_next_run_took_over_what_it_closes_and_not_where_a_clock_was_behind(
    ledger: DeltaLedger, *, is_late: bool
) -> None:
    mine = Claim("one-0", 0, BUCKETS, 7, "spec")
    first = replace(started(1, "one"), claims=(mine,))
    second = replace(started(2, "two"), at=NOW - timedelta(minutes=2), claims=(mine,) if is_late else ())
    ended = [] if is_late else [RunFinished("a1", 1, 2, NOW + timedelta(seconds=40), "succeeded", NO_COUNTS, NO_ROWS)]
    told = [acknowledged(1, "one-0", NOW + timedelta(seconds=30)), acknowledged(2, "two-0", NOW)]
    ledger.append(first, second, *told, *ended)
    ctes = sql.render("_acknowledged", ledger.relation, "a1", "'uuid'")
    found = ledger._spark.sql(f"with {ctes} select fence from acks where fact = 'wave_acknowledged' order by fence")
    assert [row.fence for row in found.collect()] == ([2] if is_late else [1, 2])


def test_the_right_to_create_a_schema_is_needed_only_where_it_is_missing(
    ledger: DeltaLedger, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(spark, "sql", lambda text: asked.append(text.split("(")[0].strip()))
    ledger.create("ledger_tests")
    assert asked == []
    DeltaLedger(spark, "ledger_tests.missing").create("ledger_tests")
    assert len(asked) == 1
    assert asked[0].startswith("create table")
    asked.clear()
    DeltaLedger(spark, "nowhere.missing").create("nowhere")
    assert asked[0] == "create schema if not exists nowhere"
