"""The row by which a changelog names the ledger that holds the positions of a sync."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from dbt_reverse_etl.base import sql
from dbt_reverse_etl.warehouse.head import Head


def name_ledger(spark: SparkSession, relation: str, head: Head, sync_id: str, mark: str) -> str:
    """Say it where it is not said yet: once in a sync's life. What is to be told of it, if it cannot be said."""
    if head.marks.get(sync_id) == mark:
        return ""
    try:
        _write(spark, relation, head, sync_id, mark)
        head.marks[sync_id] = mark
    except Exception as error:  # who may only read the changelog shall push all the same
        return f"the changelog cannot be written ({type(error).__name__}), so a ledger that is lost will not be noticed"
    return ""


def _write(spark: SparkSession, relation: str, head: Head, sync_id: str, mark: str) -> None:
    """An append of one row: no other commit conflicts with it, as one would with a change of the table's properties."""
    form = spark.table(relation).schema["_header"].dataType.simpleString()
    number = head.newest_mark + 1
    said = {"changelog_uuid": head.changelog, "kind": "ledger", "label": sync_id, "capture_uuid": mark, "base": number}
    row = spark.sql(sql.render("mark", json.dumps(said), form))
    row.writeTo(relation).append()
