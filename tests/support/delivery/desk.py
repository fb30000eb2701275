"""A changelog, a ledger, a sink and a clock in memory, and a run whenever a test asks for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from dbt_reverse_etl.app.operations import carry_out
from dbt_reverse_etl.delivery.gate import never
from dbt_reverse_etl.delivery.policy import Policy, Rejections
from dbt_reverse_etl.delivery.ports import Job, Ports, RunResult, Source
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.progress import Step, no_step
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.warehouse.overview import Request
from tests.support.delivery.clock import FakeClock
from tests.support.delivery.memory_sinks import PlainSink
from tests.support.delivery.reference import SCHEMA, Changelog, DictSource, Spec
from tests.support.delivery.world import MemoryLedger

POLICY = Policy(rejections=Rejections(first=timedelta(minutes=5), cap=timedelta(hours=1), attempts=3))


class Desk:
    """A changelog, a ledger and a sink, and a run whenever it is asked for."""

    def __init__(self, sink: type[PlainSink] = PlainSink) -> None:
        self.clock, self.ledger, self.changelog = FakeClock(), MemoryLedger(), Changelog()
        self.sink, self.spec, self.policy = sink(), Spec(), POLICY
        self.planned = 0
        self.runs = 0
        self.changelog_id = "uuid"
        self.source: type[DictSource] = DictSource
        self.interrupted: Callable[[], bool] = never
        self.step: Step = no_step
        self.full_loads = self.owns_object = False
        self.mode = Mode.MIRROR
        self.allowed: int | None = 0

    def push(self, image: dict[str, int] | None = None) -> RunResult:
        if image is not None:
            self.changelog.capture(image)
        return run(self._job(), self._ports(), self.policy)

    def ask(self, operation: str) -> None:
        """What `dbt run-operation` asked for, carried out as the next push would do it."""
        request = Request(f"request{self.runs}", "sync", operation, self.clock.now())
        carry_out(request, self.state().for_spec(self.spec.id, "{}"), self._job(), self._ports(), self.policy)

    def _job(self) -> Job:
        self.runs += 1
        task = SinkTask("s", "sync", 0, "object", self.mode, ("key",), SCHEMA, owns_object=self.owns_object)
        owner = f"run{self.runs}"
        return Job(owner, self.changelog_id, self.changelog.head, self.spec.id, "{}", task, owner)

    def _ports(self) -> Ports:
        more = {"interrupted": self._is_interrupted, "step": self.step, "allowed": lambda _: self.allowed}
        return Ports(self.ledger, self._source_for, self.sink, self.clock, full_load=self._full_load, **more)

    def _full_load(self, changes: Source, state: State) -> DictSource | None:
        return self._source_for(State().for_spec(self.spec.id, "{}")) if self.full_loads else None

    def _is_interrupted(self) -> bool:
        return self.interrupted()

    def state(self) -> State:
        return self.ledger.read("s")

    def _source_for(self, state: State) -> DictSource:
        self.planned += 1
        return self.source(self.changelog, state, self.changelog.head, self.spec, {self.spec.id: self.spec})
