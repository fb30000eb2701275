"""What a push would send now: counts, and some keys."""

from __future__ import annotations

from typing import Any

from dbt_reverse_etl.delivery.counts import Counts
from dbt_reverse_etl.delivery.planning import listed
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Ports
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.undelivered import KEY
from dbt_reverse_etl.delivery.wave import count_operations
from dbt_reverse_etl.sinks.base import OPERATION, Mode
from dbt_reverse_etl.warehouse.pending import PendingRows


def preview(source: PendingRows, state: State, ports: Ports, policy: Policy, mode: Mode, rows: int) -> dict[str, Any]:  # noqa: PLR0913, PLR0917  (each is a part of the plan)
    """Of a `Report`: `planned`, `counts`, and a `sample` of at most `rows` rows that do not wait."""
    pending = source.planned().total
    far = ports.executors is not None and pending.total >= policy.executors_from
    wait = listed(source, state, ports.sink, mode, policy, ports.clock.now(), far=far).wait
    counted, keys = count_operations(wait.column(OPERATION)), {*wait.column(KEY).to_pylist()}
    found = source.sample(rows + len(keys)).to_pylist() if rows else []
    due = [(row[OPERATION], row[KEY]) for row in found if row[KEY] not in keys]
    return {"planned": pending - counted, "counts": Counts(planned=counted, skipped=counted), "sample": (*due[:rows],)}
