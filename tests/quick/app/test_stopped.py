"""What a push says of rows that it has delivered when it ends with an error, by a signal, or in two runs: what the ledger says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from dbt_reverse_etl.app import sync_push
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.push import Pusher
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import DestinationError, ExitCode, GuardBlocked, Problem, ReverseEtlError
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.delivery.counts import NO_COUNTS, Counts, PerOperation
from dbt_reverse_etl.delivery.facts import BUCKETS, Claim, Range, RunFinished, RunStarted
from dbt_reverse_etl.delivery.health import Health
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, Ports, RunResult, Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.terminal import console
from dbt_reverse_etl.warehouse.overview import Overview
from tests.support.delivery.pushers import at, pusher, sync, without_spark
from tests.support.delivery.world import MemoryLedger

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
PLAIN, EVENTS = sync("a", "orders"), sync("e", "orders", mode="changelog")
ALL = Counts(PerOperation(5), PerOperation(5))
SOME = Counts(PerOperation(9), PerOperation(4), failed=PerOperation(3), skipped=PerOperation(2))
BLOCKED = GuardBlocked(Problem("e", "9 deletes", "fewer", "look"))


Ends = Callable[[Ports, str], RunResult]
pushed: list[Ends] = []  # how the runs of a push end, the first one first


def ended(status: str, counts: Counts, error: Exception | None = None) -> Ends:
    """A run that begins, records this as its end, and raises the error if there is one."""

    def end(ports: Ports, sync_id: str) -> RunResult:
        fence = ports.ledger.fence(sync_id)
        ports.ledger.append(RunFinished(sync_id, fence, 9, NOW, status, counts, counts.planned, "no answer"))
        if error:
            raise error
        return RunResult(status, fence, counts, counts.planned, state=ports.ledger.read(sync_id, fence))

    return end


def refused(error: Exception) -> Ends:
    """A run that raises before it begins."""

    def end(*_: object) -> RunResult:
        raise error

    end.begins = False  # type: ignore[attr-defined]
    return end


def run(job: Job, ports: Ports, _: Policy) -> RunResult:
    end, sync_id = pushed.pop(0), job.task.sync_id
    if getattr(end, "begins", True):
        fence, places = (
            ports.ledger.fence(sync_id) + 1,
            (Range(0, 9, job.head, job.spec), Range(9, BUCKETS, 4, job.spec)),
        )
        specs, none = {job.spec: job.spec_text}, dict[str, Any](claims=(), undelivered=())
        stated = {"specs": specs, "positions": places, "lease_until": NOW, "owner": "", "changelog": "uuid", **none}
        with suppress(AttributeError):  # there is no Spark to name the ledger
            ports.ledger.start(RunStarted(sync_id, fence, job.run_id, NOW, job.head, job.spec, **stated))
    return end(ports, sync_id)


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_push, "run", run)
    without_spark(monkeypatch)


def report_of(one: ResolvedSync, *ends: Ends, replays: bool = False, interrupted: bool = False) -> Report:
    """A push to snapshot 5 whose runs end so, after one that had delivered snapshot 3 or, with events, left a claim at 4."""
    pushed[:] = ends
    state = at(one, 3).states[id_of(one)]
    if replays:
        state = replace(state, claims=(Claim("c", 0, BUCKETS, 4, next(iter(state.specs))),))
    memory: dict[str, Any] = {"ledger": MemoryLedger()}
    started = RunStarted(id_of(one), 1, "r", NOW, 3, "", state.specs, state.positions, state.claims, (), NOW, "me")
    memory["ledger"].append(started, RunFinished(id_of(one), 1, 9, NOW, Status.FAILED, SOME, SOME.planned))
    warehouse: Pusher = replace(pusher(orders=5), **memory)
    warehouse._heads["orders", 4] = warehouse._heads["orders", 5]
    if interrupted:
        warehouse.interrupt.set()
    report = warehouse.push(one, Overview({id_of(one): state}))
    assert not pushed
    return report


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("error", [OSError(), ReverseEtlError(Problem("a", "no answer", "one", "wait"))])
def test_a_push_that_fails_in_the_middle_says_what_it_had_delivered_as_the_ledger_does(error: Exception) -> None:
    report = report_of(PLAIN, ended(Status.FAILED, SOME, error))
    assert (report.status, report.counts, report.planned) == (Status.FAILED, SOME, SOME.planned)
    assert (report.position, report.head, report.standing.undelivered) == (4, 5, 5)
    assert "[ERROR failed, +4 ~0 -0 delivered in" in console.line(1, 1, report)


class Refused(DestinationError):
    """As a sink of another package may write it."""

    def __init__(self, status: int) -> None:
        super().__init__(Problem("a", "an answer", "another", "wait"))
        self.status = status


def test_the_http_status_of_an_error_of_a_sink_is_not_the_status_of_the_push() -> None:
    report = report_of(PLAIN, refused(Refused(503)))
    assert (report.status, report.exit_code) == (Status.FAILED, ExitCode.FAILED)
    assert "503" not in report.standing.reason


def test_a_push_that_fails_before_its_run_begins_does_not_claim_the_rows_of_the_run_before() -> None:
    report = report_of(PLAIN, refused(OSError()))
    assert (report.status, report.counts, report.position) == (Status.FAILED, NO_COUNTS, 3)


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    ("newest", "status", "counts", "line"),
    [
        (ended(Status.SUCCEEDED, ALL), Status.SUCCEEDED, ALL + ALL, "+10 ~0 -0"),
        (ended(Status.SUCCEEDED, NO_COUNTS), Status.SUCCEEDED, ALL, "+5 ~0 -0"),
        (lambda *_: RunResult(Status.IDLE, 2), Status.IDLE, ALL, "+5 ~0 -0"),
        (ended(Status.FAILED, SOME, OSError()), Status.FAILED, ALL + SOME, "ERROR failed, +9 ~0 -0 delivered"),
        (refused(OSError()), Status.FAILED, ALL, "ERROR failed, +5 ~0 -0 delivered"),
        (refused(BLOCKED), "blocked", ALL, "ERROR blocked, +5 ~0 -0 delivered"),
    ],
)
def test_events_of_a_crashed_run_that_were_sent_again_count_in_the_report_of_their_push_and_once(
    newest: Ends, status: str, counts: Counts, line: str
) -> None:
    report = report_of(EVENTS, ended(Status.SUCCEEDED, ALL), newest, replays=True)
    assert (report.status, report.counts, report.planned) == (status, counts, counts.planned), report.message
    assert f"[{line} in" in console.line(1, 1, report)


NOT_BEGUN = "interrupted: it had not begun to send"
NOT_ENDED = "interrupted: it did not end in time: the next push settles what it sent"


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    ("ends", "replays", "message", "counts"),
    [
        ([refused(OSError())], False, NOT_BEGUN, NO_COUNTS),
        ([ended(Status.FAILED, SOME, OSError())], False, NOT_ENDED, NO_COUNTS),
        ([refused(OSError())], True, NOT_BEGUN, NO_COUNTS),
        ([ended(Status.SUCCEEDED, ALL), refused(OSError())], True, f"{NOT_BEGUN} newer events", ALL),
        ([ended(Status.SUCCEEDED, ALL), ended(Status.FAILED, SOME, OSError())], True, NOT_ENDED, ALL),
    ],
)
def test_a_push_whose_query_a_signal_cut_is_unsettled_only_if_it_had_begun_and_counts_what_it_sent_again(
    ends: list[Ends], message: str, counts: Counts, *, replays: bool
) -> None:
    report = report_of(EVENTS if replays else PLAIN, *ends, replays=replays, interrupted=True)
    assert (report.status, report.exit_code, report.message) == (Status.INTERRUPTED, ExitCode.INTERRUPTED, message)
    assert (report.counts, report.planned) == (counts, counts.planned)
    is_claimed = replays and counts == NO_COUNTS  # by the run before
    assert (report.standing.health is Health.UNSETTLED) == (message == NOT_ENDED or is_claimed)


def test_a_push_whose_start_a_signal_cut_in_two_is_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: object) -> State:
        raise OSError

    monkeypatch.setattr(MemoryLedger, "start", cut)
    report = report_of(PLAIN, ended(Status.SUCCEEDED, ALL), interrupted=True)
    assert (report.message, report.standing.health) == (NOT_ENDED, Health.UNSETTLED)
