"""The capture: one snapshot, one commit, right for every type, and never a mixed or a silent one."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Generator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import col, lit

from tests.support.dbt.operations import killed_after
from tests.support.dbt.project import Project, Result
from tests.support.dbt.together import Story, outcomes, together

__all__ = ["outcomes"]

TYPES = {
    "text": "string", "number": "bigint", "small": "int", "real": "double", "short_real": "float", "money": "decimal(38,10)",
    "yes": "boolean", "day": "date", "at": "timestamp", "at_local": "timestamp_ntz", "raw": "binary",
    "list": "array<int>", "nested": "struct<a:int,b:array<string>>", "tags": "map<string,int>",
}  # fmt: skip

# Each row: the expressions of one version of key 1; every two neighbours are different, NULLs and near misses included.
VERSIONS = [
    {},
    {"text": "''"},
    {"text": "'a'", "number": "null"},
    {"text": "null", "list": "array(1, null)"},
    {"list": "array(null, 1)"},
    {"list": "array()"},
    {"list": "array(null)"},
    {"nested": "named_struct('a', 1, 'b', array('x'))"},
    {"nested": "named_struct('a', 1, 'b', array('x', null))"},
    {"nested": "named_struct('a', null, 'b', array('x'))"},
    {"tags": "map('a', 1, 'b', 2)"},
    {"tags": "map('a', 1)"},
    {"tags": "map('a', null)"},
    {"real": "double('NaN')"},
    {"real": "0.0"},
    {"real": "null"},
    {"small": "1"},
    {"number": "1"},
    {"money": "1.0000000001"},
    {"money": "1.0000000002"},
    {"at": "timestamp'2024-01-01 00:00:00.000001'"},
    {"at": "timestamp'2024-01-01 00:00:00.000002'"},
    {"at_local": "timestamp_ntz'2024-01-01 00:00:00.000002'"},
    {"raw": "x'00'"},
    {"raw": "x'0000'"},
    {"yes": "false"},
    {"day": "date'0001-01-01'"},
]
# Neighbours that are equal: no change may be seen.
SAME = [
    ({"tags": "map('a', 1, 'b', 2)"}, {"tags": "map('b', 2, 'a', 1)"}),
    ({"real": "0.0"}, {"real": "-0.0"}),
    ({"real": "double('NaN')"}, {"real": "double('Infinity') - double('Infinity')"}),
    ({"text": "'a'"}, {"text": "'a'"}),
]


def select(values: dict[str, str], without: tuple[str, ...] = ()) -> str:
    columns = [
        f"cast({values.get(name, 'null')} as {kind}) as {name}" for name, kind in TYPES.items() if name not in without
    ]
    return ", ".join(columns)


def every_type(project: Project, compare: str) -> Story:
    name, without = f"types_by_{compare}", ("tags",) if compare == "except" else ()
    pairs = list(itertools.pairwise(VERSIONS))
    changed = [pair for pair in pairs if select(pair[0], without) != select(pair[1], without)]
    cases = [*changed, *(pair for pair in SAME if not set(pair[0]) & set(without))]
    source, settings = f"{name}_source", {"compare": compare}
    project.changelog(name, f"select * from {project.schema}.{source}", ["id", "part"], settings=settings)
    for side in (0, 1):
        rows = " union all ".join(
            f"select {n} as id, 'p' as part, {select(pair[side], without)}" for n, pair in enumerate(cases)
        )
        project.table(source, rows)
        result = yield
        assert result.statuses[name] == "success", result.text
    assert result.messages[name] == f"+0 ~{len(changed)} -0, snapshot 2"
    seen = project.rows(
        f"select id from {{s}}.{name} where _snapshot_id = 2 and _change = 'update_postimage' order by id"
    )
    assert [row.id for row in seen] == list(range(len(changed)))
    was, old = (
        project.rows(f"select id, {', '.join(TYPES.keys() - {*without})} from {{s}}.{name} where {one} order by id")
        for one in (f"_change = 'insert' and id < {len(changed)}", "_change = 'update_preimage'")
    )
    assert repr(old) == repr(was), "NaN is not equal to itself"
    header = project.rows(f"select _header.* from {{s}}.{name} where _snapshot_id = 2 and _change = 'snapshot'")[0]
    assert (header.inserts, header.updates, header.deletes, header.live_rows) == (0, len(changed), 0, len(cases))
    again = yield
    assert again.messages[name] == "+0 ~0 -0, snapshot 2", "an unchanged run commits nothing"


@pytest.mark.guarantee("Capture")
@together
def test_every_change_of_every_type_is_seen_by_hash_and_nothing_else(project: Project) -> Story:
    return every_type(project, "hash")


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_every_change_of_every_type_is_seen_by_except_and_nothing_else(project: Project) -> Story:
    return every_type(project, "except")


@pytest.mark.guarantee("Capture")
def test_a_full_refresh_captures_what_any_run_captures_and_says_so(project: Project) -> None:
    project.changelog("things", "select id from range(3)")
    assert project.run().success
    refreshed = project.dbt("run", "--full-refresh", "--exclude", "package:reverse_etl")
    assert (
        refreshed.messages["things"]
        == "+0 ~0 -0, snapshot 1 (--full-refresh starts nothing over: see the operation reset)"
    )


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_both_compares_capture_the_same_changes(project: Project) -> None:
    for name, compare in (("by_hash", "hash"), ("by_except", "except")):
        project.changelog(name, f"select * from {project.schema}.source", settings={"compare": compare})
    history = [
        "select id, if(id % 3 = 0, null, cast(id % 7 as string)) as value, id * 1.5d as real from range(200)",
        "select id, cast(id % 5 as string) as value, if(id % 2 = 0, double('NaN'), 0.0d) as real from range(50, 260)",
        "select id, cast(id % 5 as string) as value, if(id % 2 = 0, double('NaN'), -0.0d) as real from range(50, 260) where id % 11 <> 0",
    ]
    for query in history:
        project.table("source", query)
        assert project.run().success
    columns = "_change, _snapshot_id, _row_hash, id, value, real"
    difference = project.rows(f"(select {columns} from {{s}}.by_hash except all select {columns} from {{s}}.by_except)")
    assert difference == []
    assert (
        project.rows("select count(*) as n from {s}.by_hash")[0].n
        == project.rows("select count(*) as n from {s}.by_except")[0].n
    )


@pytest.mark.guarantee("Capture")
@together
def test_the_model_query_runs_once_so_that_what_is_captured_is_consistent(project: Project) -> Story:
    for bad_key in ("fail", "quarantine"):
        project.changelog(
            f"drawn_{bad_key}",
            "select id, uuid() as drawn, rand() as luck from range(100)",
            settings={"on_bad_key": bad_key},
        )
    for snapshot in (1, 2):
        result = yield
        assert {result.statuses[f"drawn_{bad_key}"] for bad_key in ("fail", "quarantine")} == {"success"}
        for name in ("drawn_fail", "drawn_quarantine"):
            stale = project.rows(
                f"select count(*) as n from {{s}}.{name} before join {{s}}.{name} pre on pre.id = before.id and pre._change = 'update_preimage' "
                f"and pre._snapshot_id = {snapshot} where before._change in ('insert', 'update_postimage') and before._snapshot_id = {snapshot - 1} "
                "and (pre.drawn <> before.drawn or pre.luck <> before.luck or pre._row_hash <> before._row_hash)"
            )
            assert stale[0].n == 0
            kinds = project.rows(
                f"select count(distinct drawn) as n, count(*) as rows from {{s}}.{name} where _snapshot_id = {snapshot} and _change in ('insert', 'update_postimage')"
            )
            assert (kinds[0].n, kinds[0].rows) == (100, 100)


@pytest.mark.guarantee("Capture")
@together
def test_reordered_added_and_dropped_columns_follow_the_policy(project: Project) -> Story:
    name, more = "with_columns", ", if(id = 1, 'x', null) as extra"
    plain = "select id, 'a' as name, id as n{} from range(3)"

    def capture(query: str, key: str = "id", **settings: Any) -> Generator[None, Result, str]:
        project.changelog(name, query, key, settings=settings or None)
        return (yield).messages[name]

    assert (yield from capture(plain.format(""))) == "+3 ~0 -0, snapshot 1"
    assert (yield from capture("select id as n, 'a' as name, id from range(3)")) == "+0 ~0 -0, snapshot 1"
    assert (yield from capture(plain.format(more))) == "+0 ~1 -0, snapshot 2"
    refused = yield from capture(plain.format(", 'x' as extra, 1 as more"), on_column_change="fail")
    assert "meta.reverse_etl.on_column_change is fail" in refused
    assert "column extra is gone" in (yield from capture(plain.format("")))
    synced = yield from capture(plain.format(""), on_column_change="sync_all_columns")
    assert synced == "+0 ~1 -0, snapshot 3"
    synced = yield from capture(plain.format(""), on_column_change="sync_all_columns")
    assert synced == "+0 ~0 -0, snapshot 3"
    other_type = yield from capture("select id, 1 as name, id as n from range(3)")
    assert "name is int in the model and string in the changelog" in other_type
    assert "captured by id" in (yield from capture(plain.format(""), "n", on_column_change="sync_all_columns"))


@pytest.mark.guarantee("Capture")
@together
def test_times_without_a_zone_are_added_to_a_changelog_and_to_its_bad_keys(project: Project) -> Story:
    """Delta turns the feature on by itself only where it makes a table."""
    settings = {"on_bad_key": "quarantine"}
    project.changelog("visits", "select * from values (1), (2), (2) as t (id)", settings=settings)
    assert (yield).messages["visits"].startswith("+1 ~0 -0, snapshot 1 (1 keys quarantined")
    at = "timestamp_ntz'2024-01-01 10:00:00.123456'"
    timed = f"select *, {at} as at, array(struct({at} as since)) as more from values (1), (2), (2) as t (id)"
    project.changelog("visits", timed, settings=settings)
    assert (yield).messages["visits"].startswith("+0 ~1 -0, snapshot 2 (1 keys quarantined")
    ((_, one, (more,)),) = project.image("visits", "id, at, more")
    assert one == more.since == datetime(2024, 1, 1, 10, 0, 0, 123456)
    bad = project.rows("select at from {s}.visits__bad_keys")
    assert [row.at for row in bad] == [one, one]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_a_row_that_loses_a_value_with_its_column_is_a_change_by_except_too(project: Project) -> Story:
    settings = {"compare": "except", "on_column_change": "sync_all_columns"}
    for query, told in [
        ("select id, if(id = 1, 'x', null) as extra from range(3)", "+3 ~0 -0, snapshot 1"),
        ("select id from range(3)", "+0 ~1 -0, snapshot 2"),
        ("select id from range(3)", "+0 ~0 -0, snapshot 2"),
    ]:
        project.changelog("with_extra", query, settings=settings)
        assert (yield).messages["with_extra"] == told


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_a_column_with_a_wider_type_changes_only_the_rows_whose_value_changed(project: Project) -> Story:
    name = "widened"

    def capture(query: str, **settings: Any) -> Generator[None, Result, str]:
        project.changelog(name, query, settings=settings)
        return (yield).messages[name]

    narrow = "select id, cast(id as int) as n, cast(id / 4 as decimal(5, 2)) as d, cast(id / 8 as float) as f, 'x' as t from range(40)"
    wide = (
        "select id, {} as n, cast(id / 4 as decimal(9, 3)) as d, cast(id / 8 as double) as f, 'x' as t from range(40)"
    )
    project.sync("crm_widened", name, mode="mirror", fields=["id", "n", "d", "t"])
    assert (yield from capture(narrow)) == "+40 ~0 -0, snapshot 1"
    refused = yield from capture(wide.format("id"), on_column_change="fail")
    assert "n is bigint in the model and int in the changelog" in refused
    # As a run leaves it that is killed before its commit.
    project.rows("alter table {s}.widened set tblproperties ('delta.enableTypeWidening' = 'true')")
    project.rows("alter table {s}.widened alter column n type bigint")
    assert (yield from capture(wide.format("if(id = 7, 1L << 40, id)"))) == "+0 ~1 -0, snapshot 2"
    assert project.crm("select count(*), sum(n) from contacts") == [(40, sum(range(40)) - 7 + 2**40)]
    (project.folder / "models/exposure_crm_widened.yml").unlink()
    assert (yield from capture(wide.format("if(id = 7, 1L << 40, id)"))) == "+0 ~0 -0, snapshot 2"
    project.model(
        "before", "select * from {{ reverse_etl.as_of(ref('widened'), snapshot=1) }}", {"materialized": "view"}
    )
    assert (yield from capture(wide.format("if(id in (7, 8), 1L << 40, id)"))) == "+0 ~1 -0, snapshot 3"
    assert project.rows("select count(*), sum(n), sum(d), sum(f) from {s}.before") == project.rows(
        f"select count(*), sum(n), sum(d), sum(f) from ({narrow})"
    )
    (project.folder / "models/before.sql").unlink()
    (project.folder / "models/before.yml").unlink()
    assert "n is int in the model and bigint in the changelog" in (yield from capture(narrow))
    other = yield from capture("select cast(id as decimal(20, 0)) as id, id as n from range(3)")
    assert "id is decimal(20,0) in the model" in other


@pytest.mark.guarantee("Capture")
@together
def test_bad_keys_fail_the_model_with_counts_or_are_kept_out_with_a_reason(project: Project) -> Story:
    project.changelog("of_bad_keys", f"select * from {project.schema}.bad_keys_source")
    project.table("bad_keys_source", "select id, 'a' as name from range(5)")
    assert (yield).statuses["of_bad_keys"] == "success"
    # Key 1 twice, one of them as it was; key 2 twice, both as they were; key 3 gone; two NULL keys.
    project.table(
        "bad_keys_source",
        "select * from values (0, 'a'), (1, 'a'), (1, 'b'), (2, 'a'), (2, 'a'), (4, 'x'), (null, 'n'), (null, 'n') as t (id, name)",
    )
    project.changelog("of_bad_keys", f"select cast(id as bigint) as id, name from {project.schema}.bad_keys_source")
    failed = yield
    assert failed.statuses["of_bad_keys"] == "error"
    assert "found 2 rows with a NULL key and 4 rows that share their key" in failed.messages["of_bad_keys"]
    assert f"select * from {project.schema}.of_bad_keys__bad_keys" in failed.messages["of_bad_keys"]
    listed = project.rows("select _reason, id, count(*) as n from {s}.of_bad_keys__bad_keys group by all order by all")
    assert [tuple(row) for row in listed] == [("duplicate_key", 1, 2), ("duplicate_key", 2, 2), ("null_key", None, 2)]

    project.changelog(
        "of_bad_keys",
        f"select cast(id as bigint) as id, name from {project.schema}.bad_keys_source",
        settings={"on_bad_key": "quarantine"},
    )
    kept = yield
    assert kept.messages["of_bad_keys"] == "+0 ~1 -1, snapshot 2 (3 keys quarantined)"
    image = project.rows("select id, name from {s}.of_bad_keys where _change = 'insert' and id in (1, 2)")
    assert len(image) == 2, "a quarantined key keeps its head image: it must not look deleted"
    assert project.rows("select count(*) as n from {s}.of_bad_keys where _change = 'delete' and id in (1, 2)")[0].n == 0
    recorded = project.rows("select explode(_header.quarantined) as q from {s}.of_bad_keys where _snapshot_id = 2")
    assert sorted((row.q.key, row.q.reason, row.q.row_count) for row in recorded) == [
        ('{"id":1}', "duplicate_key", 2), ('{"id":2}', "duplicate_key", 2), ('{"id":null}', "null_key", 2),
    ]  # fmt: skip
    assert (yield).messages["of_bad_keys"].startswith("+0 ~0 -0, snapshot 2"), (
        "the same bad keys again are no new snapshot"
    )


@pytest.mark.guarantee("Capture")
@together
def test_what_cannot_be_captured_is_refused_before_anything_is_written(project: Project) -> Story:
    cases = [
        ("select 1 as id, array(map('a', 1)) as m", "id", "map inside another type"),
        ("select 1 as id, parse_json('1') as v", "id", "variant"),
        ("select 1 as id, named_struct('v', parse_json('1')) as s", "id", "column s is or holds a variant"),
        ("select 1 as id, interval '1' day as i", "id", "column i is or holds an interval"),
        ("select 1 as id, array('a' collate utf8_lcase) as i", "id", "column i is or holds a text with a collation"),
        ("select 1 as id, map('a', array(make_interval(1))) as i", "id", "column i is or holds an interval"),
        ("select 1 as id, time'10:00:00' as t", "id", "column t is or holds a time of day"),
        ("select 1 as id, named_struct('a', 1, 'A', 2) as s", "id", "two fields 'a' in one struct"),
        ("select 1 as id, named_struct('größe', 1) as s", "id", "has a field 'größe' inside it"),
        ("select 1 as id, named_struct('a:b', 1) as s", "id", "has a field 'a:b' inside it"),
        ("select 1 as id, null as n", "id", "has no type"),
        ("select 1 as id, array(null) as n", "id", "has no type"),
        ("select 1 as id, 2 as _change", "id", "a name that the changelog, its diff or a push uses"),
        ("select 1.5d as id", "id", "does not identify a row safely"),
        ("select 1 as id", "ID2", "is no column of the model"),
    ]
    for number, (query, key, _) in enumerate(cases):
        project.changelog(f"refused_{number}", query, key)
    result = yield
    for number, (query, _, words) in enumerate(cases):
        assert result.statuses[f"refused_{number}"] == "error", query
        assert words in result.messages[f"refused_{number}"], query
        assert not project.spark.catalog.tableExists(f"{project.schema}.refused_{number}"), query


@pytest.mark.full
@together
def test_a_model_that_gives_other_rows_when_it_is_read_again_is_told_so_when_it_gave_bad_keys(
    project: Project,
) -> Story:
    asked = project.folder / "asked"

    def key(value: int) -> int:
        if asked.exists():
            return value
        asked.touch()
        return 1

    project.table("read_twice_source", "select 1 as id")
    project.spark.udf.register("key_that_changes", key, "int")
    project.changelog(
        "read_twice",
        f"select id from {project.schema}.read_twice_source union all select key_that_changes(2) from {project.schema}.read_twice_source",
    )
    refused = yield
    assert refused.statuses["read_twice"] == "error"
    assert "found 1 rows more or less than its head and the changes make" in refused.messages["read_twice"]
    assert "nothing was captured" in refused.messages["read_twice"]
    assert not [row for row in project.rows("show tables in {s} like 'read_twice__*'") if not row.isTemporary]
    assert (yield).messages["read_twice"] == "+2 ~0 -0, snapshot 1"


@pytest.mark.guarantee("Capture")
@together
def test_a_relation_that_is_no_changelog_is_refused_and_adopt_takes_its_name_over(project: Project) -> Story:
    project.table("no_changelog", "select 1 as id")
    project.changelog("no_changelog", "select 1 as id, 'a' as name")
    refused = yield
    assert refused.statuses["no_changelog"] == "error"
    assert "so it is no changelog; nothing was written" in refused.messages["no_changelog"]
    assert [tuple(row) for row in project.rows("select * from {s}.no_changelog")] == [(1,)]
    assert project.dbt("run-operation", "adopt", "--args", "{model: no_changelog}").success
    assert (yield).statuses["no_changelog"] == "success"
    assert not project.dbt("run-operation", "adopt", "--args", "{model: no_changelog}").success
    kept = [row.tableName for row in project.rows("show tables in {s} like 'no_changelog__adopted_*'")]
    assert len(kept) == 1


@pytest.mark.guarantee("Capture")
def test_of_two_runs_at_once_one_wins_and_the_other_fails_without_a_trace(project: Project, tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"

    def wait(value: int) -> int:
        started.touch()
        while not go.exists():
            time.sleep(0.05)
        return value

    project.table("source", "select 1 as id, 1 as n")
    project.changelog("things", f"select id, n from {project.schema}.source")
    assert project.run().success
    project.spark.udf.register("wait_for_rival", wait, "int")
    project.table("source", "select 1 as id, 2 as n")
    project.changelog("things", f"select id, wait_for_rival(n) as n from {project.schema}.source")

    def rival() -> None:
        while not started.exists():
            time.sleep(0.05)
        first = project.spark.table(f"{project.schema}.things").where("_change = 'snapshot'")
        second = first.withColumns(
            {
                "_snapshot_id": lit(2).cast("bigint"),
                "_header": col("_header").withField("capture_uuid", lit("rival")),
                "n": lit(9),
            }
        )
        writer = second.write.format("delta").mode("append").options(txnAppId="changelog", txnVersion="2")
        writer.saveAsTable(f"{project.schema}.things")
        go.touch()

    thread = threading.Thread(target=rival)
    thread.start()
    beaten = project.run()
    thread.join()
    assert not beaten.success, project.rows("select * from {s}.things")
    assert "another run captured snapshot 2 meanwhile" in beaten.text
    rows = project.rows("select _change, n from {s}.things where _snapshot_id = 2")
    assert [tuple(row) for row in rows] == [("snapshot", 9)], "no row of the beaten run"
    assert project.rows("show tables in {s} like '*uncommitted*'") == []


def test_what_a_killed_run_left_is_told_by_steps_kept_for_a_day_and_removed_by_a_later_run(project: Project) -> None:
    project.table("source", "select id from range(3)")
    project.changelog("things", f"select * from {project.schema}.source")
    assert project.run().success

    def steps() -> str:
        return project.dbt("run-operation", "steps", "--args", "{model: things}").text

    said = steps()
    assert "steps things: snapshot 1 was captured at" in said
    assert "publish" not in said
    left = "things__uncommitted_20240229120000_0badcafe"
    project.rows(f"create table {{s}}.{left} using parquet as select 1 as n")
    assert "steps things: snapshot 1 was captured at" in steps(), "a later run made it good"
    project.table("source", "select id from range(4)")
    with killed_after(1, ("create table",)):
        project.dbt("run", "--exclude", "package:reverse_etl", "--single-threaded")
    tables = [row.tableName for row in project.rows("show tables in {s} like 'things__*'")]
    assert left not in tables, "the killed run had removed it"
    assert re.search(rf"recompute and diff +done +{tables[0]}\n +commit +open +snapshot 1 is the newest", steps())
    assert project.run().messages["things"] == "+1 ~0 -0, snapshot 2"
    assert [row.tableName for row in project.rows("show tables in {s} like 'things__*'")] == tables
