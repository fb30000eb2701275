"""Who hears what of a push: once that a sync fails, once that it has recovered, and after a kill neither nothing nor another thing."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from dbt_reverse_etl.app import alerts
from dbt_reverse_etl.app.invocation import overview_of
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.delivery.counts import NO_COUNTS, Counts
from dbt_reverse_etl.delivery.facts import RunStarted
from dbt_reverse_etl.delivery.health import Health, Left, Standing, exit_code, standing
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.waves import WaveSize
from dbt_reverse_etl.sinks.base import Batch
from dbt_reverse_etl.warehouse.overview import ALERT, REFUSED, Heard, Overview, Refusal
from tests.support.delivery.clock import FakeClock
from tests.support.delivery.desk import POLICY, Desk
from tests.support.delivery.fault_points import FAULT_POINTS
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.pushers import sync
from tests.support.delivery.world import Killed
from tests.support.effort import until

NOW = datetime(2026, 3, 14, 9, 30, tzinfo=timezone.utc)
OK, BEHIND, NEVER, UNSETTLED, FAILING = Health
BLOCKED = Overview({"a1": State(4)}, refusals={"crm": Refusal("blocked", "too many deletes", NOW, "a1", 4)})
WAITING = Standing(FAILING, (Left("rejected", "422 invalid_email", 2, "at_a_time", NOW, NOW),))
TOLERATED = Standing(OK, WAITING.left)


def ended(status: str, **more: Any) -> Report:
    bad = status in (Status.FAILED, "blocked", "other_changelog")
    about = {"standing": Standing(FAILING if bad else OK), "sync_id": "a1", "fence": 4, **more}
    return Report("crm", "crm.contacts", status, **about)


def refusal(status: str, message: str = "") -> Refusal:
    return Refusal(status, message, sync_id="a1", fence=4)


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize(
    ("heard", "report", "said"),
    [
        ("", ended(Status.SUCCEEDED), []),
        ("", ended(Status.IDLE), []),
        ("", ended(Status.IDLE, standing=Standing(NEVER)), []),
        ("", ended(Status.FAILED), ["failing"]),
        ("", ended("blocked"), ["failing"]),
        ("", ended("other_changelog"), ["failing"]),
        ("", ended(Status.PARTIAL, standing=WAITING), ["failing"]),
        ("", ended(Status.PARTIAL, standing=TOLERATED), []),
        ("", ended(Status.IDLE, standing=WAITING), ["failing"]),
        ("", ended("busy", standing=Standing(FAILING)), []),
        ("", ended("planned"), []),
        ("", ended(Status.INTERRUPTED, standing=Standing(UNSETTLED)), []),
        ("failing", ended(Status.FAILED), []),
        ("failing", ended("blocked"), []),
        ("failing", ended(Status.SUCCEEDED), ["recovered"]),
        ("failing", ended(Status.PARTIAL, standing=WAITING), []),
        ("failing", ended(Status.IDLE, standing=WAITING), []),
        ("failing", ended(Status.PARTIAL, standing=TOLERATED), ["recovered"]),
        ("failing", ended(Status.IDLE), ["recovered"]),
        ("failing", ended(Status.IDLE, standing=Standing(NEVER)), []),
        ("failing", ended(Status.INTERRUPTED, standing=Standing(UNSETTLED)), []),
        ("recovered", ended(Status.SUCCEEDED), []),
        ("recovered", ended(Status.FAILED), ["failing"]),
    ],
)  # fmt: skip
def test_a_message_is_due_where_a_sync_stands_otherwise_than_was_heard_and_at_no_other_time(
    heard: str, report: Report, said: list[str]
) -> None:
    known = {"crm": Heard(heard)} if heard else {}
    assert [change.word for change in alerts.changed([report], known)] == said
    unsure = {"crm": Heard(heard or "recovered", is_sure=False)}
    loud = report.status not in ("busy", "planned", Status.INTERRUPTED) and report.standing.health is not NEVER
    now = "failing" if report.standing.health is FAILING else "recovered"
    assert [change.word for change in alerts.changed([report], unsure)] == ([now] if loud else [])


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("recorded", [NOW - timedelta(hours=9), NOW + timedelta(hours=9)])
def test_a_refused_push_stays_refused_until_another_run_begins_whenever_and_by_whatever_clock_it_was_recorded(
    recorded: datetime,
) -> None:
    def refused(fence: int, newest: int, sync_id: str = "a1") -> Refusal | None:
        one = Refusal("blocked", "too many deletes", recorded, "a1", fence)
        return Overview({"a1": State(newest)}, refusals={"crm": one}).refused("crm", sync_id)

    assert refused(4, 4)
    assert refused(4, 5) is None, "a run began since"
    assert refused(0, 1) is None, "the first one"
    assert refused(0, 0, "b2") is None, "of another destination"
    assert Overview(refusals={"crm": Refusal("blocked", "", recorded, "a1", 0)}).refused("crm", "a1"), "no run yet"


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize(
    ("before", "report", "kept"),
    [
        (Overview(), ended("blocked", message="m"), {"crm": refusal("blocked", "m")}),
        (BLOCKED, ended("blocked", message="too many deletes"), {}),
        (BLOCKED, ended("blocked", message="more deletes"), {"crm": refusal("blocked", "more deletes")}),
        (BLOCKED, ended(Status.FAILED, message="no answer"), {"crm": refusal("failed", "no answer")}),
        (BLOCKED, ended(Status.IDLE), {"crm": refusal("ok")}),
        (BLOCKED, ended(Status.IDLE, standing=WAITING), {"crm": refusal("ok")}),
        (
            BLOCKED,
            ended("blocked", message="too many deletes", fence=5),
            {"crm": replace(refusal("blocked", "too many deletes"), fence=5)},
        ),
        (BLOCKED, ended(Status.SUCCEEDED, sync_id="b2"), {"crm": replace(refusal("ok"), sync_id="b2")}),
        (BLOCKED, ended(Status.IDLE, sync_id="b2"), {"crm": replace(refusal("ok"), sync_id="b2")}),
        (BLOCKED, ended("busy", sync_id="b2"), {}),
        (Overview(), ended(Status.IDLE, standing=WAITING), {}),
        (BLOCKED, ended(Status.SUCCEEDED), {}),
        (BLOCKED, ended("busy"), {}),
        (Overview(), ended(Status.IDLE), {}),
        (Overview(), ended("busy"), {}),
    ],
)
def test_the_ledger_hears_of_a_push_that_no_run_tells_of_and_once_of_its_end(
    before: Overview, report: Report, kept: dict[str, Refusal]
) -> None:
    assert alerts.refusals([report], before) == kept


# --- kills


UNSURE = ("announced", "alert.before", "alert.after", "told.before")  # killed there, nobody knows what was heard
TELLING = ("refusal.before", "refusal.after", *UNSURE, "told.after")


class Office:
    """One sync that is pushed again and again, its ledger, and a channel: each push may be killed at any step."""

    def __init__(self, kind: type[PlainSink]) -> None:
        self.desk = Desk(kind)
        self.desk.step = self._step
        self.desk.policy = replace(POLICY, waves=WaveSize(2, grow_below=-1))
        self.refusals: dict[str, Refusal] = {}
        self.told: dict[str, Heard] = {}
        self.heard: list[str] = []
        self.invocation_id, self.type = "run-1", "webhook"
        self.down = False
        self._dies = ""

    def push(self, *, blocked: bool, dies: str) -> Report | None:
        """None: it was killed."""
        self._dies = dies
        with suppress(Killed):
            overview = self.overview()
            report = self._blocked() if blocked else self._pushed()
            self.tell(report, overview, [self])
            return report
        return None

    def tell(self, report: Report, overview: Overview, channels: list[Any]) -> None:
        by_number = dict(enumerate(channels))
        alerts.tell([report], overview, self, by_number, "prod", lambda text, level: None)  # type: ignore[arg-type]

    def overview(self, *_: Any) -> Overview:
        started = [fact for fact in self.desk.ledger.facts if isinstance(fact, RunStarted)][-1:]
        runs = {"s": started[0]} if started else {}
        about = {"started": runs, "refusals": dict(self.refusals), "heard": dict(self.told)}
        return Overview({"s": self.desk.state()}, **about)

    def _report(self, status: str, code: ExitCode, here: Standing, counts: Counts = NO_COUNTS) -> Report:
        where = {"sync_id": "s", "fence": self.desk.state().fence}
        return Report("crm", "crm.contacts", status, code, counts, standing=here, **where)

    def _blocked(self) -> Report:
        here = standing(self.desk.state(), 0, self.desk.clock.now(), refused="blocked: too many deletes")
        return self._report("blocked", ExitCode.BLOCKED, here)

    def _pushed(self) -> Report:
        result = self.desk.push()
        here = standing(result.state, 0, self.desk.clock.now())
        code = exit_code(result.status, here.health)
        return self._report(result.status, code, here, result.counts)

    def _step(self, name: str) -> None:
        if name == self._dies:
            raise Killed

    # The ledger's side of alerts, and a channel.

    @property
    def ledger(self) -> Office:
        return self

    @property
    def clock(self) -> FakeClock:
        return self.desk.clock

    def record(self, fact: str, known: dict[str, Any], invocation_id: str, now: datetime) -> None:
        {REFUSED: self._record_refusals, ALERT: self._record_alerts}[fact](known)

    def _record_refusals(self, refusals: dict[str, Refusal]) -> None:
        self._step("refusal.before")
        self.refusals |= {sync: replace(one, at=self.desk.clock.now()) for sync, one in refusals.items()}
        self._step("refusal.after")

    def _record_alerts(self, heard: dict[str, Heard]) -> None:
        is_sure = all(one.is_sure for one in heard.values())
        if is_sure:
            self._step("told.before")
        self.told |= heard
        self._step("told.after" if is_sure else "announced")

    def send(self, subject: str, texts: list[str], data: dict[str, Any]) -> None:
        self._step("alert.before")
        if self.down:
            raise OSError
        self.heard += [one["state"] for one in data["syncs"]]
        self._step("alert.after")


def with_outages(kind: type[PlainSink]) -> type[PlainSink]:
    class Outages(kind):  # type: ignore[misc,valid-type]
        broken = False

        def deliver(self, batch: Batch) -> Delivery:
            if self.broken:
                return Delivery.of_all(batch.rows.num_rows, Outcome.FATAL, "down")
            return super().deliver(batch)

    return Outages


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("kind", [PlainSink, TransactionalSink])
def test_whichever_step_kills_a_push_the_next_one_tells_how_the_sync_stands_and_nothing_twice_that_was_surely_heard(
    kind: type[PlainSink],
) -> None:
    seen, wanted = set[str](), {"run.started", "wave.acknowledged", "run.finished", *TELLING}
    for seed in until(400, lambda: seen >= wanted):
        rnd, office, unsure = random.Random(seed), Office(with_outages(kind)), 0
        sink: Any = office.desk.sink
        office.desk.changelog.capture({"k0": 0})
        for step in range(rnd.randint(4, 16)):
            sink.broken, office.down = rnd.random() < 0.4, rnd.random() < 0.1
            if rnd.random() < 0.6:
                office.desk.changelog.capture({f"k{n}": rnd.randrange(9) for n in range(4)})
            dies = rnd.choice((*FAULT_POINTS, *TELLING)) if rnd.random() < 0.5 else ""
            report = office.push(blocked=rnd.random() < 0.2, dies=dies)
            if report is None:
                seen.add(dies)
                unsure += dies in UNSURE
                office.desk.clock.sleep(3600)  # until its lease is over
            elif not office.down:
                last = office.heard[-1] if office.heard else "recovered"
                about = f"seed {seed}, step {step}, killed at {dies or 'no step'}: {office.heard}"
                assert last == ("failing" if report.standing.health is FAILING else "recovered"), about
        repeated = sum(one == other for one, other in pairwise(["recovered", *office.heard]))
        assert repeated <= unsure, f"seed {seed}: {office.heard}"
    assert seen >= wanted, seen


def test_a_message_counts_as_heard_once_a_channel_took_it_and_a_recovery_also_where_nobody_is_left_to_hear_it() -> None:
    down, up = Office(PlainSink), Office(PlainSink)
    down.down = True
    for channels, status, heard in (
        ([down], Status.FAILED, "recovered"),
        ([down, up], Status.FAILED, "failing"),
        ([down], Status.SUCCEEDED, "failing"),
        ([], Status.SUCCEEDED, "recovered"),
        ([], Status.FAILED, "recovered"),
    ):
        up.tell(ended(status), up.overview(), channels)
        assert up.told["crm"] == Heard(heard), (len(channels), status)
    assert up.heard == ["failing"]


@pytest.mark.guarantee("Report and alerts")
def test_what_another_push_has_said_or_delivered_meanwhile_is_not_contradicted_at_the_end_of_a_long_invocation() -> (
    None
):
    office = Office(PlainSink)
    office.desk.push({"k0": 0})
    long_ago = office.overview()
    office.told["crm"] = Heard("failing")
    for fence, said in ((office.desk.state().fence, ["recovered"]), (0, [])):
        office.heard.clear()
        report = ended(Status.IDLE, sync_id="s", fence=fence)
        office.tell(report, replace(long_ago, heard={"crm": Heard("failing")}), [office])
        assert office.heard == said, "a run since then has its own word" if fence == 0 else "its newest run"
        office.told["crm"] = Heard("failing")
    blocked = ended("blocked", sync_id="s", fence=office.desk.state().fence)
    office.tell(blocked, replace(long_ago, heard={}), [office])
    assert office.heard == [], "another push has said it"


def test_a_retry_and_a_queue_go_on_with_a_sync_of_whose_recovery_nobody_may_have_heard() -> None:
    for heard, is_owed in ((Heard("failing"), True), (Heard("recovered", is_sure=False), True), (Heard(), False)):
        assert Overview(heard={"crm": heard}).must_tell("crm") is is_owed


@pytest.mark.guarantee("Report and alerts")
def test_a_sync_that_was_renamed_while_it_failed_sends_its_recovery_once_and_with_its_former_name() -> None:
    crm = sync("crm", "orders", renamed_from="old")
    office, asked, sent = Office(PlainSink), list[dict[str, str]](), list[tuple[str, dict[str, Any]]]()
    channel = SimpleNamespace(type="webhook", send=lambda _, texts, data: sent.append((texts, data)))
    office.told["old"] = Heard("failing")
    ledger: Any = SimpleNamespace(overview=lambda *about: asked.append(about[2]) or office.overview())
    for report in (ended(Status.FAILED), ended(Status.SUCCEEDED), ended(Status.SUCCEEDED)):
        office.tell(report, overview_of(ledger, [crm]), [channel])
    [([text], data)] = sent
    assert text.startswith("recovered: crm (formerly old) -> crm.contacts: ")
    assert [(one["state"], one["renamed_from"]) for one in data["syncs"]] == [("recovered", "old")]
    assert asked[0] == {"crm": "orders", "old": "orders"}, "another target records its own by the same name"
    newest = replace(ended(Status.SUCCEEDED), sync="newest")
    office.tell(newest, overview_of(ledger, [sync("newest", "orders", renamed_from="old")]), [channel])
    assert len(sent) == 1, "what was heard of the former name is settled with it"


def test_a_sync_that_has_the_former_name_of_another_one_keeps_what_was_heard_of_it() -> None:
    syncs = [sync("crm", "orders", renamed_from="old"), sync("old", "people")]
    ledger: Any = SimpleNamespace(overview=lambda *_: Overview(heard={"old": Heard("failing")}))
    assert overview_of(ledger, syncs).heard == {"old": Heard("failing")}
