"""Tables that a killed reconcile left: a later one drops them, and nobody else's."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock

from pyspark.sql import Row

from dbt_reverse_etl.app.reconcile import _drop_left_behind

NOW = datetime(2026, 3, 1)


def test_only_tables_that_a_reconcile_made_a_day_ago_are_dropped() -> None:
    old, young = (f"reverse_etl_reconcile_{NOW - timedelta(hours=ago):%Y%m%d%H%M%S}_0123abcd" for ago in (25, 23))
    foreign = [
        "reverse_etl_reconcile_2025_audit",
        "reverse_etl_reconcile_20250101",
        f"{old}_kept",
        "reverse_etl_reconcile_",
    ]
    said: list[str] = []

    def sql(query: str) -> Any:
        said.append(query)
        return Mock(collect=lambda: [Row(tableName=name) for name in (old, young, *foreign)])

    _drop_left_behind(Mock(sql=sql), "lake.etl", NOW)
    assert said[1:] == [f"drop table if exists lake.etl.{old}"]
