"""Failed tests block until they pass, whatever the clocks of the machines say that recorded them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.warehouse.ledger import DeltaLedger

NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)
PEOPLE, ORDERS = "model.shop.people", "model.shop.orders"


@pytest.fixture
def ledger(spark: SparkSession) -> Iterator[DeltaLedger]:
    spark.sql("create schema if not exists clocks_of_tests")
    made = DeltaLedger(spark, "`clocks_of_tests`.`ledger`")
    made.create()
    yield made
    spark.sql("drop table clocks_of_tests.ledger")


@pytest.mark.full
@pytest.mark.guarantee(
    "dbt and its commands", "What was recorded last of a test counts, whatever the clocks of the machines say"
)
def test_a_test_that_passed_on_a_machine_whose_clock_is_behind_blocks_no_longer(ledger: DeltaLedger) -> None:
    ledger.record_tests({PEOPLE: ["test.shop.unique"], ORDERS: ["test.shop.not_null"]}, "first", NOW)
    ledger.record_tests({PEOPLE: []}, "second", NOW - timedelta(hours=1))
    failing = ledger.overview([PEOPLE, ORDERS]).failing
    assert failing == {PEOPLE: (), ORDERS: ("test.shop.not_null",)}
