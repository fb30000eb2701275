"""The pending rows of a sync: what a push sends, from one query."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from dbt_reverse_etl.base import sql
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.facts import BUCKETS, Claim, Range, Undelivered
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.delivery.streams import PERIOD, Stripes
from dbt_reverse_etl.delivery.waves import Histogram
from dbt_reverse_etl.sinks.ranges import union
from dbt_reverse_etl.warehouse.head import Head
from dbt_reverse_etl.warehouse.layout import partitions_of, places
from dbt_reverse_etl.warehouse.spec import Spec

_BINS = 1024
_MOST_LITERALS = 5000  # planning takes 0.7 s longer with so many


@dataclass(frozen=True)
class Pending:
    """`pending(sync)`: everything that the query of the design's section 3 needs.

    Attributes:
        kept: relation with the `_key` of rows that were delivered while deletes were not sent; no other row is deleted then.
        older_base: the full image to begin with, where that of the head is too new: see `needs_base`.
        extra: see `Sink.extra_columns`.
        places: see `layout.places`.
        shared_by: filters of other syncs of the object, whose rows are not deleted.
        mirrored_by: filters of mirrors of the object, which may have deleted a row that left them.
    """

    relation: str
    head: Head
    sync_id: str
    spec_id: str
    spec: Spec
    state: State
    kept: str | None = None
    older_base: int | None = None
    extra: tuple[str, ...] = ()
    places: Sequence[int] = (0,)
    shared_by: Sequence[str | None] = ()
    mirrored_by: Sequence[str | None] = ()

    def sql(self, undelivered: str | None) -> str:
        """SQL of the pending rows; `undelivered` is the relation of the undelivered rows, if there are any."""
        common = {
            "relation": self.relation,
            "key": self.head.key,
            "head": self.head.snapshot,
            **self.spec.projection,
            "mode": self.spec.mode.value,
            "sync_id": self.sync_id,
            "spec_id": self.spec_id,
            "places": self.places,
            "extra": list(self.extra),
            "buckets": self._buckets,
            "begun_by": self.state.mark if self.state.known_from else None,
        }
        if self._is_first_load:
            return sql.render("first_load", **common, columns=self.head.names, base=self.head.base)
        low, base = self._range
        then = {(one.spec, one.snapshot): self._projection(one.spec, one.snapshot) for one in self.state.positions}
        specs: list[dict[str, Any]] = []
        specs.extend(spec for spec in then.values() if spec not in specs)
        return sql.render(
            "pending",
            **common,
            low=low,
            base=base,
            segments=[
                {"hi": place.hi, "snapshot": place.snapshot, "spec": specs.index(then[place.spec, place.snapshot])}
                for place in self.state.positions
            ],
            specs=specs,
            claims=[*self._claims()],
            asked=[{"by": one.id, "lo": one.lo, "hi": one.hi} for one in self.state.claims if one.ordered],
            undelivered=self._listed(undelivered, low) if undelivered else None,
            kept=self.kept,
            shared_by=list(self.shared_by),
            mirrored_by=list(self.mirrored_by),
        )

    @property
    def _is_first_load(self) -> bool:
        listed = self.state.claims or self.state.undelivered or self.kept
        return not listed and all(place.snapshot == 0 for place in self._behind)

    @property
    def _behind(self) -> list[Range]:
        """Positions that are not at the head."""
        places, here = self.state.positions, (self.head.snapshot, self.spec_id)
        return [place for place in places if (place.snapshot, place.spec) != here]

    @property
    def _buckets(self) -> list[tuple[int, int]] | None:
        """What a crash left behind, so that the push after it plans only that; None: all, for single keys are listed."""
        if self.state.undelivered or self.kept or self._behind == [*self.state.positions]:
            return None
        left: list[Range | Claim] = [*self._behind, *self.state.claims]
        return [*union((place.lo, place.hi) for place in left)]

    @property
    def needs_base(self) -> int | None:
        """The snapshot at or before which a full image is needed, where that of the head is too new. 0: the oldest one that is kept."""
        if not self._needs_images:
            return None
        oldest = 0 if self.kept else self._oldest_image
        return oldest if oldest < self.head.base else None

    @cached_property
    def _range(self) -> tuple[int, int | None]:
        """Snapshots to read: the changes after the first number, or the image from the second on."""
        if not self._needs_images:
            return min(place.snapshot for place in self._places), None
        base = self.head.base if self.needs_base is None else self.older_base or 1
        return base, base

    @property
    def _places(self) -> tuple[Range | Claim, ...]:
        return (*self.state.positions, *self.state.claims)

    @cached_property
    def _needs_images(self) -> bool:
        """Changes do not tell where keys are at position 0 or at another spec, nor where too many literals would be needed."""
        oldest = min(place.snapshot for place in self._places)
        same = all(place.spec == self.spec_id for place in self._places) and not any(
            claim.everything for claim in self.state.claims
        )
        return not (same and oldest) or bool(self.kept) or len(self._changed_before(oldest)) > _MOST_LITERALS

    @property
    def _oldest_image(self) -> int:
        """The oldest snapshot whose image says what a destination may hold; position 0 holds nothing."""
        reached = [self.head.base, *(place.snapshot for place in self._places if place.snapshot)]
        if len(self.state.undelivered) > _MOST_LITERALS:
            reached += [row.changed for row in self.state.undelivered.values()]
        return min(reached)

    def _changed_before(self, low: int) -> list[int]:
        return sorted({row.changed for row in self.state.undelivered.values() if 0 < row.changed <= low})

    def _listed(self, relation: str, low: int) -> dict[str, Any]:
        """The undelivered rows. The columns of keys that the changelog does not know are made of their JSON."""
        unknown = self.spec.mode.deletes and any(not row.changed for row in self.state.undelivered.values())
        types = {name: kind for name, kind in self.head.columns if name in self.head.key}
        return {"relation": relation, "snapshots": self._changed_before(low), "unknown": types if unknown else None}

    def _claims(self) -> Iterator[dict[str, Any]]:
        """Those of one projection are one column of the query, in however many ranges they lie."""
        for number, alike in enumerate(dict.fromkeys(map(_alike, self.state.claims)), 1):
            snapshot, spec, everything, ordered = alike
            ranges = union((claim.lo, claim.hi) for claim in self.state.claims if _alike(claim) == alike)
            said = {"number": number, "ranges": ranges, "snapshot": snapshot, "everything": everything}
            yield {**said, "ordered": ordered, "spec": self._projection(spec, snapshot)}

    def _projection(self, spec: str, snapshot: int) -> dict[str, Any]:
        """At 0, where nothing is held, that of now: one more would be one more to compute."""
        if not snapshot:
            return self.spec.projection
        return self.head.spec_at(Spec.of(self.state.specs[spec]).seen_by(self.spec).projection, snapshot)


def _alike(claim: Claim) -> tuple[int, str, bool, bool]:
    return claim.snapshot, claim.spec, claim.everything, claim.ordered


class PendingRows:
    """`delivery.ports.Source`: the pending rows, evaluated once and kept by Spark until `close`."""

    def __init__(self, spark: SparkSession, pending: Pending) -> None:
        self._spark, self._kept = spark, pending.kept
        partitions = partitions_of(spark)
        self._stripes = Stripes(min(partitions, PERIOD))
        pending = replace(pending, places=places(self._stripes.count, partitions))
        self._view = undelivered_view(spark, list(pending.state.undelivered.values()))
        # Sorted, so that a wave reads only the cached batches of its buckets.
        rows = spark.sql(pending.sql(self._view)).sortWithinPartitions("_bucket")
        self._rows: DataFrame = rows.persist(StorageLevel.MEMORY_AND_DISK)

    def planned(self) -> Histogram:
        """Planned rows by bin of buckets and operation: an aggregate of its own, not a count of the stream."""
        return self._planned

    def planned_in(self, bucket: int) -> Histogram:
        """The same for one bucket, and nothing of the others."""
        return Histogram.of_bucket(bucket, operations_of(self.frame(bucket, bucket + 1)))

    @cached_property
    def _planned(self) -> Histogram:
        width = BUCKETS // _BINS
        grouped = self._rows.groupBy((F.col("_bucket") / width).cast("int").alias("bin"), "_operation")
        bins: list[dict[str, int]] = [{} for _ in range(_BINS)]
        rows = size = 0
        for row in grouped.agg(F.count("*").alias("rows"), F.sum(_bytes_of(self._rows)).alias("size")).collect():
            bins[row.bin][row._operation] = row["rows"]
            rows, size = rows + row["rows"], size + row["size"]
        return Histogram(tuple(PerOperation(**counted) for counted in bins), size // max(1, rows))

    def listed(self) -> pa.Table:
        """Those that the ledger lists; few columns, for the driver holds all of them."""
        rows = self._rows.select("_key", "_bucket", "_operation", "_after_hash", "_doubt")
        if self._view is None:
            return rows.limit(0).toArrow()
        return rows.join(self._spark.table(self._view).select("_key"), "_key", "left_semi").toArrow()

    def wave(self, lo: int, hi: int) -> pa.Table:
        """The pending rows of the buckets [lo, hi)."""
        rows = self.frame(lo, hi)
        return (rows if lo < hi else rows.limit(0)).toArrow()  # Spark plans no job for no row

    def frame(self, lo: int, hi: int) -> DataFrame:
        """The same rows, where they are."""
        return self._rows.where((F.col("_bucket") >= lo) & (F.col("_bucket") < hi))

    def stripes(self) -> Stripes | None:
        """How the rows lie, where each partition has all rows of the buckets that it has; None: Spark has put them elsewhere."""
        place = F.floor((F.col("_bucket").bitwiseAND(PERIOD - 1)) * self._stripes.count / PERIOD)
        parts = self._rows.groupBy(F.spark_partition_id()).agg(F.min(place).alias("lo"), F.max(place).alias("hi"))
        found = sorted((row["lo"], row["hi"]) for row in parts.collect())
        return self._stripes if all(left[1] < right[0] for left, right in pairwise(found)) else None

    def sample(self, rows: int) -> pa.Table:
        """A few pending rows: operation and key."""
        return self._rows.select("_operation", "_key").orderBy("_operation", "_key").limit(rows).toArrow()

    def close(self) -> None:
        """Give the memory back."""
        self._rows.unpersist()
        for view in filter(None, (self._view, self._kept)):
            self._spark.catalog.dropTempView(view)


def operations_of(rows: DataFrame) -> PerOperation:
    """Pending rows of each operation, counted by Spark."""
    return PerOperation(**{row._operation: row["count"] for row in rows.groupBy("_operation").count().collect()})


def _bytes_of(rows: DataFrame) -> Column:
    """About how large a row is. Texts tell their length for nothing; nested values are looked at in one row of 64."""
    size = F.lit(8 * len(rows.columns))
    for one in rows.schema.fields:
        column = F.col(sql.quoted(one.name))
        if isinstance(one.dataType, (StringType, BinaryType)):
            size += F.coalesce(F.octet_length(column), F.lit(0))
        elif isinstance(one.dataType, (ArrayType, MapType, StructType)):
            length = F.coalesce(F.octet_length(column.cast("string")), F.lit(0))
            size += F.when(F.col("_bucket") % 64 == 0, length * 64).otherwise(0)
    return size


def undelivered_view(spark: SparkSession, rows: Sequence[Undelivered]) -> str | None:
    if not rows:
        return None
    types = {"key": pa.string(), "before_hash": pa.int64(), "maybe": pa.bool_(), "doubt": pa.bool_()}
    types |= {"bucket": pa.int32(), "changed": pa.int64(), "asked_by": pa.string()}
    table = pa.table(
        {f"_{name}": pa.array([getattr(row, name) for row in rows], type_) for name, type_ in types.items()}
    )
    name = f"reverse_etl_undelivered_{uuid.uuid4().hex}"
    spark.createDataFrame(table).createTempView(name)
    return name
