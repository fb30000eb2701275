"""What a push would send now: counts, some keys, and what the guards say of it."""

from __future__ import annotations

from typing import Any

from dbt_reverse_etl.base.errors import GuardBlocked
from dbt_reverse_etl.delivery.counts import Counts
from dbt_reverse_etl.delivery.planning import Counted, count
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Ports
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.undelivered import KEY
from dbt_reverse_etl.sinks.base import OPERATION, Mode
from dbt_reverse_etl.warehouse.pending import PendingRows


def preview(source: PendingRows, state: State, ports: Ports, policy: Policy, mode: Mode, rows: int) -> dict[str, Any]:  # noqa: PLR0913, PLR0917  (each is a part of the plan)
    """Of a `Report`: `planned`, `counts`, a `sample` of at most `rows` rows that do not wait, and as `message` why a push would be blocked."""
    pending = count(source, state, ports, policy, mode)
    keys, waiting = {*pending.wait.column(KEY).to_pylist()}, pending.histogram.total - pending.attempted
    found = source.sample(rows + len(keys)).to_pylist() if rows else []
    due = [(row[OPERATION], row[KEY]) for row in found if row[KEY] not in keys]
    return {
        "planned": pending.attempted,
        "counts": Counts(planned=waiting, skipped=waiting),
        "sample": (*due[:rows],),
        "message": _blocked(pending, state, ports),
    }


def _blocked(pending: Counted, state: State, ports: Ports) -> str:
    try:
        ports.guard(pending.attempted, pending.refused, state)
    except GuardBlocked as error:
        (problem,) = error.problems
        return f"a push would be blocked: {problem.found}. Next: {problem.next_step}"
    return ""
