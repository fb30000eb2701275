"""A sync whose changelog and ledger are dropped, taken back, replaced or exchanged, and a plain account of who put which row."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from datetime import timedelta

from dbt_reverse_etl.app.operations import carry_out, deliver_again
from dbt_reverse_etl.base.errors import DestinationError, OtherLedger, PositionLost, Problem, RestoredChangelog
from dbt_reverse_etl.delivery.facts import RunStarted
from dbt_reverse_etl.delivery.lost import why_lost
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, Ports, RunResult, Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.fence import refuse_newer, refuse_older
from dbt_reverse_etl.warehouse.overview import Request
from tests.support.delivery.clock import FakeClock
from tests.support.delivery.memory_sinks import PlainSink, TransactionalSink
from tests.support.delivery.reference import SCHEMA, Changelog, DictSource, Spec
from tests.support.delivery.world import Killed, MemoryLedger

KEYS = [f"k{n}" for n in range(10)]
POLICY = Policy(lease=timedelta(minutes=1))
OURS, SOMEBODYS = "ours", "somebody's"


class Watched(PlainSink):
    """A destination without a record, such as an API: whoever stands beside notes who put which row."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[str, str] = {}
        self.claimed: set[str] = set()  # keys that a run may have written without an acknowledgement
        self.wrong: list[str] = []

    def _put(self, row: Mapping[str, object]) -> None:
        key = str(row["key"])
        if row["_operation"] != "delete":
            self.owners[key] = OURS
        elif self.owners.pop(key, OURS) is not OURS and key not in self.claimed:
            self.wrong.append(key)
        super()._put(row)


class Recording(Watched, TransactionalSink):
    """One with a record of the newest run."""

    def missing(self, task: SinkTask) -> str | None:
        refuse_newer(self.destination.fence, task)
        refuse_older(self.destination.fence, task)
        return None

    def open(self, task: SinkTask) -> None:
        if task.fence < self.destination.fence:
            raise DestinationError(Problem("memory", "a newer fence", "none", "push again"))
        super().open(task)


class DeltaLike(MemoryLedger):
    """As Delta, it remembers the fences of what a RESTORE took away, and skips them."""

    def __init__(self) -> None:
        super().__init__()
        self._taken = 0

    @property
    def is_cut(self) -> bool:
        """It was restored, and nobody has done anything about it."""
        return self.fence("s") < self._taken

    def start(self, started: RunStarted) -> State | None:
        if started.fence <= self._taken:
            return None
        self._taken = started.fence
        return super().start(started)


class Named(Changelog):
    """A changelog with an identity, and the marks that name ledgers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.mark, self.before = name, "", None
        self.captures: dict[int, str] = {}

    before: Named | None  # what a RESTORE took away

    def capture(self, image: Mapping[str, int]) -> None:
        super().capture(image)
        self.captures[self.head] = uuid.uuid4().hex


class Telling:
    """The ledger, which tells the changelog of the runs that it has begun."""

    def __init__(self, ledger: DeltaLike, changelog: Named) -> None:
        self._ledger, self._changelog = ledger, changelog
        self.append, self.fence, self.read = ledger.append, ledger.fence, ledger.read
        self.restored_at = ledger.restored_at

    def start(self, started: RunStarted) -> State | None:
        before = self._ledger.start(started)
        if before is not None:
            self._changelog.mark = started.mark
        return before


class LostWorld:
    """Whatever may be lost, in random order; after each push that looks well the destination must equal the model."""

    def __init__(self, seed: int, sink: type[Watched]) -> None:
        self._rnd, self.sink, self.clock = random.Random(seed), sink(), FakeClock()
        self._made, self._runs = 0, 0
        self.changelog, self.ledgers = self._new_changelog(), [DeltaLike(), DeltaLike()]
        self.current = 0
        self.problems: list[str] = []
        self.seen: set[str] = set()
        self._death = -1

    def play(self, steps: int) -> None:
        """Random events; `problems` says what went wrong."""
        events = {self._capture: 8, self._push: 10, self._person: 2, self._lose_something: 3, self._crash: 1}
        for _ in range(steps):
            self._rnd.choices([*events], [*events.values()])[0]()
            self.clock.sleep(100)  # every lease has ended
        for _ in range(3):
            self._push()

    def _new_changelog(self) -> Named:
        self._made += 1
        changelog = Named(f"changelog {self._made}")
        changelog.capture({key: self._rnd.randint(0, 9) for key in KEYS if self._rnd.random() < 0.5})
        return changelog

    def _capture(self) -> None:
        if self.changelog.before is not None:
            return  # what was taken back takes no snapshot
        image = dict(self.changelog.images[-1])
        for key in self._rnd.sample(KEYS, 3):
            image.pop(key, None)
            if self._rnd.random() < 0.6:
                image[key] = self._rnd.randint(0, 9)
        self.changelog.capture(image)

    def _person(self) -> None:
        """Puts a row where there is none, and where no delete may be under way."""
        if not self._state().finished or self._state().claims:
            return
        free = [key for key in KEYS if key not in self.sink.destination.rows and key not in self.changelog.images[-1]]
        if free:
            key = self._rnd.choice(free)
            self.sink.claimed.discard(key)
            self.sink.destination.rows[key], self.sink.owners[key] = -1, SOMEBODYS

    def _lose_something(self) -> None:
        losses = [
            self._drop_changelog,
            self._take_changelog_back,
            self._older_copy,
            self._drop_ledger,
            self._exchange_ledgers,
        ]
        losses += [self._restore_ledger]
        # Of a ledger and a changelog that are lost at once, only a destination's record tells.
        lost = why_lost(self._job(), self._state(), self.sink) or self.ledgers[self.current].is_cut
        if isinstance(self.sink, Recording) or not lost:
            self._rnd.choice(losses)()
        self._push()

    def _drop_changelog(self) -> None:
        self.changelog = self._new_changelog()

    def _take_changelog_back(self) -> None:
        """RESTORE TABLE."""
        if self.changelog.before is None and self.changelog.head > 1:
            before = self.changelog
            self.changelog = deepcopy(before)
            self.changelog.before = before
            self._cut(self._rnd.randint(1, before.head - 1))

    def _older_copy(self) -> None:
        """A backup in its place, in which the numbers of lost snapshots may be taken again."""
        if self.changelog.before is None and self.changelog.head > 1:
            self._cut(self._rnd.randint(1, self.changelog.head - 1))
            self._capture()

    def _cut(self, head: int) -> None:
        del self.changelog.images[head + 1 :]
        self.changelog.captures = {n: one for n, one in self.changelog.captures.items() if n <= head}

    def _drop_ledger(self) -> None:
        self.ledgers[self.current] = DeltaLike()

    def _exchange_ledgers(self) -> None:
        """Another target, of the same changelog and destination."""
        self.current = 1 - self.current

    def _restore_ledger(self) -> None:
        ledger = self.ledgers[self.current]
        if ledger.facts:
            del ledger.facts[self._rnd.randint(0, len(ledger.facts) - 1) :]
            ledger.restored = self.clock.now()
            self.clock.sleep(1)

    def _crash(self) -> None:
        self._death = self._rnd.randint(0, 12)
        self._push()
        self._death = -1

    def _push(self) -> None:
        try:
            result = run(self._job(), self._ports(), POLICY)
        except Killed:
            self.sink.claimed |= self.changelog.images[-1].keys()
            return
        except PositionLost as lost:
            self.seen.add(lost.push_status)
            self._operator(lost)
            return
        if result.status in (Status.SUCCEEDED, Status.IDLE) and not result.left:
            self._looks_well(result)
        elif result.left and self._rnd.random() < 0.5:
            self._look_at_leftovers()

    def _looks_well(self, result: RunResult) -> None:
        rows, model = self.sink.destination.rows, self.changelog.images[-1]
        ours = {key: value for key, value in rows.items() if self.sink.owners.get(key) is OURS}
        if ours != model:
            self.problems.append(f"{result.status}, but {ours} is not {model}")

    def _operator(self, lost: PositionLost) -> None:
        """Pushes once more, which must change nothing, then does what the message says."""
        self._death = -1
        if self._rnd.random() < 0.3:
            before = dict(self.sink.destination.rows)
            try:
                run(self._job(), self._ports(), POLICY)
            except PositionLost as again:
                if again.push_status != lost.push_status:
                    self.problems.append(f"{lost.push_status}, then {again.push_status}")
            else:
                self.problems.append(f"{lost.push_status} passes on the run after")
            if before != self.sink.destination.rows:
                self.problems.append(f"{lost.push_status} has sent something")
            return
        if isinstance(lost, RestoredChangelog) and self.changelog.before is not None and self._rnd.random() < 0.7:
            self.changelog = self.changelog.before
            return
        if isinstance(lost, OtherLedger) and self._rnd.random() < 0.2:
            self.current = 1 - self.current  # brings the other one back
            return
        rows = self.sink.destination.rows
        equal = {k: v for k, v in rows.items() if self.sink.owners.get(k) is OURS} == self.changelog.images[-1]
        self._ask("adopt" if equal and self._rnd.random() < 0.5 else "resync")

    def _ask(self, operation: str) -> None:
        self._runs += 1
        request = Request(f"request{self._runs}", "sync", operation, self.clock.now())
        state = self._state().for_spec(Spec().id, "{}")
        carry_out(request, state, self._job(), self._ports(), POLICY)

    def _look_at_leftovers(self) -> None:
        """Deletes what the sync has left, and says so."""
        for key in [*self.sink.destination.rows]:
            if self.sink.owners.get(key) is OURS and key not in self.changelog.images[-1]:
                del self.sink.destination.rows[key], self.sink.owners[key]
        state = self._state()
        if state.finished and state.is_at(self.changelog.head, Spec().id):
            with suppress(OtherLedger):  # it was restored, and says so
                deliver_again([], state, self._job(), self._ports(), "")

    def _state(self) -> State:
        return self.ledgers[self.current].read("s")

    def _job(self) -> Job:
        self._runs += 1
        task, owner = SinkTask("s", "sync", 0, "object", Mode.MIRROR, ("key",), SCHEMA), f"run{self._runs}"
        changelog = self.changelog
        said = {"mark": changelog.mark, "captures": changelog.captures}
        return Job(owner, changelog.name, changelog.head, Spec().id, "{}", task, owner, **said)

    def _ports(self) -> Ports:
        ledger = Telling(self.ledgers[self.current], self.changelog)
        return Ports(ledger, self._source_for, self.sink, self.clock, owner_alive=lambda owner: False, step=self._step)

    def _source_for(self, state: State) -> DictSource:
        return DictSource(self.changelog, state, self.changelog.head, Spec(), {Spec().id: Spec()})

    def _step(self, name: str) -> None:
        if self._death == 0:
            raise Killed
        self._death -= self._death > 0
