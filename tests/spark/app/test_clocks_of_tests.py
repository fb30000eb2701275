"""Failed tests block until they pass, whatever the clocks of the machines say that recorded them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.app.invocation import overview_of
from dbt_reverse_etl.warehouse.ledger import DeltaLedger
from dbt_reverse_etl.warehouse.overview import TESTS
from tests.support.delivery.pushers import sync

NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)
PEOPLE, ORDERS = "`shop`.`people`", "`shop`.`orders`"


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
    ledger.record(TESTS, {PEOPLE: ["test.shop.unique"], ORDERS: ["test.shop.not_null"]}, "first", NOW)
    ledger.record(TESTS, {PEOPLE: []}, "second", NOW - timedelta(hours=1))
    failing = ledger.overview([PEOPLE, ORDERS]).failing
    assert failing == {PEOPLE: (), ORDERS: ("test.shop.not_null",)}


@pytest.mark.full
def test_tests_that_an_older_version_recorded_block_until_they_pass(ledger: DeltaLedger) -> None:
    people = sync("crm_people", PEOPLE)
    changelog = replace(people.sync.changelog, unique_id="model.shop.people")
    known = [people._replace(sync=replace(people.sync, changelog=changelog))]
    ledger.record(TESTS, {"model.shop.people": ["test.shop.unique"]}, "older", NOW)
    assert overview_of(ledger, known).failing == {PEOPLE: ("test.shop.unique",)}
    ledger.record(TESTS, {PEOPLE: []}, "newer", NOW)
    assert overview_of(ledger, known).failing == {PEOPLE: ()}


@pytest.mark.full
@pytest.mark.guarantee("dbt and its commands")
def test_tests_that_failed_before_quoting_changed_block_until_they_pass(ledger: DeltaLedger) -> None:
    known = [sync("crm_people", PEOPLE)]
    other = PEOPLE.replace("`", "").upper()
    ledger.record(TESTS, {PEOPLE: ["test.shop.not_null"]}, "first", NOW)
    ledger.record(TESTS, {other: ["test.shop.unique"]}, "second", NOW)
    assert overview_of(ledger, known).failing == {PEOPLE: ("test.shop.unique",)}
    ledger.record(TESTS, {PEOPLE: []}, "third", NOW)
    assert overview_of(ledger, known).failing == {PEOPLE: ()}
