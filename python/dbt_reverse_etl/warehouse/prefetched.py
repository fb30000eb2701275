"""The ledger of one push, whose first read was answered before."""

from __future__ import annotations

from collections.abc import Callable

from dbt_reverse_etl.delivery.facts import RunStarted
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.warehouse.ledger import DeltaLedger


class Prefetched:
    """The ledger, but for the first read, which one query answered for all syncs. A run that started since then holds the next
    fence, so that this one cannot start. `begins` is called before each start, `began` after it.
    """

    def __init__(
        self, ledger: DeltaLedger, state: State, begins: Callable[[], None], began: Callable[[RunStarted], None]
    ) -> None:
        self._ledger, self._state, self._begins, self._began = ledger, state, begins, began
        self.append, self.fence, self.restored_at = ledger.append, ledger.fence, ledger.restored_at

    def start(self, started: RunStarted) -> State | None:
        """As the ledger's."""
        self._begins()
        before = self._ledger.start(started, self._state)
        if before is not None:
            self._began(started)
        return before

    def read(self, sync_id: str, fence: int | None = None) -> State:
        """As the ledger's."""
        return self._state if fence is None else self._ledger.read(sync_id, fence)
