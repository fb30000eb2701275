"""How a sync stands after a push: exit code, line, health and alerts, against an account that is kept by the documentation."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from dbt_reverse_etl.app import alerts
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import ExitCode, ReverseEtlError
from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.base.redaction import register_secret
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.facts import BUCKETS, Claim, Range, Undelivered
from dbt_reverse_etl.delivery.health import Health, exit_code, explained, health, next_attempt, standing
from dbt_reverse_etl.delivery.policy import Rejections
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Batch, Mode
from dbt_reverse_etl.terminal import console
from dbt_reverse_etl.warehouse.ledger import decode, encode
from dbt_reverse_etl.warehouse.overview import Heard
from tests.support.delivery.account import ATTEMPTS, CAP, FIRST, Account
from tests.support.delivery.desk import POLICY, Desk
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.effort import until

NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)
SINKS = [PlainSink, TransactionalSink]
REASONS = ("too long", "no such country")


def choosy(kind: type[PlainSink]) -> type[PlainSink]:
    """A destination that refuses rows, lacks rows, or is broken, for as long as a test wants it."""

    class Choosy(kind):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.refused: dict[str, str] = {}
            self.absent: set[str] = set()
            self.broken = False

        def deliver(self, batch: Batch) -> Delivery:
            if self.broken:
                return Delivery.of_all(batch.rows.num_rows, Outcome.FATAL, "broken")
            keys = batch.rows.column("key").to_pylist()
            self.script = {key: ["rejected"] for key in keys if key in self.refused} | {
                key: ["no_match"] for key in keys if key in self.absent
            }
            found = super().deliver(batch)
            return replace(found, results=tuple(self._said(one, keys[one.index]) for one in found.results))

        def _said(self, one: RowResult, key: str) -> RowResult:
            return replace(one, reason="no row to update" if key in self.absent else self.refused[key])

    return Choosy


def desk_of(kind: type[PlainSink] = PlainSink) -> Any:
    desk: Any = Desk(choosy(kind))
    desk.mode = Mode.UPDATE_ONLY
    desk.policy = replace(POLICY, rejections=Rejections(first=FIRST, cap=CAP, attempts=ATTEMPTS))
    return desk


def pushed(desk: Any, allowed: int | None, *, retry: bool = False) -> Report:
    """As a push reports it."""
    policy, desk.policy, desk.allowed = desk.policy, replace(desk.policy, retry_now=retry), allowed
    result = desk.push()
    desk.policy = policy
    now = standing(result.state, allowed, desk.clock.now())
    code = exit_code(result.status, now.health)
    return Report("crm", "crm.contacts", result.status, code, result.counts, result.planned, standing=now)


def brackets(report: Report) -> str:
    return console.line(1, 1, report).rpartition("[")[2].rpartition(" in ")[0]


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("first", range(0, 400_000, 100_000))
def test_every_push_of_a_random_history_ends_as_a_plain_account_says(kind: type[PlainSink], first: int) -> None:
    seen, everything = set[str](), {"idle", "succeeded", "partial", "failed", "rejected", "parked", "exit 0", "exit 1"}
    for seed in (first + number for number in until(190, lambda: seen >= everything)):
        rnd, desk, account = random.Random(seed), desk_of(kind), Account()
        image = {f"k{n}": rnd.randrange(5) for n in range(rnd.randint(1, 6))}
        desk.changelog.capture(image)
        heard: dict[str, Heard] = {}
        for step in range(rnd.randint(5, 20)):
            keys = [f"k{n}" for n in range(7)]
            if rnd.random() < 0.4:
                image = {**image, rnd.choice(keys): rnd.randrange(5)}
                desk.changelog.capture(image)
            if rnd.random() < 0.3:
                desk.sink.refused = {key: rnd.choice(REASONS) for key in keys if rnd.random() < 0.3}
                desk.sink.absent = {key for key in keys if key not in account.delivered and rnd.random() < 0.3}
                desk.sink.absent -= desk.sink.refused.keys()
            desk.sink.broken = rnd.random() < 0.1
            desk.clock.sleep(rnd.choice([1, 60, 300, 1800, 7200, 90_000]))
            allowed, retry = rnd.choice([0, 0, 1, None]), rnd.random() < 0.1
            head, facts = desk.changelog.head, len(desk.ledger.facts)
            wanted = account.push(
                image, head, desk.clock.now(), refused=desk.sink.refused, absent=desk.sink.absent,
                broken=desk.sink.broken, allowed=allowed, retry=retry,
            )  # fmt: skip
            report = pushed(desk, allowed, retry=retry)
            about = f"seed {seed}, step {step}"
            assert (int(report.exit_code), report.standing.health.value) == (wanted.code, wanted.health), about
            assert brackets(report) == wanted.line, about
            # Groups of one size come in any order.
            assert sorted(console.details(report)) == sorted(wanted.details), about
            assert console.level(report) == ("error" if wanted.code else "warn" if wanted.details else "info"), about
            assert (report.standing.undelivered, report.standing.no_match) == (
                len(account.missing) + account.lost, len(account.owed) - len(account.missing)
            ), about  # fmt: skip
            word = "failing" if wanted.code else "recovered"
            due = [] if heard.get("crm", Heard()).word == word else [word]
            changes = [change.word for change in alerts.changed([report], heard)]
            assert changes == due, f"{about}: said once when it begins, and once when it is over"
            heard["crm"] = Heard(word)
            if report.status == Status.IDLE:
                assert len(desk.ledger.facts) == facts, f"{about}: a sync at rest writes nothing"
            assert desk.sink.destination.rows == account.delivered, about
            seen.update({report.status, *(one.outcome for one in report.standing.left), f"exit {wanted.code}"})
    assert seen >= everything, seen


# --- example by example


def row(key: str, outcome: str, reason: str = "r", **more: Any) -> Undelivered:
    given = {"maybe": False, "doubt": False, "attempts": 1, "next_attempt_at": None, **more}
    return Undelivered(
        key, 17, None, 1, changed=1, operation="update", outcome=outcome, reason=reason, first_failed_at=NOW, **given
    )


def left(*rows: Undelivered, status: str = Status.PARTIAL, **more: Any) -> State:
    return State(
        fence=1,
        positions=(Range(0, BUCKETS, 1, "s"),),
        status=status,
        undelivered={one.key: one for one in rows},
        **more,
    )


SOON, LATER = NOW + timedelta(minutes=5), NOW + timedelta(hours=2)


@pytest.mark.parametrize(
    ("state", "more", "word"),
    [
        (State(), {}, Health.NEVER),
        (State(), {"lag": 3}, Health.NEVER),
        (State(), {"refused": True}, Health.FAILING),
        (left(status=Status.SUCCEEDED), {}, Health.OK),
        (left(status=Status.SUCCEEDED), {"lag": 1}, Health.BEHIND),
        (left(status=Status.SUCCEEDED), {"refused": True}, Health.FAILING),
        (left(status=Status.FAILED), {}, Health.FAILING),
        (left(status=Status.INTERRUPTED), {}, Health.UNSETTLED),
        (left(status="running", finished=False), {}, Health.UNSETTLED),
        (left(status="resync"), {}, Health.OK),
        (left(status="resync", claims=(Claim("c", 0, BUCKETS, 1, "s", everything=True),)), {}, Health.UNSETTLED),
        (left(status=Status.SUCCEEDED, claims=(Claim("c", 0, 9, 1, "s"),)), {"lag": 1}, Health.UNSETTLED),
        (left(status=Status.FAILED, claims=(Claim("c", 0, 9, 1, "s"),)), {}, Health.FAILING),
        (left(row("a", "rejected", next_attempt_at=LATER)), {}, Health.FAILING),
        (left(row("a", "rejected", next_attempt_at=LATER), status=Status.SUCCEEDED), {}, Health.FAILING),
        (left(row("a", "rejected")), {"lag": 2}, Health.FAILING),
        (left(row("a", "rejected")), {"allowed": 1}, Health.OK),
        (left(row("a", "rejected"), row("b", "unknown")), {"allowed": 1}, Health.FAILING),
        (left(row("a", "rejected"), row("b", "unknown")), {"allowed": None}, Health.OK),
        (left(row("a", "no_match"), status=Status.SUCCEEDED), {}, Health.OK),
        (left(row("a", "no_match", doubt=True), row("b", "parked")), {}, Health.FAILING),
    ],
)  # fmt: skip
def test_there_is_one_word_for_how_a_sync_stands(state: State, more: dict[str, Any], word: Health) -> None:
    given = {"allowed": 0, **more}
    assert health(state, **given) is word
    refused = "blocked: 3 deletes" if given.pop("refused", False) else ""
    here = standing(state, given.pop("allowed"), NOW, refused=refused, **given)
    assert here.health is word
    assert bool(here.reason) == (word is not Health.OK), "whatever is not ok has a reason"


@pytest.mark.guarantee("dbt and its commands")
def test_it_is_said_how_many_rows_are_undelivered_why_and_when_each_is_tried_again() -> None:
    rows = [
        row("a", "rejected", "too long", next_attempt_at=SOON), row("b", "rejected", "too long", next_attempt_at=LATER),
        row("c", "rejected", "no such country", next_attempt_at=SOON), row("d", "parked", "too long"),
        row("e", "unknown", "no answer", doubt=True), row("f", "no_match", "no row to update", next_attempt_at=SOON),
    ]  # fmt: skip
    assert explained(standing(left(*rows), 0, NOW)) == [
        "undelivered: 2 rejected: too long; tried again from 2024-01-01 00:05 to 2024-01-01 02:00 UTC",
        "undelivered: 1 parked: too long; tried again when the row or the mapping changes, or by dbt-reverse-etl retry",
        "undelivered: 1 rejected: no such country; tried again after 2024-01-01 00:05 UTC",
        "undelivered: 1 unknown: no answer; the next run tries again",
    ]
    parked = standing(left(*rows), 0, NOW, park_doubt=True)
    assert explained(parked)[-1] == "undelivered: 1 unknown: no answer; tried again by dbt-reverse-etl retry alone"
    assert [next_attempt(one, NOW, park_doubt=False) for one in rows] == [
        "2024-01-01 00:05", "2024-01-01 02:00", "2024-01-01 00:05", "on a change", "next run", "2024-01-01 00:05",
    ]  # fmt: skip
    assert next_attempt(rows[4], NOW, park_doubt=True) == "by retry"
    many = standing(left(*(row(str(n), "rejected", f"reason {n}") for n in range(9))), 0, NOW)
    assert len(explained(many)) == 6
    assert explained(many)[-1] == "undelivered: 4 for 4 other reasons: see reverse_etl_undelivered"


@pytest.mark.guarantee("Secrets and row values")
def test_a_secret_in_what_an_earlier_version_wrote_into_the_ledger_is_not_shown() -> None:
    register_secret("s3cr3t-OfAnOldRow")
    told = replace(left(row("a", "rejected", "at s3cr3t-OfAnOldRow")), status="failed", message="s3cr3t-OfAnOldRow")
    here = standing(told, 0, NOW)
    assert "s3cr3t" not in str(here)
    assert (here.reason, here.left[0].reason) == ("failed: ***", "at ***")


def test_the_ledger_keeps_why_the_rows_of_a_partial_run_are_undelivered() -> None:
    desk = desk_of()
    desk.sink.refused = {f"k{n}": "too long" for n in range(2)} | {f"k{n + 2}": f"reason {n}" for n in range(7)}
    desk.changelog.capture(dict.fromkeys((*desk.sink.refused, *(f"k{n}" for n in range(9, 29))), 1))
    report = pushed(desk, None)
    assert (report.status, report.message) == (Status.PARTIAL, ""), "the lines below have it"
    assert desk.state().message.startswith("2 rejected: too long; 1 rejected: reason")
    assert desk.state().message.endswith("; 3 for other reasons")
    desk.sink.refused = {}
    desk.clock.sleep(CAP.total_seconds())
    assert (pushed(desk, None).status, desk.state().message) == (Status.SUCCEEDED, "")


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("kind", SINKS)
def test_a_push_that_failed_after_its_last_row_is_not_at_rest(kind: type[PlainSink]) -> None:
    desk = desk_of(kind)

    def full(claim: str, *, complete: bool) -> None:
        raise ReverseEtlError

    desk.sink.finish, finish = full, desk.sink.finish
    with pytest.raises(ReverseEtlError):
        desk.push({"k0": 1})
    assert desk.state().is_at(1, desk.spec.id), "every row is acknowledged"
    with pytest.raises(ReverseEtlError):
        desk.push()
    desk.sink.finish = finish
    assert desk.push().status == Status.SUCCEEDED
    assert desk.push().status == Status.IDLE


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("kind", SINKS)
def test_rows_that_the_destination_does_not_have_are_tried_again_for_ever_and_never_stop_a_sync(
    kind: type[PlainSink],
) -> None:
    desk = desk_of(kind)
    desk.sink.absent = {f"k{n}" for n in range(199)}
    desk.changelog.capture({f"k{n}": n for n in range(200)})
    first = pushed(desk, 0)
    assert (first.status, first.exit_code) == (Status.SUCCEEDED, ExitCode.OK), "nearly all are missing"
    assert (first.counts.no_match, first.counts.delivered.total) == (PerOperation(insert=199), 1)
    for _ in range(2 * ATTEMPTS):
        asleep = pushed(desk, 0)
        assert (asleep.status, brackets(asleep)) == (Status.IDLE, "nothing to send, 199 no match")
        desk.clock.sleep(CAP.total_seconds() * 24)
        assert pushed(desk, 0).counts.no_match.total == 199
    desk.sink.absent = set()
    desk.clock.sleep(CAP.total_seconds())
    assert brackets(pushed(desk, 0)) == "+199 ~0 -0"


@pytest.mark.parametrize("kind", SINKS)
def test_in_any_other_mode_a_row_that_is_not_there_is_rejected(kind: type[PlainSink]) -> None:
    desk = desk_of(kind)
    desk.mode, desk.sink.absent = Mode.MIRROR, {"k0"}
    desk.changelog.capture({"k0": 1, "k1": 2})
    report = pushed(desk, 0)
    assert (report.exit_code, brackets(report)) == (ExitCode.FAILED, "+1 ~0 -0, 1 rejected")


def test_a_row_of_an_unknown_outcome_stays_unknown_until_another_run_finds_no_match() -> None:
    desk = desk_of()
    plain = desk.sink.deliver
    answers = iter([Outcome.UNKNOWN, Outcome.NO_MATCH])
    desk.sink.deliver = lambda batch: Delivery.of_all(1, next(answers), "x")
    desk.changelog.capture({"k0": 1})
    assert pushed(desk, 0).exit_code is ExitCode.FAILED, "the first answer may have been lost"
    desk.sink.deliver, desk.sink.absent = plain, {"k0"}
    found = pushed(desk, 0)
    assert (found.exit_code, found.counts.no_match.total) == (ExitCode.OK, 1)


@pytest.mark.parametrize(
    ("status", "word", "code"),
    [
        (Status.SUCCEEDED, Health.OK, ExitCode.OK),
        (Status.PARTIAL, Health.OK, ExitCode.OK),
        (Status.PARTIAL, Health.FAILING, ExitCode.FAILED),
        (Status.IDLE, Health.OK, ExitCode.OK),
        (Status.IDLE, Health.FAILING, ExitCode.FAILED),
        (Status.FAILED, Health.FAILING, ExitCode.FAILED),
        (Status.INTERRUPTED, Health.UNSETTLED, ExitCode.INTERRUPTED),
        (Status.SUPERSEDED, Health.UNSETTLED, ExitCode.BUSY),
    ],
)  # fmt: skip
def test_the_exit_code_follows_the_health_of_the_sync(status: str, word: Health, code: ExitCode) -> None:
    assert exit_code(status, word) is code


def test_facts_of_the_version_before_are_read() -> None:
    desk = desk_of()
    desk.changelog.capture({"k0": 1})
    pushed(desk, 0)
    for fact in desk.ledger.facts:
        word, body = encode(fact)
        older = body.replace(',"no_match":{"insert":0,"update":0,"delete":0}', "").replace(',"allowed":0', "")
        assert decode(word, older) == fact
    assert '"no_match"' in encode(desk.ledger.facts[-1])[1]
