"""What a push would send now: counts, some keys, and what the guards say of it."""

from __future__ import annotations

from typing import Any

from dbt_reverse_etl.base.errors import NEXT, GuardBlocked
from dbt_reverse_etl.delivery.counts import Counts
from dbt_reverse_etl.delivery.planning import Counted, count
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Ports
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.undelivered import KEY
from dbt_reverse_etl.sinks.base import OPERATION, Mode
from dbt_reverse_etl.warehouse.pending import PendingRows

BLOCKED = "a push would be blocked: "
_UNSETTLED = "a push first settles what an earlier run or a resync left, so its counts may be lower"


def preview(  # noqa: PLR0913, PLR0917  (each is a part of the plan)
    source: PendingRows, state: State, ports: Ports, policy: Policy, mode: Mode, rows: int, head: int
) -> dict[str, Any]:
    """Of a `Report`: `planned`, `counts`, a `sample` of at most `rows` rows that do not wait, and as `message` why a push would be blocked."""
    pending = count(source, state, ports, policy, mode)
    keys, waiting = {*pending.wait.column(KEY).to_pylist()}, pending.histogram.total - pending.attempted
    found = source.sample(rows + len(keys)).to_pylist() if rows else []
    due = [(row[OPERATION], row[KEY]) for row in found if row[KEY] not in keys]
    return {
        "planned": pending.attempted,
        "counts": Counts(planned=waiting, skipped=waiting),
        "sample": (*due[:rows],),
        "message": _blocked(pending, state, ports, is_settled_first=_is_settled_first(state, ports, mode, head)),
    }


def _is_settled_first(state: State, ports: Ports, mode: Mode, head: int) -> bool:
    """Whether a push asks the sink, or sends the events of an earlier run, before it counts: its counts may be others."""
    is_asked = ports.sink.transactional and any(not claim.everything for claim in state.claims)
    return is_asked or (mode is Mode.CHANGELOG and bool(state.unsettled_events(head)))


def _blocked(pending: Counted, state: State, ports: Ports, *, is_settled_first: bool) -> str:
    try:
        used = ports.guard(pending.attempted, pending.refused, state)
    except GuardBlocked as error:
        (problem,) = error.problems
        if is_settled_first:
            return f"{_UNSETTLED}: it may be blocked by {problem.found}"
        return f"{BLOCKED}{problem.found}{NEXT}{problem.next_step}"
    return f"{_UNSETTLED}, and the override may not hold" if used and is_settled_first else ""
