"""What the ledger says of the syncs of a project: positions, requests, refusals, and what the channels of alerts have heard."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from dbt_reverse_etl.base.sql import plain_relation
from dbt_reverse_etl.delivery.facts import RunStarted
from dbt_reverse_etl.delivery.position import State

# The facts that belong to no run: of the tests of a changelog, of pushes that ended before a run began, of what channels have heard.
TESTS, REFUSED, ALERT = "tests", "push_refused", "alert"
OVER = "ok"
FAILING, RECOVERED = "failing", "recovered"  # what a channel hears


@dataclass(frozen=True)
class Request:
    """What a `dbt run-operation` asked of a sync: `resync`, `adopt` or `forget`; carried out once, by the next push.

    Attributes:
        changelog, snapshot: its head when `adopt` was asked for; empty: there was none, or an older version asked.
        exposure: unique id of that of the position; empty: the project had none of that name any more, or an older version asked.
        relation: of its changelog, which another target has elsewhere; empty: the same.
        destination, object: of the sync; empty: the same.
    """

    id: str
    sync: str
    operation: str
    at: datetime
    changelog: str = ""
    snapshot: int = 0
    exposure: str = ""
    relation: str = ""
    object: str = ""
    destination: str = ""

    @property
    def place(self) -> str:
        """Names where it was asked for, for messages."""
        return f"the object {self.object}{f' of {self.destination}' if self.destination else ''}"

    def is_at(self, destination: str, object_name: str) -> bool:
        """Whether it is for this place."""
        return self.destination in ("", destination) and self.object in ("", object_name)

    def concerns(self, exposures: Collection[str], relation: str) -> bool:
        """Whether it is for one of these exposures, over this relation of the changelog."""
        return self.exposure in ("", *exposures) and plain_relation(self.relation) in ("", plain_relation(relation))


@dataclass(frozen=True)
class Refusal:
    """A push that ended before a run began. Without `at`: now.

    Attributes:
        status: how it ended; `OVER`: nothing is in the way any more.
        sync_id, relation: of the sync, and of its changelog.
        fence: of the newest run that this push knew: clocks differ, and a run may have begun before this was recorded.
    """

    status: str = ""
    message: str = ""
    at: datetime | None = None
    sync_id: str = ""
    fence: int = 0
    relation: str = field(default="", compare=False)


@dataclass(frozen=True)
class Heard:
    """What the channels of alerts heard last of a sync.

    Attributes:
        word: `failing` or `recovered`, which is also what stands for silence.
        is_sure: False: a push was about to tell it, and may have been killed before.
        relation: of the changelog of the sync.
        former: the name under which they heard it, if the sync was renamed since.
    """

    word: str = RECOVERED
    is_sure: bool = True
    relation: str = field(default="", compare=False)
    former: str = field(default="", compare=False)


@dataclass(frozen=True)
class Overview:
    """What the ledger says of a number of syncs, from two queries.

    Attributes:
        states: by sync id: of every sync of these names; and of all others, if a configured one has no run yet.
        requests: by name, also others, oldest first, that no run has carried out.
        started: the first fact of the newest run, by sync id.
        failing: tests that have failed and not passed since, by the relation of their changelog.
        refusals: the newest one, by name; of this target, as `heard`.
        heard: by name.
        configured: ids of all syncs as they are configured now.
        aliases: sync id -> every name that it had.
    """

    states: dict[str, State] = field(default_factory=dict)
    requests: dict[str, list[Request]] = field(default_factory=dict)
    started: dict[str, RunStarted] = field(default_factory=dict)
    failing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    heard: dict[str, Heard] = field(default_factory=dict)
    configured: frozenset[str] = frozenset()
    aliases: dict[str, set[str]] = field(default_factory=dict)

    @property
    def reached(self) -> frozenset[int]:
        """The snapshots to which positions and claims refer, and whose captures are known."""
        return frozenset(snapshot for state in self.states.values() for snapshot in state.captures)

    def must_tell(self, sync: str) -> bool:
        """Whether a channel may believe that it fails: once it does not, that has to be said."""
        heard = self.heard.get(sync, Heard())
        return heard.word == FAILING or not heard.is_sure

    def refused(self, sync: str, sync_id: str) -> Refusal | None:
        """Why the newest push of a sync ended before a run began, if it did."""
        found, state = self.refusals.get(sync, Refusal(OVER)), self.states.get(sync_id, State())
        is_newest = (found.sync_id, found.fence) == (sync_id, state.fence)
        return found if is_newest and found.status != OVER else None
