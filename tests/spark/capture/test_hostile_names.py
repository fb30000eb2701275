"""Names and types that clash with nothing of a user's, and so must not with anything of ours."""

from __future__ import annotations

import pytest

from tests.support.dbt.project import Project

FIELDS = ", ".join(f"'f{n}', id" for n in range(30))


@pytest.fixture
def shop(project: Project) -> Project:
    project.table("source", "select id, 'DE' as country from range(8)")
    select = f"from {project.schema}.source"
    project.changelog("images", f"select id, concat('image ', id) as image {select}")
    project.changelog(
        "nested", f"select id, named_struct('id', id + 100, 'url', 'x') as image, 1 as classified {select}"
    )
    project.changelog("headed", f"select id, id * 2 as `# of orders`, id as status {select}")
    project.changelog("landed", f"select id, id + 7 as _offset, 0 as _partition {select}")
    project.changelog("deep", f"select id, named_struct({FIELDS}) as profile {select}")
    return project


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_columns_and_tables_may_have_any_name_that_spark_takes(shop: Project) -> None:
    theirs = ["images__events_2024", "images__files_1", "images__changes_2023_q4"]
    for name in theirs:
        shop.table(name, "select 1 as id")
    first = shop.run()
    assert first.success, first.text
    # More than a quarter of the rows changes, so each capture writes a full image.
    for step in ("delete from {s}.source where id < 3", "update {s}.source set id = id + 10 where id > 5"):
        shop.rows(step)
        done = shop.run()
        assert done.success, done.text
        keys = [row.id for row in shop.rows("select id from {s}.source order by id")]
        assert shop.image("images", "id, image") == [(key, f"image {key}") for key in keys]
        assert shop.image("nested", "id, image.id") == [(key, key + 100) for key in keys]
        assert shop.image("headed", "id, `# of orders`, status") == [(key, key * 2, key) for key in keys]
        assert shop.image("landed", "id, _offset, _partition") == [(key, key + 7, 0) for key in keys]
        assert shop.image("deep", "id, profile.f29") == [(key, key) for key in keys]
    counted = "select count(*) from {s}.%s where _change in ('insert', 'update_postimage', 'delete')"
    assert {shop.rows(counted % name)[0][0] for name in ("images", "nested", "headed", "landed", "deep")} == {8 + 3 + 4}
    assert {row.tableName for row in shop.rows("show tables in {s}")} >= set(theirs)


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_what_killed_runs_left_beside_a_table_with_upper_case_letters_is_dropped_a_day_later(project: Project) -> None:
    project.changelog("things", f"select id from {project.schema}.source", alias="Things")
    project.table("source", "select id from range(2)")
    left, new = "Things__uncommitted_20200101000000_0123abcd", "Things__candidates_29000101000000_0123abcd"
    for name in (left, new, "Things__events_2024"):
        project.table(name, "select 1 as id")
    assert (first := project.run()).success, first.text
    tables = {row.tableName for row in project.rows("show tables in {s}") if not row.isTemporary}
    assert tables == {"source", "things", new.lower(), "things__events_2024"}
    project.table("source", "select id from range(3)")
    assert project.run().messages["things"] == "+1 ~0 -0, snapshot 2"


@pytest.mark.guarantee("Capture")
def test_a_nested_name_that_spark_shows_without_its_quotes_is_refused_with_what_to_do(project: Project) -> None:
    project.changelog(
        "agents", "select 1 as id, named_struct('user-agent', 'x', 'n', cast(1 as decimal(5,2))) as header"
    )
    refused = project.run()
    assert not refused.success
    assert "column header has a field 'user-agent' inside it" in refused.messages["agents"]
    assert "'n'" not in refused.messages["agents"]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_constants_that_were_edited_are_captured_though_no_input_changed(project: Project) -> None:
    project.table("source", "select id, 'DE' as country from range(4)")
    run = ("run", "--exclude", "package:reverse_etl", "--vars", "{reverse_etl_skip_from_rows: 1}")
    values, join = (
        "(values ('DE', '{}')) r(country, region)",
        f"from {project.schema}.source s join {{}} using (country)",
    )
    project.changelog("by_view", "select s.id, r.region " + join.format("{{ ref('spoken') }} r"))
    steps = [("EMEA", "+4 ~0 -0"), ("EMEA", "+0 ~0 -0"), ("EMEA", "no input changed"), ("Europe", "+0 ~4 -0")]
    for region, said in steps:
        named = values.format(region)
        project.model("spoken", f"select * from {named}", {"materialized": "view"})
        project.changelog("regions", f"select s.id, r.region {join.format(named)}")
        done = project.dbt(*run)
        assert done.success, done.text
        assert [said in done.messages[name] for name in ("regions", "by_view")] == [True, True], done.messages


@pytest.mark.guarantee("Capture")
def test_reset_moves_no_table_whose_files_the_next_run_would_find_again(project: Project) -> None:
    project.changelog("placed", "select 1 as id", location_root=str(project.folder / "lake"))
    assert project.run().success
    refused = project.dbt("run-operation", "reset", "--args", "{model: placed}")
    assert not refused.success
    assert "found its files below location_root" in refused.text
    project.changelog("placed", "select 1 as id", location_root=str(project.folder / "lake2"))
    assert project.dbt("run-operation", "reset", "--args", "{model: placed}").success
    again = project.run()
    assert (again.success, "snapshot 1" in again.messages["placed"]) == (True, True), again.text


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_bad_keys_and_a_new_column_may_have_names_that_delta_takes_only_mapped(project: Project) -> None:
    rows = f"from {project.schema}.source"
    project.table("source", "select * from values (1, 'a'), (1, 'b'), (2, 'c') as t (n, text)")
    project.changelog("orders", f"select n as `order id`, text as `a, b` {rows}", "order id")
    refused = project.run()
    assert "found 0 rows with a NULL key and 2 rows that share their key" in refused.messages["orders"]
    assert project.rows("select count(*) as n from {s}.orders__bad_keys")[0].n == 2
    settings = {"on_bad_key": "quarantine"}
    project.changelog("orders", f"select n as `order id`, text as `a, b` {rows}", "order id", settings=settings)
    assert project.run().messages["orders"] == "+1 ~0 -0, snapshot 1 (1 keys quarantined)"

    project.table("source", "select * from values (1, 'a'), (2, 'c') as t (n, text)")
    project.changelog("plain", f"select n as id {rows}")
    assert (first := project.run()).success, first.text
    project.changelog("plain", f"select n as id, text as `(x)` {rows}")
    assert (wider := project.run()).success, wider.text
    assert project.image("plain", "id, `(x)`") == [(1, "a"), (2, "c")]
