"""What a destination holds against what its sync delivered, key by key, and how what differs is delivered again.

The rows of the destination are written beside the ledger and compared there, by the hash that tells changes: one scan of each side, one join.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import BooleanType

from dbt_reverse_etl.base import sql
from dbt_reverse_etl.base.errors import ExitCode, Problem, ReverseEtlError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.delivery.counts import DELETE, INSERT, UPDATE
from dbt_reverse_etl.delivery.facts import Undelivered
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.warehouse.head import Head
from dbt_reverse_etl.warehouse.held import History, Others
from dbt_reverse_etl.warehouse.pending import undelivered_view
from dbt_reverse_etl.warehouse.spec import Spec

MISSING, DIFFERENT, EXTRA = "missing", "different", "extra"
DUPLICATE = "duplicate"  # several rows have the key, which no push makes one
FOREIGN, LEFTOVER = "foreign", "leftover"  # nobody's of ours; one of the two, and nobody knows which
MOST_REPAIRED = 10_000  # the ledger keeps each such row until it is delivered
_STORE, _LEFT_BEHIND = "reverse_etl_reconcile_", timedelta(days=1)
_MADE = re.compile(r"([0-9]{14})_[0-9a-f]{8}")
# What a mode keeps equal; duplicate and foreign keys are shown in every mode.
_KEPT = {
    Mode.MIRROR: (MISSING, DIFFERENT, EXTRA, LEFTOVER),
    Mode.CHANGELOG: (MISSING, DIFFERENT, EXTRA, LEFTOVER),
    Mode.UPSERT: (MISSING, DIFFERENT),
    Mode.INSERT_ONLY: (MISSING,),
    Mode.UPDATE_ONLY: (DIFFERENT,),
}
_KINDS = (MISSING, DIFFERENT, DUPLICATE, EXTRA, LEFTOVER, FOREIGN)
_OPERATION = {MISSING: INSERT, DIFFERENT: UPDATE, EXTRA: DELETE, LEFTOVER: DELETE}


@dataclass(frozen=True)
class Delivered:
    """What a sync delivered: the image of its changelog at its position, through its spec, but for the undelivered rows.

    Attributes:
        others: other syncs of the object.
        nan_is_null: see `Sink.is_nan_null`.
        history: what it delivered before; None: nobody knows.
        left: it may have delivered rows that are not in the history.
    """

    relation: str
    head: Head
    spec: Spec
    sync_id: str
    others: Others
    nan_is_null: bool
    undelivered: Sequence[Undelivered] = ()
    history: History | None = None
    left: bool = True


@dataclass(frozen=True)
class Difference:
    """One key that differs.

    Attributes:
        kind: missing; different; duplicate: several rows have it; extra: the sync delivered it, or may have; foreign: it did not; leftover: nobody knows.
        expected_hash: of the row that was delivered; None: there should be no row.
        changed: snapshot of the key's last change; 0 where the changelog does not tell.
    """

    key: str
    kind: str
    bucket: int
    expected_hash: int | None
    changed: int


@dataclass(frozen=True)
class Differences:
    """How many keys differ, by kind, and the first of them. `rows`: how many the destination holds."""

    rows: int
    counts: Mapping[str, int]
    first: Sequence[Difference]

    @property
    def wrong(self) -> int:
        """Keys that a repair would deliver; foreign and duplicate ones are left alone, and leftovers if nobody says otherwise."""
        return sum(count for kind, count in self.counts.items() if kind not in (FOREIGN, LEFTOVER, DUPLICATE))

    @property
    def foreign(self) -> int:
        """Rows of others."""
        return self.counts[FOREIGN]

    @property
    def duplicate(self) -> int:
        """Keys that several rows have."""
        return self.counts[DUPLICATE]


@dataclass(frozen=True)
class Reconciled:
    """What became of one sync in this reconcile; without differences where it could not be compared. `repaired`: rows that the next push delivers again."""

    sync: str
    destination: str
    exit_code: ExitCode
    differences: Differences | None
    seconds: float
    message: str
    repaired: int = 0


def differences(
    spark: SparkSession, delivered: Delivered, found: Iterable[pa.Table] | DataFrame, ledger: str, now: datetime
) -> Differences:
    """Compare what `Sink.read` found with what was delivered. `ledger`: relation of the ledger; until they are compared, the rows are in a table beside it."""
    schema, _, _ = ledger.rpartition(".")
    _drop_left_behind(spark, schema, now)
    with ExitStack() as until_read:
        store, rows = until_read.enter_context(_stored(spark, schema, delivered.spec, found, now))
        frame = _read_once(_compared(spark, delivered, store, until_read), until_read)
        if EXTRA in _counts(frame):
            frame = _told_apart(spark, delivered, frame, until_read)
        kept = frame.where(F.col("_difference").isin(*_KEPT[delivered.spec.mode], FOREIGN, DUPLICATE))
        frame = _read_once(kept, until_read)
        counts = _counts(frame)
        columns = ["_key", "_difference", "_bucket", "_after_hash", "_changed"]
        ours = F.col("_difference").isin(MISSING, DIFFERENT, EXTRA)
        first = frame.where(ours).orderBy("_difference", "_key").limit(MOST_REPAIRED)
        others = frame.where(~ours).orderBy("_difference", "_key").limit(MOST_REPAIRED)
        listed = [Difference(*row) for some in (first, others) for row in some.select(columns).collect()]
    return Differences(rows, {kind: counts.get(kind, 0) for kind in _KINDS}, listed)


def _read_once(frame: DataFrame, until_read: ExitStack) -> DataFrame:
    """Rows that are few, and for which many are read."""
    kept = frame.persist()
    until_read.callback(kept.unpersist)
    return kept


def _counts(frame: DataFrame) -> dict[str, int]:
    return {row[0]: row[1] for row in frame.groupBy("_difference").count().collect()}


def _compared(spark: SparkSession, delivered: Delivered, store: str, until_read: ExitStack) -> DataFrame:
    """The rows of the macro `reconciled`; foreign keys are among the extra ones. The view stays: Spark Connect resolves each query when it is read."""
    view = undelivered_view(spark, delivered.undelivered)
    if view:
        until_read.callback(spark.catalog.dropTempView, view)
    head, spec = delivered.head, delivered.spec
    return spark.sql(
        sql.render(
            "reconciled",
            relation=delivered.relation,
            key=head.key,
            columns=head.names,
            base=head.base,
            head=head.snapshot,
            **spec.projection,
            sync_id=delivered.sync_id,
            spec_id=spec.id,
            mode=spec.mode.value,
            found=store,
            undelivered=view,
            nan_is_null=delivered.nan_is_null,
        )
    )


def _told_apart(spark: SparkSession, delivered: Delivered, frame: DataFrame, until_read: ExitStack) -> DataFrame:
    """The same, foreign keys told from extra ones: for this the history of these keys is read."""
    compared, extra = (f"reverse_etl_{use}_{uuid.uuid4().hex}" for use in ("compared", "extra"))
    frame.createTempView(compared)
    frame.where(F.col("_difference") == EXTRA).select("_key").createTempView(extra)
    for view in (compared, extra):
        until_read.callback(spark.catalog.dropTempView, view)
    history, others, head = delivered.history, delivered.others, delivered.head
    rows = f"select *, {sql.render('_key_json', head.key)} as _key from ({head.image(delivered.relation)})"  # noqa: S608
    text = sql.render(
        "told_apart",
        compared,
        history.held(delivered.spec, extra, nan_is_null=delivered.nan_is_null) if history else None,
        LEFTOVER if delivered.left and delivered.spec.mode.deletes else FOREIGN,
        list(others.filters),
        rows if others.filters else None,
        elsewhere=others.elsewhere,
    )
    return spark.sql(text)


@contextmanager
def _stored(
    spark: SparkSession, schema: str, spec: Spec, found: Iterable[pa.Table] | DataFrame, now: datetime
) -> Iterator[tuple[str, int]]:
    """The rows as a table of Spark, and their number."""
    store = f"{schema}.{_STORE}{now:%Y%m%d%H%M%S}_{uuid.uuid4().hex[:8]}"
    struct = spec.struct().add(UNREADABLE, BooleanType())
    frames = [found] if isinstance(found, DataFrame) else (spark.createDataFrame(table, struct) for table in found)
    try:
        spark.createDataFrame([], struct).write.format("parquet").saveAsTable(store)
        for frame in frames:
            frame.write.format("parquet").mode("append").saveAsTable(store)
        yield store, spark.table(store).count()
    finally:
        spark.sql(f"drop table if exists {store}")


def _drop_left_behind(spark: SparkSession, schema: str, now: datetime) -> None:
    """Tables of a reconcile that was killed; a day later none can still be using them."""
    for row in spark.sql(f"show tables in {schema} like '{_STORE}*'").collect():
        made = _MADE.fullmatch(row.tableName.removeprefix(_STORE))
        if made and made[1] < f"{now - _LEFT_BEHIND:%Y%m%d%H%M%S}":
            spark.sql(f"drop table if exists {schema}.{row.tableName}")


def undelivered_of(found: Differences, sync: str, now: datetime, *, deleted: bool = False) -> list[Undelivered]:
    """What the ledger is told, so that the next push delivers what differs.

    Args:
        deleted: leftovers are deleted, as many as the ledger can list.

    Raises:
        ReverseEtlError: too much differs.
    """
    if found.wrong > MOST_REPAIRED:
        text = f"{found.wrong} rows differ"
        next_step = f"dbt run-operation resync --args '{{sync: {sync}}}', and push: every row is sent again"
        raise ReverseEtlError(Problem(sync, text, f"{MOST_REPAIRED} at most for a repair", next_step))
    repaired = _OPERATION if deleted else {MISSING, DIFFERENT, EXTRA}
    return [_undelivered(one, now) for one in found.first if one.kind in repaired]


def _undelivered(one: Difference, now: datetime) -> Undelivered:
    """In doubt, so that it is sent whatever its net change is."""
    return Undelivered(
        key=one.key,
        bucket=one.bucket,
        before_hash=one.expected_hash if one.kind == DIFFERENT else None,
        after_hash=one.expected_hash,
        maybe=_OPERATION[one.kind] == DELETE,
        doubt=True,
        changed=0 if one.kind == LEFTOVER else one.changed,
        operation=_OPERATION[one.kind],
        outcome=Outcome.UNKNOWN.value,
        reason=f"reconcile found it {one.kind}",
        attempts=0,
        first_failed_at=now,
        next_attempt_at=None,
        asked_by=f"repair {now:%Y%m%dT%H%M%S.%f}",
    )
