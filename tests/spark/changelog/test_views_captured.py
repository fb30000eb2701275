"""What stands on captured changelogs: dbt's own snapshots beside them, an import of history, and sums that follow the changes."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from dbt_reverse_etl.base.sql import render
from tests.support import ROOT
from tests.support.dbt.project import Project, Result

pytestmark = pytest.mark.full

DAYS = 3
SCHEMA = "views_captured"
TYPE = "customer_id bigint, name string, plan string, lifetime_value decimal(10,2)"
COLUMNS = ["customer_id", "name", "plan", "lifetime_value"]
SOURCE = f"select * from {SCHEMA}.customers"
SNAPSHOT = (
    "{{% snapshot {name} %}}{{{{ config(unique_key='customer_id', strategy='check', file_format='delta', {config}) }}}}"
    + SOURCE
    + "{{% endsnapshot %}}"
)
SNAPSHOTS = {
    "by_invalidate": "check_cols='all', hard_deletes='invalidate'",
    "by_new_record": "check_cols='all', hard_deletes='new_record'",
    "by_plan": "check_cols=['plan'], hard_deletes='invalidate'",
}
THINGS = {
    1: "select id, 'a' as name from range(3)",
    2: "select id, 'a' as name, if(id = 1, 'x', null) as extra from range(3)",
    3: "select id, 'a' as name from range(3)",
    4: "select id, 'a' as name, if(id = 2, 'y', null) as extra from range(3)",
    5: "select id, 'a' as title, if(id = 2, 'y', null) as extra from range(3)",
}
EXAMPLE = ROOT / "examples" / "aggregate" / "models"

Image = dict[int, tuple[Any, ...]]


def random_days(rng: random.Random) -> Iterator[Image]:
    """Deletes, customers that come back as they were or changed, NULLs, and values that differ in nothing but NULL and ''."""
    image: Image = {}
    for _ in range(DAYS + 1):
        for key in rng.sample(range(300), 150):
            if rng.random() < 0.35:
                image.pop(key, None)
            else:
                value = rng.choice([None, Decimal(rng.randrange(-500, 500)) / 100])
                image[key] = (rng.choice([None, "", "a|b"]), rng.choice([None, "", "free", "pro"]), value)
        yield dict(image)


@pytest.fixture(scope="module")
def days() -> list[Image]:
    return list(random_days(random.Random(20240229)))


def put(project: Project, day: int, days: list[Image]) -> None:
    """The input of a day: the customers, and things whose columns change."""
    frame = project.spark.createDataFrame([(key, *values) for key, values in days[day - 1].items()], TYPE).coalesce(1)
    frame.write.saveAsTable(f"{SCHEMA}.day_{day}")
    project.table("customers", f"select * from {SCHEMA}.day_{day}")
    project.changelog("things_changelog", THINGS[day], settings={"on_column_change": "sync_all_columns"})


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, days: list[Image]) -> Project:
    """A project that was built on each day but the last."""
    project = Project(tmp_path_factory.mktemp("captured") / "shop", spark, SCHEMA)
    for name in ("customers_changelog", "imported_changelog", "copied_changelog"):
        project.changelog(name, SOURCE, "customer_id")
    for file in EXAMPLE.glob("*.sql"):
        (project.folder / "models" / file.name).write_text(file.read_text(encoding="utf-8"))
    (project.folder / "snapshots").mkdir()
    for name, config in SNAPSHOTS.items():
        (project.folder / "snapshots" / f"{name}.sql").write_text(SNAPSHOT.format(name=name, config=config))
    for day in range(1, DAYS + 1):
        put(project, day, days)
        result = project.dbt("build", "--select", "customers_changelog+", "things_changelog", "resource_type:snapshot")
        assert result.success, result.text
        assert_sums(project, days[day - 1])
    return project


@pytest.fixture(scope="module")
def last_day(shop: Project, days: list[Image]) -> Project:
    """The days before, imported into two changelogs in two ways; then the last day, captured by all."""
    shop.table(
        "copies",
        " union all ".join(
            f"select *, date'2024-01-0{day}' as day, true as is_extra from {SCHEMA}.day_{day}"
            for day in range(1, DAYS + 1)
        ),
    )
    assert shop.dbt("run", "--empty", "--select", "imported_changelog", "copied_changelog").success
    for done in (
        imported(shop, "imported_changelog", "by_new_record"),
        imported(
            shop, "copied_changelog", "copies", date_column="day", label="date(_captured_at)", leave_out=["is_extra"]
        ),
    ):
        assert done.success, done.text
    put(shop, DAYS + 1, days)
    result = shop.dbt(
        "run", "--select", "customers_changelog+", "things_changelog", "imported_changelog", "copied_changelog"
    )
    assert result.success, result.text
    return shop


def assert_sums(project: Project, image: Image) -> None:
    """The incremental sums are those of a full recomputation."""
    sums: dict[str | None, list[Any]] = {}
    for _, plan, value in image.values():
        group = sums.setdefault(plan, [0, None])
        group[0] += 1
        group[1] = group[1] if value is None else value + (group[1] or 0)
    found = project.rows("select plan, customers, lifetime_value from {s}.plan_totals")
    assert Counter(map(tuple, found)) == Counter((plan, *group) for plan, group in sums.items())


def dbt_versions(project: Project, snapshot: str, *columns: str) -> Counter[tuple[Any, ...]]:
    """The versions of a dbt snapshot; its times are as many as the days, so their ranks are the days."""
    rows = project.rows(
        f"with times as (select time, row_number() over (order by time) as day from (select dbt_valid_from as time from {{s}}.{snapshot} "
        f"union select dbt_valid_to from {{s}}.{snapshot}) where time is not null) "
        f"select {', '.join(columns)}, first.day, last.day from {{s}}.{snapshot} join times first on first.time = dbt_valid_from "
        "left join times last on last.time = dbt_valid_to"
    )
    return Counter(map(tuple, rows))


def versions(
    project: Project, *columns: str, changelog: str = "customers_changelog", **options: Any
) -> Counter[tuple[Any, ...]]:
    relation = render("scd2", f"{SCHEMA}.{changelog}", key="customer_id", **options)
    query = f"select {', '.join(columns)}, valid_from_snapshot, valid_to_snapshot from {relation}"
    return Counter(map(tuple, project.spark.sql(query).collect()))


def changes(project: Project, changelog: str, until: int) -> Counter[tuple[Any, ...]]:
    """The rows of a changelog, but for its headers and whole images."""
    columns = ", ".join(["_change", "_snapshot_id", "_row_hash", *COLUMNS])
    rows = project.rows(
        f"select {columns} from {{s}}.{changelog} where _change not in ('snapshot', 'checkpoint') and _snapshot_id <= {until}"
    )
    return Counter(map(tuple, rows))


@pytest.mark.guarantee("Capture")
def test_scd2_holds_the_versions_of_dbts_own_snapshot(shop: Project) -> None:
    found = versions(shop, *COLUMNS)
    assert len(found) > 150
    assert found == dbt_versions(shop, "by_invalidate", *COLUMNS)


def test_scd2_holds_the_versions_of_dbts_snapshot_with_a_record_for_each_deleted_row(shop: Project) -> None:
    records = dbt_versions(shop, "by_new_record", *COLUMNS, "dbt_is_deleted")
    assert versions(shop, *COLUMNS) == Counter(
        {(*row[:4], *row[5:]): count for row, count in records.items() if row[4] == "False"}
    )
    gaps = shop.rows(
        f"select customer_id, after.customer_id is null as is_gone from {render('changes', f'{SCHEMA}.customers_changelog')} "
        f"left join {render('current', f'{SCHEMA}.customers_changelog', key='customer_id')} after using (customer_id) where _change = 'delete'"
    )
    assert len(gaps) == sum(row[4] == "True" for row in records.elements()) > 10


def test_scd2_with_tracked_columns_has_the_intervals_of_a_snapshot_that_checks_them(shop: Project) -> None:
    columns = ["customer_id", "plan"]
    assert versions(shop, *columns, tracked="plan") == dbt_versions(shop, "by_plan", *columns)


@pytest.mark.guarantee("Capture")
def test_imported_history_is_what_would_have_been_captured(last_day: Project) -> None:
    """From a dbt snapshot and from dated copies; the run after it captures the difference."""
    captured = changes(last_day, "customers_changelog", DAYS + 1)
    assert len(captured) > 300
    assert changes(last_day, "imported_changelog", DAYS + 1) == captured
    assert changes(last_day, "copied_changelog", DAYS + 1) == captured


def test_the_headers_of_imported_snapshots_count_what_they_hold(last_day: Project) -> None:
    names = ("customers_changelog", "imported_changelog", "copied_changelog")
    columns = "snapshot_id, inserts, updates, deletes, live_rows"
    headers = [
        last_day.rows(f"select {columns} from {render('snapshots', f'{SCHEMA}.{name}')} order by 1") for name in names
    ]
    assert headers[0] == headers[1] == headers[2]
    found = last_day.rows(
        f"select kind, captured_at, base, label from {render('snapshots', f'{SCHEMA}.copied_changelog')} order by snapshot_id"
    )
    days = [datetime.datetime(2024, 1, day) for day in range(1, DAYS + 1)]
    assert [(row.kind, row.captured_at, row.label) for row in found[:DAYS]] == [
        ("import", day, str(day.date())) for day in days
    ]
    assert found[DAYS].kind == "capture"
    assert [row.base for row in found[:DAYS]] == [1, 1, DAYS], "a full image stands at the last one, for the next diff"


def test_an_import_that_would_lose_or_mix_something_is_refused(last_day: Project) -> None:
    last_day.table(
        "twice",
        f"select * except (is_extra) from {SCHEMA}.copies union all select * except (is_extra) from {SCHEMA}.copies where day = '2024-01-02'",
    )
    last_day.changelog("empty_changelog", SOURCE, "customer_id")
    assert "a changelog that has snapshots" in imported(last_day, "copied_changelog", "copies", date_column="day").text
    assert "found no table; expected an empty changelog" in imported(last_day, "empty_changelog", "copies").text
    assert last_day.dbt("run", "--empty", "--select", "empty_changelog").success
    refused = imported(last_day, "empty_changelog", "copies", is_deleted="is_gone").text
    assert "column day, which the model has not" in refused
    assert "no column dbt_valid_from" in refused
    assert "no column is_gone; expected the one that marks deletions" in refused, "or each deleted row would live on"
    assert "If it marks deletions: is_deleted: is_extra" in refused
    for mark, problem in (
        (
            "if(dbt_is_deleted = 'True', 1, 0)",
            "column dbt_is_deleted of type int; expected boolean, or the texts 'true'",
        ),
        ("if(dbt_is_deleted = 'True', 'Y', 'false')", "rows whose is_deleted is neither 'true' nor 'false' in"),
    ):
        last_day.table(
            "marked", f"select * except (dbt_is_deleted), {mark} as dbt_is_deleted from {SCHEMA}.by_new_record"
        )
        assert problem in imported(last_day, "empty_changelog", "marked").text, "or each deleted row would live on"
    for label, problem in (("null", "without a label"), ("100 - day(_captured_at)", "smaller than the one before")):
        refused = imported(
            last_day, "empty_changelog", "copies", date_column="day", label=label, leave_out="is_extra"
        ).text
        assert problem in refused
        assert "correct label in --args" in refused
    refused = imported(last_day, "empty_changelog", "twice", date_column="day").text
    assert "rows that share their key with another one at the same time" in refused
    for relation, problem in (
        (f"spark_catalog.{SCHEMA}.nothing", "which is not there"),
        (f"archive.{SCHEMA}.copies", "in another catalog; expected a table or a view, as schema.name"),
        ("`copies.daily`", "which is not there"),
    ):
        given = {"model": "empty_changelog", "relation": relation, "date_column": "day"}
        asked = last_day.dbt("run-operation", "import_history", "--args", yaml.safe_dump(given))
        assert f"relation: '{relation}', {problem}" in asked.text, "and not the table of that name in this catalog"
    assert last_day.rows("select count(*) as n from {s}.empty_changelog")[0].n == 0


def test_no_column_of_a_model_meets_a_name_of_the_import(last_day: Project) -> None:
    names = (
        "change",
        "_from",
        "_until",
        "_valid_from",
        "_valid_to",
        "_before_from",
        "begins",
        "_moment",
        "_period",
        "ends",
        "exploded",
        "held",
    )
    query = f"select id, {', '.join(f'id * 10 + day as {name}' for name in names)}"
    last_day.table(
        "named",
        f"{query}, date_add(date'2024-01-01', day) as at from range(3) as t (id), (select explode(sequence(0, 2)) as day)",
    )
    last_day.changelog("named_changelog", f"{query.replace('+ day', '+ 2')} from range(3)")
    assert last_day.dbt("run", "--empty", "--select", "named_changelog").success
    done = imported(last_day, "named_changelog", "named", date_column="at")
    assert done.success, done.text
    assert last_day.dbt("run", "--select", "named_changelog").messages["named_changelog"] == "+0 ~0 -0, snapshot 3"
    second = last_day.rows(
        f"select change, _from from {render('as_of', f'{SCHEMA}.named_changelog', key='id', columns=['change', '_from'], snapshot=2)}"
    )
    assert sorted(map(tuple, second)) == [(1, 1), (11, 11), (21, 21)]


def test_a_capture_that_began_before_an_import_adds_nothing_to_it(last_day: Project) -> None:
    """It would commit snapshot 1, with this very option; Delta sees that the import came first."""
    before = last_day.rows("select count(*) as n from {s}.imported_changelog")
    last_day.rows(
        "insert into {s}.imported_changelog with (txnAppId = 'changelog', txnVersion = '1') by name "
        "select 'snapshot' as _change, 1L as _snapshot_id"
    )
    assert last_day.rows("select count(*) as n from {s}.imported_changelog") == before


def imported(project: Project, model: str, relation: str, **arguments: Any) -> Result:
    arguments |= {"model": model, "relation": f"{SCHEMA}.{relation}"}
    return project.dbt("run-operation", "import_history", "--args", yaml.safe_dump(arguments))


def test_columns_come_go_and_come_back_and_the_past_stays_readable(last_day: Project) -> None:
    assert things(last_day, 1) == [(0, "a", None), (1, "a", None), (2, "a", None)]
    assert things(last_day, 2) == [(0, "a", None), (1, "a", "x"), (2, "a", None)]
    assert things(last_day, 3) == [(0, "a", None), (1, "a", None), (2, "a", None)]
    assert things(last_day, 4) == [(0, "a", None), (1, "a", None), (2, "a", "y")], (
        "no old value comes back with the name"
    )
    lived = render("scd2", f"{SCHEMA}.things_changelog", key="id", columns=["id", "extra"], tracked="extra")
    versions = [(row.id, row.extra, row.valid_from_snapshot) for row in last_day.rows(f"select * from {lived}")]
    assert len(versions) == 6
    assert set(versions) == {(0, None, 1), (1, None, 1), (1, "x", 2), (1, None, 3), (2, None, 1), (2, "y", 4)}


def test_a_renamed_column_keeps_its_history_under_the_new_name(last_day: Project) -> None:
    table = f"{SCHEMA}.things_changelog"
    last_day.spark.sql(f"alter table {table} set tblproperties ('delta.columnMapping.mode' = 'name')")
    last_day.spark.sql(f"alter table {table} rename column name to title")
    last_day.changelog("things_changelog", THINGS[5], settings={"on_column_change": "sync_all_columns"})
    assert last_day.dbt("run", "--select", "things_changelog").messages["things_changelog"] == "+0 ~3 -0, snapshot 5"
    assert things(last_day, 2, "title") == [(0, "a", None), (1, "a", "x"), (2, "a", None)]
    assert (
        things(last_day, 5, "title") == things(last_day, 4, "title") == [(0, "a", None), (1, "a", None), (2, "a", "y")]
    )


def things(project: Project, snapshot: int, name: str = "name") -> list[tuple[Any, ...]]:
    relation = render("as_of", f"{SCHEMA}.things_changelog", snapshot=snapshot, key="id", columns=["id", name, "extra"])
    return sorted(tuple(row) for row in project.rows(f"select * from {relation}"))


@pytest.mark.guarantee("Capture")
def test_sums_follow_a_rollback_and_count_nothing_twice(last_day: Project, days: list[Image]) -> None:
    """Each day before was checked when it was built."""
    assert_sums(last_day, days[DAYS])
    assert last_day.dbt("run-operation", "rollback", "--args", "{model: customers_changelog, to: 2}").success
    for _ in range(2):
        assert last_day.dbt("run", "--select", "plan_sums").success
        assert_sums(last_day, days[1])
        assert last_day.rows("select max(_snapshot_id) as n from {s}.plan_sums")[0].n == DAYS + 2
