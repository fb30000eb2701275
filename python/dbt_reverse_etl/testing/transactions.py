"""The tests of a sink that claims transactions, or full loads."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.fence import NewerFence
from dbt_reverse_etl.testing.rows import Change, batch_of, deliver, next_run, opened, person
from dbt_reverse_etl.testing.under_test import SinkUnderTest


class TransactionContract(SinkUnderTest):
    """Fences, records of claims, and loads that appear at once; skipped where the sink does not claim them."""

    def test_a_record_of_a_run_that_the_ledger_does_not_know_is_noticed(self) -> None:
        self._needs_transactions()
        task = self.make_task(fence=3)
        self._delivered(task, [person(1)])
        assert self.make_sink().missing(next_run(task, 3)) is None
        for known, first in ((2, False), (0, True)):
            with pytest.raises(NewerFence, match="3"):
                self.make_sink().missing(replace(task, fence=known, first=first))

    def test_an_older_fence_is_refused(self) -> None:
        self._needs_transactions()
        task = self.make_task()
        with opened(self.make_sink(), task) as sink:
            deliver(sink, task, [("insert", person(1))])
            with opened(self.make_sink(), next_run(task)) as newer:
                newer.finish("", complete=True)
            assert deliver(sink, task, [("update", person(1, "late"))]) == [Outcome.FATAL]
            with pytest.raises(DestinationError):
                self.make_sink().open(task)
        self._holds(task, [person(1)])

    def test_a_claim_is_settled_only_if_closed_with_nothing_left_out(self) -> None:
        self._needs_transactions()
        task = self.make_task()
        with opened(self.make_sink(), task) as sink:
            for claim, last, left_out in (("whole", True, 0), ("open", False, 0), ("left", True, 1)):
                rows: list[Change] = [("insert", person(len(claim)))]
                extra = sink.extra_columns(task)
                sink.deliver(batch_of(task, rows, claim, last=last, left_out=left_out, extra=extra))
        for fence in (2, 3):  # a crash before the ledger took the answers: the next run asks again
            with opened(self.make_sink(), next_run(task, fence)) as sink:
                answers = sink.settle(["whole", "open", "left", "never sent"])
                assert answers == {"whole": True, "open": False, "left": False, "never sent": None}
                assert all(answer is None or isinstance(answer, bool) for answer in answers.values())

    def test_the_record_of_the_claim_that_is_acknowledged_last_outlives_the_run(self) -> None:
        self._needs_transactions()
        task = self.make_task()
        with opened(self.make_sink(), task) as sink:
            for number, claim in enumerate(("before", "last")):
                deliver(sink, task, [("insert", person(number))], claim=claim)
            sink.finish("last")
        with opened(self.make_sink(), next_run(task)) as sink:
            assert sink.settle(["last"]) == {"last": True}

    def test_a_lost_record_stops_the_run_and_offers_resync(self) -> None:
        self._needs_transactions()
        with closing(self.make_sink()) as sink, pytest.raises(DestinationError, match="resync"):
            sink.open(self.make_task(first=False))

    def test_a_full_load_appears_at_once_in_place_of_what_was_there(self) -> None:
        self._needs_full_loads()
        task = self.make_task()
        self._delivered(task, [person(1), person(2)])
        full = replace(next_run(task), full_load=True)
        with self._pushing(full) as sink:
            for rows in ([person(2, "Grace")], [person(3), person(4)]):
                answers = deliver(sink, full, [("insert", row) for row in rows], last=False)
                assert set(answers) == {Outcome.DELIVERED}
                self._holds(task, [person(1), person(2)])
            sink.swap("claim-1")
        self._holds(task, [person(2, "Grace"), person(3), person(4)])
        self._delivered(next_run(task, 3), [person(5)])
        self._holds(task, [person(2, "Grace"), person(3), person(4), person(5)])

    def test_a_full_load_that_was_given_up_leaves_no_trace(self) -> None:
        self._needs_full_loads()
        task = self.make_task()
        self._delivered(task, [person(1)])
        full = replace(next_run(task), full_load=True)
        with opened(self.make_sink(), full) as sink:
            deliver(sink, full, [("insert", person(2))], claim="given up", last=False)
        self._holds(task, [person(1)])
        again = replace(next_run(task, 3), full_load=True)
        with opened(self.make_sink(), again) as sink:
            if sink.transactional:
                assert sink.settle(["given up"]) == {"given up": None}
            deliver(sink, again, [("insert", person(3))], claim="whole", last=False)
            sink.swap("whole")
            sink.finish("whole")
        self._holds(task, [person(3)])
        if self.sink_class.transactional:
            with opened(self.make_sink(), next_run(task, 4)) as sink:
                assert sink.settle(["whole"]) == {"whole": True}
