"""Identity of a sync, and the positions that the ledger holds under a name which it had before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dbt_reverse_etl.base.errors import Problem, Renamed
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.config.settings import Sync
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.warehouse.overview import Overview, Request

# The place of a Singer destination without `identity` is read from its settings, which an upgrade may do otherwise, as CHANGELOG says.
_MAY_BE_UPGRADED = "singer"
_UPGRADED = (
    "an upgrade names the place otherwise: every row goes there again, "
    "and rows that left the model since the last push before it are still there: delete them yourself"
)
_UPGRADED_PLAN = (
    "an upgrade names the place otherwise: if nothing was captured since the last push before it, "
    "and that left nothing undelivered, run the operation adopt now: only later changes are sent"
)


@dataclass(frozen=True)
class Former:
    """A position at the destination and object of a sync that no sync of this project has; `exposure`: the unique id under which it stands."""

    sync_id: str
    exposure: str
    state: State

    @property
    def sync(self) -> str:
        """The name of that exposure."""
        return self.exposure.rpartition(".")[2]


def sync_id(exposure: str, destination_type: str, identity: str, object_name: str) -> str:
    """Identity of a sync: another destination or object is another sync."""
    return hashlib.sha256("\0".join((exposure, destination_type, identity, object_name)).encode()).hexdigest()[:32]


def id_of(resolved: ResolvedSync, exposure: str | None = None) -> str:
    """Identity of a sync as it is configured now, or as it would be under another exposure."""
    destination, settings = resolved.destination, resolved.sync.settings
    identity = destination.sink(destination.settings).identity
    return sync_id(exposure or resolved.sync.position_of, destination.type, identity, settings.object)


def formers(resolved: ResolvedSync, overview: Overview) -> Iterator[Former]:
    """The newest first; those that hold nothing are left out."""
    newest = sorted(overview.started.items(), key=lambda one: one[1].at, reverse=True)
    for one, started in newest:
        state = overview.states[one]
        if one in overview.configured or (state.first and not state.claims and not state.undelivered):
            continue
        # An older version kept no exposure; then it was one of this project.
        project = resolved.sync.unique_id.rpartition(".")[0]
        named = [started.exposure] if started.exposure else [f"{project}.{name}" for name in overview.aliases[one]]
        for exposure in named:
            if id_of(resolved, exposure) == one:
                yield Former(one, exposure, state)


def former_of(resolved: ResolvedSync, changelog: str, overview: Overview) -> Former | None:
    """What the sync would leave behind if it began anew."""
    return next((one for one in formers(resolved, overview) if one.state.changelog == changelog), None)


def renamed(resolved: ResolvedSync, former: Former) -> Renamed:
    """A first load beside a position of the same rows would leave orphans: what it delivered, nobody would delete."""
    at = f"one of {former.sync} for {resolved.label}, at snapshot {former.state.position}, which no sync has any more"
    expected = "a sync that goes on where it was, or that is to start over"
    next_step = (
        f"renamed_from: {written_name(resolved, former)} takes the position over: only what changed since is sent, and what is gone is deleted. "
        f"Or dbt run-operation forget --args '{{sync: {former.sync}}}' gives it up: every row is sent again, "
        "and rows that it delivered and that are gone from the model stay there"
    )
    return Renamed(Problem(resolved.sync.name, f"no position of its own, and {at}", expected, next_step))


def written_name(resolved: ResolvedSync, former: Former) -> str:
    """As `renamed_from` takes it."""
    _, project, name = former.exposure.split(".")
    return name if project == resolved.sync.unique_id.split(".")[1] else f"{project}.{name}"


def requests_of(
    resolved: ResolvedSync, overview: Overview, others: Iterable[ResolvedSync], changelog: str = ""
) -> list[Request]:
    """What was asked of a sync, oldest first. A request names the exposure of the position and the place, which a rename keeps.

    Args:
        others: all syncs as configured now, disabled ones too.
        changelog: the one that there is now, if that is known; what was asked of it is open, whatever the clocks say.
    """
    sync, begun = resolved.sync, overview.started.get(id_of(resolved))
    taken = {one.name for one in _rest(sync, others) if one.position_of == sync.position_of}
    by_name = _exposures(sync, others)

    def is_mine(one: Request, name: str) -> bool:
        if name in taken or not one.is_at(sync.settings.destination, sync.settings.object):
            return False
        if name != sync.name and not (one.object and one.exposure):  # by an earlier build, or of no exposure
            return False
        return one.concerns(by_name if name == sync.name else [sync.position_of], sync.changelog.relation_name)

    def is_over(one: Request) -> bool:
        """An adopt of a changelog that was replaced before the newest run began."""
        kept = ("", changelog, begun.changelog if begun else "")
        return bool(begun and begun.changelog and one.changelog not in kept and one.at < begun.at)

    asked = [one for name, some in overview.requests.items() for one in some if is_mine(one, name)]
    return sorted((one for one in asked if not is_over(one)), key=lambda one: one.at)


def asked_elsewhere(resolved: ResolvedSync, overview: Overview, others: Iterable[ResolvedSync]) -> list[Request]:
    """What was asked of a sync since its newest run, at another place than its own: that of before, or of another target."""
    sync, begun = resolved.sync, overview.started.get(id_of(resolved))
    return [
        one
        for one in overview.requests.get(sync.name, ())
        if not one.is_at(sync.settings.destination, sync.settings.object)
        and one.concerns(_exposures(sync, others), sync.changelog.relation_name)
        and (begun is None or one.at > begun.at)
    ]


def _exposures(sync: Sync, others: Iterable[ResolvedSync]) -> set[str]:
    """What a request by the name of a sync may name: what was asked before `renamed_from` was written names the sync itself."""
    return {sync.position_of} | ({sync.unique_id} - {one.position_of for one in _rest(sync, others)})


def _rest(sync: Sync, others: Iterable[ResolvedSync]) -> list[Sync]:
    return [one.sync for one in others if one.sync.name != sync.name]


def left_elsewhere(resolved: ResolvedSync, overview: Overview, state: State, *, planned: bool = False) -> str:
    """What stays at the former place of a sync that starts over, or is at its present place already.

    Args:
        state: at the present place. A sync whose first push failed starts over; after `forget` it does so on purpose.
        planned: nothing is sent yet, so that a sync which only an upgrade moved can still go on where it was.
    """
    if state.position or state.fence > 1 or state.status == "forget":
        return ""
    own = id_of(resolved)
    if any(run.sync == resolved.sync.name and one != own for one, run in overview.started.items()):
        moved = "it had another destination, object or project before; the rows delivered there stay there"
        if resolved.destination.type != _MAY_BE_UPGRADED or getattr(resolved.destination.settings, "identity", None):
            return moved
        return f"{moved}. If you changed none of them, {_UPGRADED_PLAN if planned else _UPGRADED}"
    former = next((one for one in formers(resolved, overview) if one.state.changelog != state.changelog), None)
    if former is None:
        return ""
    # Several projects may write one ledger: what is no sync here may be one of another project.
    name = written_name(resolved, former)
    return f"{name}, which is no sync of this project, delivered rows of another changelog there; they stay there"
