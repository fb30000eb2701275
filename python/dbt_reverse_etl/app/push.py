"""One push: the syncs that are due, each from its position to the head of its changelog."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dbt_reverse_etl.app.compared_sync import ComparedSync
from dbt_reverse_etl.app.context import PushContext
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.app.reconcile import Reconciled
from dbt_reverse_etl.app.sync import OneSync
from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.base.errors import ExitCode, ReverseEtlError
from dbt_reverse_etl.base.interrupts import apart
from dbt_reverse_etl.base.redaction import message_of
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.delivery.health import Health, Standing
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.warehouse.overview import Overview


class Say(Protocol):
    """Writes a line."""

    def __call__(self, text: str, level: str, **about: Any) -> None:
        """`level`: info, warn, error; `about`: for machines, what the line is about."""


class Display(Protocol):
    """Where people read: lines, and the pushes that are under way, which `board` watches."""

    board: Any

    def say(self, text: str, level: str, **about: Any) -> None:
        """As `Say`."""

    def tell(self, report: Report, number: int, total: int) -> None:
        """How one sync ended."""

    def glance(self) -> None:
        """Called again and again while pushes are under way."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass
class Pusher(PushContext):
    """Pushes syncs, and never raises for one of them."""

    def push(self, resolved: ResolvedSync, overview: Overview, only: str | None = None) -> Report:
        """Deliver what is pending for one sync. Never raises for a failure of this sync: it is in the report. `only`: the key of the one row to send, as JSON."""
        began = time.monotonic()
        report = self._tried(resolved, overview, lambda one: one.push(only))
        wrong = "" if report.exit_code is ExitCode.OK else report.why or report.status
        self.watch.end(resolved.sync.name, report.status, wrong=wrong)
        return replace(report, seconds=time.monotonic() - began)

    def _tried(self, resolved: ResolvedSync, overview: Overview, act: Callable[[SyncPush], Report]) -> Report:
        one: SyncPush | None = None
        try:
            one = SyncPush(self, resolved, overview)
            report = act(one)
        except Exception as error:
            report = self._stopped(resolved, overview, one, error)
        sync_id = id_of(resolved)
        fence = one.fence if one else overview.states.get(sync_id, State()).fence
        return replace(report, sync_id=sync_id, relation=resolved.sync.changelog.relation_name, fence=fence)

    def _stopped(self, resolved: ResolvedSync, overview: Overview, one: SyncPush | None, error: Exception) -> Report:
        status, code = Status.FAILED, ExitCode.FAILED
        if isinstance(error, ReverseEtlError):
            status, code = error.push_status, error.exit_code
        if status == Status.FAILED and self.interrupt.is_set():  # it may be a query that was cancelled
            return one.interrupted() if one else self.left(resolved, overview, begun=False)
        message = message_of(error, resolved.sync.name)
        if one is not None:
            return one.stopped(status, code, message)
        here = Standing(Health.FAILING, reason=f"{status}: {message}")
        return Report(resolved.sync.name, resolved.label, status, code, message=message, standing=here)

    def left(self, resolved: ResolvedSync, overview: Overview, *, begun: bool) -> Report:
        """A sync that an interrupt kept from its end."""
        one = OneSync(self, resolved, overview)
        if begun:
            return one.unsettled()
        return one.untouched(Status.INTERRUPTED, ExitCode.INTERRUPTED, "interrupted: it had not begun")

    @apart
    def plan(self, resolved: ResolvedSync, overview: Overview, rows: int = 5) -> Report:
        """Count what a push would send; nothing is sent and nothing moves. Never raises, as `push`."""
        began = time.monotonic()
        report = self._tried(resolved, overview, lambda one: one.plan(rows))
        return replace(report, seconds=time.monotonic() - began, is_plan=True)

    @apart
    def status(self, resolved: ResolvedSync, overview: Overview) -> dict[str, Any]:
        """Position, lag, undelivered rows and last run of one sync; nothing is sent."""
        return OneSync(self, resolved, overview).status()

    @apart
    def health(self, resolved: ResolvedSync, overview: Overview) -> Health:
        """How the newest run of a sync left it."""
        return OneSync(self, resolved, overview).health()

    @apart
    def is_behind(self, resolved: ResolvedSync, overview: Overview) -> bool:
        """Whether its destination is not known to hold the head, through the definition of now."""
        return OneSync(self, resolved, overview).is_behind()

    @apart
    def reconcile(
        self, resolved: ResolvedSync, overview: Overview, *, repaired: bool, leftovers: str | None = None
    ) -> Reconciled:
        """Compare what the destination holds with what was delivered; with `repaired`, the next push delivers what differs. Never raises, as
        `push`.
        """
        began = time.monotonic()
        try:
            found = ComparedSync(self, resolved, overview).reconcile(repaired=repaired, leftovers=leftovers)
        except Exception as error:
            code = error.exit_code if isinstance(error, ReverseEtlError) else ExitCode.FAILED
            message = message_of(error, resolved.sync.name)
            found = Reconciled(resolved.sync.name, resolved.label, code, None, 0.0, message)
        return replace(found, seconds=time.monotonic() - began)
