"""What all syncs of one push have in common, and the heads of their changelogs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import SparkSession

from dbt_reverse_etl.base.interrupts import apart
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.progress import Step, Watch, Watches, no_step
from dbt_reverse_etl.warehouse.head import Head, read_head
from dbt_reverse_etl.warehouse.ledger import DeltaLedger


@dataclass(frozen=True)
class HeadOfModel:
    """The head of a changelog as the model's own result told it, so that a sync at rest asks nothing.

    Attributes:
        capture: uuid of the capture that made it, where that is known.
    """

    snapshot: int
    changelog: str
    capture: str = ""

    @staticmethod
    def of(head: Head) -> HeadOfModel:
        """The same of a head that was read."""
        return HeadOfModel(head.snapshot, head.changelog, head.captures.get(head.snapshot, ""))


UNKNOWN_HEAD = HeadOfModel(0, "")


@dataclass
class PushContext:
    """What all syncs of one push share.

    Attributes:
        overrides: see `guards.check_guards`.
        known: by unique id of the changelog model.
        resolved: all syncs of the project.
        reached: snapshots to which positions and claims in the ledger refer.
        project_dir: where files stand that a sync's options name.
        interrupt: once it is set, every push ends after the requests that are under way.
        step: called at each fault point.
        watch: hears the numbers of each run while it is under way.
    """

    spark: SparkSession
    ledger: DeltaLedger
    policy: Policy = field(default_factory=Policy)
    clock: Clock = field(default_factory=Clock)
    invocation_id: str = ""
    overrides: Sequence[str] = ()
    known: Mapping[str, HeadOfModel] = field(default_factory=dict)
    resolved: Sequence[ResolvedSync] = ()
    reached: frozenset[int] = frozenset()
    project_dir: Path | None = None
    interrupt: threading.Event = field(default_factory=threading.Event)
    step: Step = no_step
    watch: Watch = field(default_factory=Watches)
    _heads: dict[tuple[str, int | None], Head | None] = field(default_factory=dict)
    _marks: dict[str, dict[str, str]] = field(default_factory=dict)
    _reading: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    @apart
    def head(self, relation: str, snapshot: int | None = None) -> Head | None:
        """The head of a changelog, or what was its head at a snapshot; asked once a push, for all syncs."""
        with self._reading[relation]:  # syncs that are pushed at once wait for one of them
            if (relation, snapshot) not in self._heads:
                head = read_head(self.spark, relation, snapshot, self.reached)
                # What one sync says of its ledger holds for the heads of other snapshots, too.
                if head is not None:
                    head = replace(head, marks=self._marks.setdefault(relation, head.marks))
                    self._heads[relation, head.snapshot] = head
                self._heads[relation, snapshot] = head
            return self._heads[relation, snapshot]
