"""Publishing: readers see one whole snapshot under a stable name, and only one that passed its tests."""

from __future__ import annotations

import pytest

from tests.integration.project import Project

pytestmark = pytest.mark.spark


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
    assert "the published view needs snapshot 1" in pruned

    assert "not published, for 1 of its 1 tests have not run" in build("select id, id as n from range(5)", "run")
    assert live(shop) == [0, 1, 2]
    assert "live shows snapshot 3, 5 rows" in shop.dbt("test", "--exclude", "package:reverse_etl").text
    assert live(shop) == [0, 1, 2, 3, 4]
    assert "live shows" not in shop.dbt("build", "--exclude", "package:reverse_etl").text, "nothing is new"


def test_a_run_killed_between_the_view_and_its_record_is_made_good_by_the_next(shop: Project) -> None:
    shop.table("source", "select id, id as n from range(2)")
    shop.dbt("build", "--exclude", "package:reverse_etl")
    shop.table("source", "select id, id as n from range(3)")
    shop.dbt("build", "--exclude", "package:reverse_etl")
    shop.rows("alter table {s}.things set tblproperties ('dbt_reverse_etl.published' = '1')")
    assert "live shows snapshot 2, 3 rows" in shop.dbt("build", "--exclude", "package:reverse_etl").text
    assert live(shop) == [0, 1, 2]


def test_a_name_that_is_taken_by_a_table_is_refused_and_the_table_stays(shop: Project) -> None:
    shop.table("live", "select 'precious' as n")
    shop.table("source", "select id, id as n from range(2)")
    text = shop.dbt("build", "--exclude", "package:reverse_etl").text
    assert "live, a table; expected a free name or a view" in text
    assert shop.rows("select n from {s}.live")[0].n == "precious"
