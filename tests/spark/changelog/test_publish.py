"""Publishing: readers see one whole snapshot under a stable name, and only one that passed its tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from dbt.adapters.spark.connections import SparkConnectionManager

from tests.support.dbt.operations import killed_after
from tests.support.dbt.project import Project


@pytest.fixture
def shop(project: Project) -> Project:
    project.on_run_end("{{ reverse_etl.publish(results) }}")
    project.changelog("things", f"select * from {project.schema}.source", settings={"publish": "live"})
    (project.folder / "tests").mkdir()
    (project.folder / "tests/no_negative.sql").write_text(
        "select * from {{ reverse_etl.current(ref('things')) }} where n < 0"
    )
    return project


def live(project: Project) -> list[int]:
    return [row.n for row in project.rows("select n from {s}.live order by n")]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_readers_see_the_newest_snapshot_that_passed_its_tests_and_prune_keeps_it(shop: Project) -> None:
    def build(query: str, *command: str) -> str:
        shop.table("source", query)
        return shop.dbt(*(command or ("build",)), "--exclude", "package:reverse_etl").text

    assert "live shows snapshot 1, 3 rows" in build("select id, id as n from range(3)")
    assert "publish things: not published, for tests did not pass: no_negative (fail)" in build(
        "select id, id - 1 as n from range(4)"
    )
    assert live(shop) == [0, 1, 2], "snapshot 2 is captured, and not shown"
    shop.dbt("build", "--exclude", "package:reverse_etl", "--empty")
    assert live(shop) == [0, 1, 2], "tests of no rows pass, and say nothing"

    pruned = shop.dbt("run-operation", "prune", "--args", "{model: things, keep: 1, dry_run: true}").text
    assert "the published view live needs snapshot 1" in pruned

    assert "not published, for 1 of its 1 tests have not run" in build("select id, id as n from range(5)", "run")
    assert live(shop) == [0, 1, 2]
    assert "live shows snapshot 3, 5 rows" in shop.dbt("test", "--exclude", "package:reverse_etl").text
    assert live(shop) == [0, 1, 2, 3, 4]
    assert "live shows" not in shop.dbt("build", "--exclude", "package:reverse_etl").text, "nothing is new"


# The statements of the hook, in their order, and what readers see where it was killed after one.
HOOK = {"show tblproperties": "old", "create or replace view": "new", "alter table": "new"}


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_run_that_is_killed_anywhere_in_the_hook_leaves_readers_a_whole_version_and_the_next_run_publishes_the_new_one(
    project: Project,
) -> None:
    project.on_run_end("{{ reverse_etl.publish(results) }}")
    project.changelog("things", f"select * from {project.schema}.source", settings={"publish": "live"})

    def run() -> str:
        return project.dbt("run", "--exclude", "package:reverse_etl", "--single-threaded").text

    def capture(number: int) -> None:
        project.table("source", f"select id, {number} as n from range({number})")
        run()

    capture(1)
    for number, (statement, seen) in enumerate(HOOK.items(), 2):
        with killed_after(1, (statement,)):
            capture(number)
        assert project.rows("select max(_snapshot_id) as newest from {s}.things")[0].newest == number, statement
        shown = number - 1 if seen == "old" else number
        assert live(project) == [shown] * shown, statement
        said = f"live shows snapshot {number}, {number} rows"
        assert (said in run()) is (statement != "alter table"), "what was recorded is not published again"
        assert live(project) == [number] * number, statement


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_snapshot_that_another_run_captured_meanwhile_waits_for_its_own_tests(shop: Project) -> None:
    def build(rows: int) -> str:
        shop.table("source", f"select id, id as n from range({rows})")
        return shop.dbt("build", "--exclude", "package:reverse_etl").text

    assert "live shows snapshot 1, 1 rows" in build(1)
    with a_bad_snapshot_before_the_hook(shop):
        text = build(1)
    assert MEANWHILE in text, text
    assert live(shop) == [0]
    shop.table("source", "select id, id as n from range(3)")
    assert shop.dbt("run", "--exclude", "package:reverse_etl").success
    with a_bad_snapshot_before_the_hook(shop):
        text = shop.dbt("test", "--exclude", "package:reverse_etl").text
    assert MEANWHILE in text, text
    assert live(shop) == [0]


MEANWHILE = "publish things: not published, for another run captured a newer snapshot meanwhile"


@contextmanager
def a_bad_snapshot_before_the_hook(shop: Project) -> Iterator[None]:
    """Another run, which began before the tests, commits rows that would fail them once they have run."""
    shop.table("source", "select id, -1L as n from range(2)")
    assert shop.dbt("run", "--exclude", "package:reverse_etl").success
    things, bad = f"{shop.schema}.things", f"{shop.schema}.bad_rows"
    commit = shop.spark.sql(f"describe history {things} limit 1").collect()[0]
    of_it = f"select * from {things} where _snapshot_id = (select max(_snapshot_id) from {things})"
    shop.spark.sql(f"create or replace table {bad} using delta as {of_it}")
    shop.spark.sql(f"restore table {things} to version as of {commit.version - 1}")
    real, captured = SparkConnectionManager.add_query, 0

    def add_query(self: Any, sql: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal captured
        if '"connection_name": "master"' in sql and not captured:
            captured = 1
            shop.spark.table(bad).writeTo(things).option("userMetadata", commit.userMetadata).append()
        return real(self, sql, *args, **kwargs)

    with patch.object(SparkConnectionManager, "add_query", add_query):
        yield
    assert captured


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_another_name_gets_a_view_at_once_and_a_reset_moves_no_view_before_the_tests_of_the_new_changelog_passed(
    shop: Project,
) -> None:
    def build(*command: str) -> str:
        return shop.dbt(*(command or ("build",)), "--exclude", "package:reverse_etl").text

    shop.table("source", "select id, id as n from range(3)")
    assert "live shows snapshot 1, 3 rows" in build()
    shop.spark.sql(f"create view {shop.schema}.ready as select -5 as n")
    shop.changelog("things", f"select * from {shop.schema}.source", settings={"publish": "ready"})
    assert "ready shows snapshot 1, 3 rows; live follows no longer: drop it" in build()
    assert [row.n for row in shop.rows("select n from {s}.ready order by n")] == [0, 1, 2]
    shop.table("taken", "select 1 as n")
    shop.changelog("things", f"select * from {shop.schema}.source", settings={"publish": "taken"})
    tested = shop.dbt("test", "--exclude", "package:reverse_etl")
    assert (tested.success, "not published, for 'taken' is the name of" in tested.text) == (True, True), tested.text

    shop.changelog("things", f"select * from {shop.schema}.source", settings={"publish": "live"})
    build()
    shop.table("source", "select id, -1L as n from range(2)")
    assert "live shows snapshot 1 of" in shop.dbt("run-operation", "reset", "--args", "{model: things}").text
    assert live(shop) == [0, 1, 2]
    assert "not published, for tests did not pass" in build()
    assert live(shop) == [0, 1, 2], "snapshot 1 of the new changelog is captured, and not shown"
    shop.table("source", "select id, id as n from range(2)")
    assert "live shows snapshot 2, 2 rows" in build()
    assert live(shop) == [0, 1]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_reset_that_is_killed_once_the_table_is_set_aside_is_ended_by_the_next_run_or_by_its_repeat(
    shop: Project,
) -> None:
    def build(query: str) -> str:
        shop.table("source", query)
        return shop.dbt("build", "--exclude", "package:reverse_etl").text

    def reset() -> str:
        return shop.dbt("run-operation", "reset", "--args", "{model: things}").text

    assert "live shows snapshot 1, 3 rows" in build("select id, id as n from range(3)")
    with killed_after(2, ("alter table",)):
        reset()
    assert "not published, for tests did not pass" in build("select id, -1L as n from range(2)")
    assert live(shop) == [0, 1, 2], "snapshot 1 of the new changelog is captured, and not shown"
    assert "live shows snapshot 2, 2 rows" in build("select id, id as n from range(2)")
    with killed_after(2, ("alter table",)):
        reset()
    assert "live shows snapshot 2 of" in reset()
    assert live(shop) == [0, 1]
    assert "found no such table" in reset()
    assert "live shows snapshot 1, 2 rows" in build("select id, id as n from range(2)")
    shop.rows("drop view {s}.live")
    reset()
    assert "live shows snapshot 1, 2 rows" in build("select id, id as n from range(2)")
    shop.rows("drop table {s}.things")
    text = build("select id, -1L as n from range(2)")
    assert "reset things: live shows" not in text, "a reset that was ended is not ended again"


@pytest.mark.guarantee("Capture")
def test_a_name_that_is_taken_by_a_table_is_refused_and_the_table_stays(shop: Project) -> None:
    shop.table("live", "select 'precious' as n")
    shop.table("source", "select id, id as n from range(2)")
    shop.changelog("fine", "select 1 as id", settings={"publish": "shown"})
    built = shop.dbt("build", "--exclude", "package:reverse_etl")
    assert "live, a table; expected a name of its own" in built.messages["things"]
    assert "shown shows snapshot 1, 1 rows" in built.text, "the hook goes on with the other one"
    assert shop.rows("select n from {s}.live")[0].n == "precious"

    shop.rows("drop table {s}.live")
    assert shop.dbt("run", "--select", "things").success
    shop.table("live", "select 'precious' as n")
    tested = shop.dbt("test", "--exclude", "package:reverse_etl")
    assert "things: not published, for 'live' is the name of" in tested.text
    assert "live, a table; expected a name of its own; next: take another one" in tested.text
    assert tested.success, "others are published"
    assert shop.rows("select n from {s}.live")[0].n == "precious"

    shop.changelog("others", "select 1 as id", settings={"publish": "LIVE"})
    shop.changelog("more", "select 1 as id", settings={"publish": "others"})
    text = shop.dbt("run", "--select", "others", "more").text
    assert "publish: found 'LIVE', the name of model.shop.things; expected a name of its own" in text
    assert "publish: found 'others', the name of model.shop.others; expected a name of its own" in text


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_view_whose_name_spark_hides_among_the_properties_is_kept_and_moved_as_any_other(project: Project) -> None:
    project.on_run_end("{{ reverse_etl.publish(results) }}")
    project.changelog("things", f"select * from {project.schema}.source", settings={"publish": "hourly_tokens"})
    project.table("source", "select id from range(3)")
    assert "hourly_tokens shows snapshot 1, 3 rows" in project.run().text
    assert "hourly_tokens shows" not in project.run().text, "nothing is new"
    reset = project.dbt("run-operation", "reset", "--args", "{model: things}").text
    assert "hourly_tokens shows snapshot 1 of" in reset
    assert project.rows("select count(*) as n from {s}.hourly_tokens")[0].n == 3
