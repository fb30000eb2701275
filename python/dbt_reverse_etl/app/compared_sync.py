"""One sync whose destination is compared with what was delivered to it, and what is done with what differs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from dbt_reverse_etl.app.context import HeadOfModel
from dbt_reverse_etl.app.operations import deliver_again
from dbt_reverse_etl.app.reconcile import LEFTOVER, Delivered, Differences, Reconciled, differences, undelivered_of
from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.base.errors import (
    ConfigurationError,
    DestinationError,
    ExitCode,
    PositionLost,
    Problem,
    ReverseEtlError,
    SyncBusy,
)
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.delivery.lost import find_lost, remaining
from dbt_reverse_etl.delivery.ports import Job
from dbt_reverse_etl.warehouse.head import Head
from dbt_reverse_etl.warehouse.spec import Spec, given_spec, resolve

# What is done with rows that the sync may have left at the destination, when nobody can tell them from rows of others.
DELETE, KEEP = "delete", "keep"


class ComparedSync(SyncPush):
    """One sync, whose destination is compared."""

    def reconcile(self, *, repaired: bool, leftovers: str | None = None) -> Reconciled:
        """What differs at the position; where that says nothing, from the model.

        Raises:
            ReverseEtlError: there is nothing to compare with, or the repair cannot be done.
        """
        head = self._shared.head(self._relation)
        if repaired and head and (asked := self._requests(head.changelog)):
            found_request, then = f"{asked[-1].operation}, which the next push carries out", "push, then repeat this"
            raise ReverseEtlError(Problem(self._name, found_request, "nothing left to carry out", then))
        delivered, job, lost = self._compared(head)
        if lost is not None and repaired:
            raise lost
        there = self.sink.read(job.task)
        found, now = None, self._shared.clock.now()
        if there is not None:
            found = differences(self._shared.spark, delivered, there, self._shared.ledger.relation, now)
        if self._shared.ledger.fence(self.id) != self.state.fence:
            found_other = "a push that ran while the destination was read"
            raise SyncBusy(Problem(job.task.sync, found_other, "none meanwhile", "repeat it"))
        rows, left = self._repair(found, delivered, job, leftovers) if repaired else (0, self.state.leftovers)
        notes = remaining(job, self.sink, left), self._remark(found, delivered)
        return replace(self._reconciled(found, lost, *notes, is_repaired=repaired), repaired=rows)

    def _compared(self, head: Head | None) -> tuple[Delivered, Job, PositionLost | None]:
        """What every row has reached; where the position says nothing, what the model has, and why."""
        lost = self._lost(head)
        if head is None:
            return *(self._model() if lost else self._delivered()), lost
        model, job = self._model()
        if lost is None:
            with suppress(DestinationError):  # `read` raises it where it matters
                lost = find_lost(job, self._ports(model.spec, self._head), self.state)
        return (model, job, lost) if lost else (*self._delivered(), None)

    def _reconciled(
        self, found: Differences | None, lost: PositionLost | None, left: str, note: str, *, is_repaired: bool
    ) -> Reconciled:
        """What is said of it. `lost`: why the position says nothing; then it was compared with the model. `left`: see `remaining`."""
        notes, code = [left, note], ExitCode.OK
        if lost or left:
            notes, code = [str(lost or ""), *notes], ExitCode.OTHER_CHANGELOG
        elif found and (found.duplicate or (found.wrong and not is_repaired)):
            code = ExitCode.FAILED
        if found and found.duplicate:
            several = f"keys that several rows have: {found.duplicate}"
            next_step = "delete the surplus rows at the destination, which no push does, then repeat this"
            notes.append(str(Problem(self._name, several, "one row for each key", next_step)))
        if found is None:
            notes = [f"a destination of type {self._resolved.destination.type} cannot be read", *notes]
        return Reconciled(self._name, self.label, code, found, 0.0, redact("; ".join(filter(None, notes))))

    def _repair(
        self, found: Differences | None, delivered: Delivered, job: Job, leftovers: str | None
    ) -> tuple[int, str]:
        """Tell the ledger what the next push shall deliver. How many rows that is, and why others may remain after it."""
        rows, left, deleted = [], self.state.leftovers, leftovers == DELETE
        if deleted and delivered.others:
            found_other = "another sync that leaves its rows in the same object"
            next_step = "delete at the destination what the model does not have, then --leftovers keep"
            raise ReverseEtlError(Problem(job.task.sync, found_other, "none, to delete leftovers by itself", next_step))
        if found is not None:
            rows = undelivered_of(found, job.task.sync, self._shared.clock.now(), deleted=deleted)
            listed = sum(row.changed == 0 for row in rows)
            left = left if listed < found.counts[LEFTOVER] or not delivered.spec.mode.deletes else ""
        if leftovers == KEEP:
            left = ""
        if rows or left != self.state.leftovers:
            deliver_again(rows, self.state, job, self._ports(delivered.spec, self._head), left)
            self._keep_block(self.state.fence + 1)
        return len(rows), left

    def _remark(self, found: Differences | None, delivered: Delivered) -> str:
        if found is None or delivered.history is None or not (found.foreign and delivered.spec.mode.deletes):
            return ""
        return delivered.history.pruned_note("came from this sync")

    def _delivered(self) -> tuple[Delivered, Job]:
        """What every row has reached with the definition of now."""
        state, place = self.state, self.state.positions[0]
        spec = Spec.of(state.specs[place.spec]) if place.snapshot else None
        if spec:
            self._refuse_another_zone(spec)
        head = self._shared.head(self._relation, place.snapshot) if spec else None
        if (
            spec is None
            or head is None
            or head.changelog != state.changelog
            or not self._sends_as_now(spec, head)
            or not state.finished
            or not state.is_at(place.snapshot, place.spec)
        ):
            found, expected = "no position that every row has reached", "a sync whose last push reached its end"
            raise ReverseEtlError(Problem(self._name, found, expected, "push it, then repeat this"))
        job = self._job(HeadOfModel(place.snapshot, head.changelog), spec)
        undelivered, history = list(state.undelivered.values()), self._history(head)
        known: dict[str, Any] = {"undelivered": undelivered, "history": history, "left": bool(state.leftovers)}
        return replace(self._delivered_as(head, spec, job), **known), job

    def _delivered_as(self, head: Head, spec: Spec, job: Job) -> Delivered:
        others, nan_is_null = self._others(head), self.sink.is_nan_null(job.task)
        return Delivered(self._relation, head, spec, self.id, others, nan_is_null)

    def _sends_as_now(self, spec: Spec, head: Head) -> bool:
        """Other settings may say the same, such as `fields` with each column by its name."""
        if spec.given == given_spec(self._settings):
            return True
        try:
            now = resolve(self._shared.spark, self._resolved.sync, head.columns)
        except ConfigurationError:  # of a column that came after this position
            return False
        # Only the destination could tell the place of keys, and a push looks at it.
        return replace(now, key_place=spec.key_place).after([spec]).id == spec.id

    def _model(self) -> tuple[Delivered, Job]:
        """What a first load would deliver now."""
        head = self._head()
        spec = resolve(self._shared.spark, self._resolved.sync, head.columns)
        job = self._job(HeadOfModel(head.snapshot, head.changelog), spec)
        return self._delivered_as(head, spec, job), job
