"""The head of a changelog: its newest snapshot that changed a row, and the full image to begin with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pyspark.sql import SparkSession

from dbt_reverse_etl.base import sql
from dbt_reverse_etl.base.errors import Problem, ReverseEtlError

_PUT_ASIDE = re.compile(r"_before_([0-9]+)$")


@dataclass(frozen=True)
class Head:
    """The newest snapshot of a changelog that changed a row, from the newest header row.

    Attributes:
        base: snapshot of the newest full image.
        columns: name and Spark type of the model's columns.
        present: gives the Spark types of all columns of the table, by name.
        newest: gives the newest snapshot of the table, which may be after this one.
        marks: of the ledger that holds the positions of a sync, by its id; see `RunStarted`.
        newest_mark: number of the newest one.
        captures: uuid of the capture that made a snapshot, for those that were asked about.
    """

    snapshot: int
    changelog: str
    base: int
    live_rows: int
    key: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    package_version: str
    marks: dict[str, str] = field(default_factory=dict)
    newest_mark: int = 0
    captures: Mapping[int, str] = field(default_factory=dict)
    present: Callable[[], Mapping[str, str]] = dict
    newest: Callable[[], int] = int

    @property
    def names(self) -> list[str]:
        """The model's columns."""
        return [name for name, _ in self.columns]

    def image(self, relation: str) -> str:
        """SQL of the full image of the head."""
        return sql.render("_image", relation, self.key, self.names, self.base, self.snapshot)

    def spec_at(self, projection: Mapping[str, Any], snapshot: int) -> dict[str, Any]:
        """A spec of a snapshot, as the text macros take it, over the table as it is now."""
        columns = [{"name": name, "type": kind} for name, kind in self.columns]
        present = self.present() if snapshot else {}
        newest = max(self.captures, default=self.snapshot)
        if any(int(match[1]) > newest + 1 for match in map(_PUT_ASIDE.search, present) if match):
            newest = max(newest, self.newest())  # a push of an older snapshot; to ask costs a job
        spec: dict[str, Any] = sql.value_of("_spec_at", projection, snapshot, newest, present, columns)
        return spec


def read_head(
    spark: SparkSession, relation: str, snapshot: int | None = None, about: Iterable[int] = ()
) -> Head | None:
    """The newest snapshot, or the one that is asked for; None where there is none.

    Args:
        about: snapshots whose captures are asked about, too.

    Raises:
        ReverseEtlError: there is no such table.
    """
    if not spark.catalog.tableExists(relation):
        expected, next_step = "the changelog of a model that was run", "dbt run, with the target that you push"
        raise ReverseEtlError(Problem(relation, "no such table", expected, next_step))
    newest = cache(lambda: int(spark.sql(f"select max(_snapshot_id) from {relation}").collect()[0][0] or 0))  # noqa: S608
    snapshot = snapshot or newest()
    if not snapshot:
        return None
    headers, marks = _headers_and_marks(spark, relation, {int(snapshot), *about})
    header = headers.get(snapshot)
    if header is None:
        return None
    changed = header.get("changed") or snapshot
    if changed not in headers:
        headers |= _headers_and_marks(spark, relation, {changed})[0]
    return Head(
        snapshot=changed,
        changelog=header["changelog_uuid"],
        base=header["base"],
        live_rows=header["live_rows"],
        key=tuple(header["key_columns"]),
        columns=tuple((column["name"], column["type"]) for column in header["columns"]),
        package_version=header["package_version"],
        marks={row["label"]: row["capture_uuid"] for row in marks},
        newest_mark=marks[-1]["base"] if marks else 0,
        captures={number: one["capture_uuid"] for number, one in headers.items()},
        present=cache(lambda: dict(spark.table(relation).dtypes)),
        newest=newest,
    )


def _headers_and_marks(
    spark: SparkSession, relation: str, snapshots: Iterable[int]
) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """The headers by snapshot, and what ledgers have marked, the oldest first."""
    found = spark.sql(sql.render("headers_and_marks", relation, sorted(snapshots))).collect()
    headers = {row[0]: json.loads(row[1]) for row in found if row[0] is not None}
    marks = (json.loads(row[1]) for row in found if row[0] is None)
    return headers, sorted(marks, key=lambda mark: mark["base"])


def visible_rows(spark: SparkSession, relation: str, head: Head, where: str) -> int:
    """Rows of the head that pass a filter."""
    return int(spark.sql(f"select count_if({where}) from ({head.image(relation)})").collect()[0][0])  # noqa: S608


def full_image(spark: SparkSession, relation: str, at: int) -> int:
    """The newest full image at or before a snapshot; of 0, the oldest one that is kept. Raises ReverseEtlError: the snapshot was pruned."""
    oldest = f"select coalesce(max(_header.base), 1) from {relation} where _change = 'pruned'"  # noqa: S608
    newest = f"select max(_header.base) from {relation} where _change = 'snapshot' and _snapshot_id = {int(at)}"  # noqa: S608
    found = spark.sql(newest if at else oldest).collect()[0][0]
    if found is None:
        gone, expected = f"snapshot {at}, which a sync refers to, pruned", "every snapshot from the oldest position on"
        next_step = "dbt run-operation forget --args '{sync: NAME}', and push: a first load"
        raise ReverseEtlError(Problem(relation, gone, expected, next_step))
    return int(found)


def name_ledger(spark: SparkSession, relation: str, head: Head, sync_id: str, mark: str) -> str:
    """Name in a changelog the ledger that holds the positions of a sync, once in its life. A warning if that cannot be written."""
    if head.marks.get(sync_id) == mark:
        return ""
    try:
        _write_mark(spark, relation, head, sync_id, mark)
        head.marks[sync_id] = mark
    except Exception as error:  # who may only read the changelog shall push all the same
        return f"the changelog cannot be written ({type(error).__name__}), so a ledger that is lost will not be noticed"
    return ""


def _write_mark(spark: SparkSession, relation: str, head: Head, sync_id: str, mark: str) -> None:
    """An append of one row: no other commit conflicts with it, as one would with a change of the table's properties."""
    form = spark.table(relation).schema["_header"].dataType.simpleString()
    number = head.newest_mark + 1
    said = {"changelog_uuid": head.changelog, "kind": "ledger", "label": sync_id, "capture_uuid": mark, "base": number}
    row = spark.sql(sql.render("mark", json.dumps(said), form))
    row.writeTo(relation).append()
