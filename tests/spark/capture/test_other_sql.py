"""Rows that did not change have the values of the SQL that gave them: when a strategy must compare everything again, whatever its positions say."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from dbt_reverse_etl.base.sql import render
from tests.support.dbt.feeds import positions
from tests.support.dbt.project import Project, Result
from tests.support.dbt.together import Story, outcomes, together

__all__ = ["outcomes"]

BY_TIME = {"strategy": "timestamp", "updated_at": "at"}
FEED = {"strategy": "feed", "operation": "op", "sequence": "at"}
OTHER_SQL = "(full compare: the SQL of the model or of a view is another one)"
AFTER_A_FEED = "(full compare: the last capture was by a feed, left rows behind, or is of an earlier build)"
NOON = "timestamp'2900-01-01 12:00'"


def source(project: Project, name: str) -> str:
    """Twenty rows; a capture by time reads only the newest again."""
    relation = f"{project.schema}.{name}"
    project.spark.sql(f"create table {relation} using delta as select id, 10 * id as cents, id as at from range(20)")
    return relation


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_sql_that_comes_back_after_captures_by_a_full_compare_has_its_own_values_again(project: Project) -> Story:
    relation = source(project, "reverted")

    def capture(value: str, strategy: Any) -> Generator[None, Result, str]:
        sql = f"select id, {value} as value, at from {relation}"
        project.changelog("reverted_log", sql, settings={"capture": strategy})
        return (yield).messages["reverted_log"]

    assert (yield from capture("cents", BY_TIME)) == "+20 ~0 -0, snapshot 1"
    assert (yield from capture("cents + 1", "compare")) == "+0 ~20 -0, snapshot 2"
    assert (yield from capture("cents", BY_TIME)) == f"+0 ~20 -0, snapshot 3 {OTHER_SQL}"
    assert (yield from capture("cents", BY_TIME)) == "+0 ~0 -0, snapshot 3"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_another_body_of_a_function_that_the_model_calls_makes_a_strategy_compare_everything(project: Project) -> Story:
    relation, function = source(project, "called"), f"{project.schema}.in_euros"

    def capture(body: str = "") -> Generator[None, Result, str]:
        if body:
            project.spark.sql(f"create or replace function {function}(x bigint) returns bigint return {body}")
        sql = f"select id, {function}(cents) as value, at from {relation}"
        project.changelog("called_log", sql, settings={"capture": BY_TIME})
        return (yield).messages["called_log"]

    assert (yield from capture("x div 100")) == "+20 ~0 -0, snapshot 1"
    assert (yield from capture()) == "+0 ~0 -0, snapshot 1"
    assert (yield from capture("x + 1")) == f"+0 ~20 -0, snapshot 2 {OTHER_SQL}"
    assert (yield from capture()) == "+0 ~0 -0, snapshot 2"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_what_a_feed_brought_meanwhile_is_compared_by_the_strategy_that_comes_back(project: Project) -> Story:
    relation, events = source(project, "fed"), f"{project.schema}.fed_events"
    project.spark.sql(f"create table {events} (id bigint, value bigint, at bigint, op string) using delta")
    project.spark.sql(f"insert into {events} values (3, -1, 100, 'U'), (5, 0, 101, 'D')")
    by_time, by_events = f"select id, cents as value, at from {relation}", f"select * from {events}"

    def capture(sql: str, strategy: Any) -> Generator[None, Result, str]:
        project.changelog("fed_log", sql, settings={"capture": strategy})
        return (yield).messages["fed_log"]

    assert (yield from capture(by_time, BY_TIME)) == "+20 ~0 -0, snapshot 1"
    assert (yield from capture(by_events, FEED)) == "+0 ~1 -1, snapshot 2"
    assert (yield from capture(by_time, BY_TIME)) == f"+1 ~1 -0, snapshot 3 {AFTER_A_FEED}"
    assert (yield from capture(by_time, BY_TIME)) == "+0 ~0 -0, snapshot 3"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_what_a_feed_brought_is_compared_also_where_it_kept_rows_aside_or_ended_between_two_labels(
    project: Project,
) -> Story:
    columns = f"select id, 1 as day, {NOON} as due, id as at, 'right' as v from range(20)"
    wrong = f"(3, 1, {NOON}, 100, 'wrong', 'U')"
    stories = {
        "waiting": (f"{wrong}, (30, 2, {NOON} + interval '1 day', 101, 'new', 'I')", "2 hours"),
        "ended": (f"{wrong}, (3, 2, {NOON}, 101, 'new', 'U'), (4, null, {NOON}, 102, 'no label', 'U')", None),
    }
    for name, (events, _) in stories.items():
        project.spark.sql(f"create table {project.schema}.{name} using delta as {columns}")
        types = "id bigint, day int, due timestamp, at bigint, v string, op string"
        project.spark.sql(f"create table {project.schema}.{name}_events ({types}) using delta")
        project.spark.sql(f"insert into {project.schema}.{name}_events values {events}")

    def capture(relations: str, strategy: Any) -> Generator[None, Result, list[str]]:
        for name, (_, grace) in stories.items():
            label = {"by": "day", "at": "due", "grace": grace} if grace else "day"
            sql = f"select * from {project.schema}.{relations.format(name)}"
            project.changelog(f"{name}_log", sql, settings={"capture": strategy, "label": label})
        result = yield
        return [result.messages[f"{name}_log"] for name in stories]

    assert (yield from capture("{}", BY_TIME)) == ["+20 ~0 -0, snapshot 1"] * 2
    waiting, ended = yield from capture("{}_events", FEED)
    assert waiting == "+0 ~1 -0, snapshot 2 (1 rows kept aside)"
    assert "what comes before a label after 1 is captured, and nothing else" in ended
    assert (yield from capture("{}", BY_TIME)) == [f"+0 ~1 -0, snapshot 3 {AFTER_A_FEED}"] * 2


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_a_rollback_under_a_feed_leaves_the_positions_of_the_feed_and_no_others(project: Project) -> Story:
    relation, events = source(project, "back"), f"{project.schema}.back_events"
    project.spark.sql(f"create table {events} (id bigint, cents bigint, at bigint, op string) using delta")
    project.spark.sql(f"insert into {events} values (1, 10, 1, 'I')")
    rows = {"capture": BY_TIME}
    project.changelog("back_log", f"select * from {relation}", settings=rows)
    project.changelog("feed_log", f"select * from {events}", settings={"capture": FEED})
    assert (yield).messages["back_log"] == "+20 ~0 -0, snapshot 1"
    project.spark.sql(f"update {relation} set cents = 1, at = if(id = 3, 50, 100) where id in (3, 4)")
    project.spark.sql(f"insert into {events} values (1, 11, 2, 'U'), (2, 20, 2, 'I')")
    assert (yield).messages["back_log"] == "+0 ~2 -0, snapshot 2"
    project.changelog("back_log", f"select * from {events}", settings={"capture": FEED})
    for name in ("back_log", "feed_log"):
        assert project.dbt("run-operation", "rollback", "--args", f"{{model: {name}, to: 1}}").success
        assert project.dbt("run-operation", "release", "--args", f"{{model: {name}}}").success
    assert positions(project, "feed_log") == {"sequence/at": "2"}
    prune = ("run-operation", "prune", "--args", "{model: feed_log, keep: 1}")
    assert "removed 2 snapshots (1 to 2)" in project.dbt(*prune).text
    project.spark.sql(f"insert into {events} values (5, 50, 2, 'I')")
    project.changelog("back_log", f"select * from {relation}", settings=rows)
    none_left = "(full compare: the head has no positions, as after a rollback)"
    captured = (yield).messages
    assert captured["back_log"] == f"+0 ~2 -0, snapshot 5 {none_left}"
    assert captured["feed_log"] == "+1 ~0 -0, snapshot 5", "what was taken back is read again, and is old"
    assert "removed 2 snapshots (3 to 4)" in project.dbt(*prune).text
    project.spark.sql(f"insert into {events} values (1, 12, 3, 'U')")
    assert (yield).messages["feed_log"] == "+0 ~1 -0, snapshot 6"
    live = render("current", f"{project.schema}.feed_log", key="id")
    assert sorted((row.id, row.cents) for row in project.rows(f"select * from {live}")) == [(1, 12), (5, 50)]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_another_sql_of_a_view_behind_the_model_makes_the_run_compare_everything_once(project: Project) -> Story:
    relation = source(project, "behind")
    project.model("outer_view", "select * from {{ ref('nobodys_table') }}", {"materialized": "view"})
    project.model("nobodys_table", "select * from {{ ref('inner_view') }}", {"materialized": "ephemeral"})
    sql = "select * from {{ ref('outer_view') }}"

    def capture(value: str) -> Generator[None, Result, str]:
        project.model("inner_view", f"select id, {value} as value, at from {relation}", {"materialized": "view"})
        project.changelog("behind_log", sql, settings={"capture": BY_TIME})
        return (yield).messages["behind_log"]

    assert (yield from capture("cents")) == "+20 ~0 -0, snapshot 1"
    assert (yield from capture("cents")) == "+0 ~0 -0, snapshot 1"
    assert (yield from capture("cents + 1")) == f"+0 ~20 -0, snapshot 2 {OTHER_SQL}"
    assert (yield from capture("cents + 1")) == "+0 ~0 -0, snapshot 2"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_rows_that_a_full_compare_kept_aside_come_though_their_stamps_are_old(project: Project) -> Story:
    relation = f"{project.schema}.aside"
    noon = "timestamp'2900-01-01 12:00'"
    project.spark.sql(
        f"create table {relation} using delta as select id, 1 as day, {noon} as due, id as at from range(20)"
    )
    label = {"by": "day", "at": "due", "grace": "2 hours"}

    def capture(day: str) -> Generator[None, Result, str]:
        sql = f"select id, {day} as day, if({day} = 1 or id = 20, due, {noon} + interval '1 day') as due, at from {relation}"
        project.changelog("aside_log", sql, settings={"capture": BY_TIME, "label": label})
        return (yield).messages["aside_log"]

    assert (yield from capture("day")) == "+20 ~0 -0, snapshot 1"
    moved = "if(id = 3, 2, day)"
    assert (yield from capture(moved)) == f"+0 ~0 -0, snapshot 2 (1 rows kept aside) {OTHER_SQL}"
    project.spark.sql(f"insert into {relation} values (20, 2, {noon} + interval '1 day 3 hours', 20)")
    again = yield from capture(moved)
    assert again.startswith("+1 ~1 -0, snapshot 3"), again


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_what_a_full_compare_kept_aside_is_found_also_by_the_strategy_that_comes_back(project: Project) -> Story:
    relation = f"{project.schema}.returning"
    noon = "timestamp'2900-01-01 12:00'"
    project.spark.sql(
        f"create table {relation} using delta as select id, 1 as day, {noon} as due, id as at from range(20)"
    )
    sql = f"select id, if(day = 2 and id < 20, 2, day) as day, due, at from {relation}"

    def capture(strategy: Any) -> Generator[None, Result, str]:
        settings = {"capture": strategy, "label": {"by": "day", "at": "due", "grace": "2 hours"}}
        project.changelog("returning_log", sql, settings={**settings})
        return (yield).messages["returning_log"]

    assert (yield from capture(BY_TIME)) == "+20 ~0 -0, snapshot 1"
    project.spark.sql(f"update {relation} set day = 2, due = due + interval '1 day' where id = 3")
    assert (yield from capture("compare")) == "+0 ~0 -0, snapshot 2 (1 rows kept aside)"
    project.spark.sql(f"insert into {relation} values (20, 2, {noon} + interval '1 day 3 hours', 20)")
    assert (yield from capture(BY_TIME)).startswith("+1 ~1 -0, snapshot 3")


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_a_quarantined_key_stays_so_until_it_is_corrected_whatever_its_stamp_says(project: Project) -> Story:
    relation = f"{project.schema}.doubled"
    project.spark.sql(f"create table {relation} using delta as select id, id as at, 'right' as v from range(20)")
    settings = {"capture": BY_TIME, "on_bad_key": "quarantine"}
    project.changelog("doubled_log", f"select * from {relation}", settings=settings)
    assert (yield).messages["doubled_log"] == "+20 ~0 -0, snapshot 1"
    project.spark.sql(f"insert into {relation} values (20, 20, 'wrong'), (20, 20, 'right'), (21, 30, 'right')")
    left = "(full compare: the last capture left rows behind)"
    assert (yield).messages["doubled_log"] == "+1 ~0 -0, snapshot 2 (1 keys quarantined)"
    assert (yield).messages["doubled_log"] == f"+0 ~0 -0, snapshot 2 (1 keys quarantined) {left}"
    project.spark.sql(f"delete from {relation} where v = 'wrong'")
    assert (yield).messages["doubled_log"] == f"+1 ~0 -0, snapshot 3 {left}"
    assert (yield).messages["doubled_log"] == "+0 ~0 -0, snapshot 3"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_of_a_row_that_a_feed_deletes_only_its_key_and_sequence_outlive_a_prune(project: Project) -> Story:
    relation = f"{project.schema}.events_of_people"
    project.spark.sql(f"create table {relation} (id int, name string, op string, at bigint) using delta")
    feed = {"strategy": "feed", "operation": "op", "sequence": "at"}
    project.changelog("people_log", f"select * from {relation}", settings={"capture": feed})
    project.spark.sql(f"insert into {relation} values (1, 'Ann', 'I', 1), (2, 'Bob', 'I', 2)")
    assert (yield).messages["people_log"] == "+2 ~0 -0, snapshot 1"
    project.spark.sql(f"insert into {relation} values (1, 'Ann', 'D', 3), (3, 'Cem', 'D', 4)")
    assert (yield).messages["people_log"] == "+0 ~0 -1, snapshot 2"
    project.spark.sql(f"insert into {relation} values (2, 'Bo', 'U', 5)")
    assert (yield).messages["people_log"] == "+0 ~1 -0, snapshot 3"
    for operation in ("checkpoint", "prune"):
        keep = ", keep: 1" if operation == "prune" else ""
        done = project.dbt("run-operation", operation, "--args", f"{{model: people_log{keep}}}")
        assert done.success
    rows = project.rows("select _change, id, name, at from {s}.people_log where id is not null order by id, at")
    kept = [tuple(row) for row in rows if row._change == "tombstone"]
    assert kept == [("tombstone", 1, None, 3), ("tombstone", 3, None, 4)]
    assert {row.name for row in rows} == {None, "Bob", "Bo"}
    project.spark.sql(f"insert into {relation} values (1, 'late', 'U', 2)")
    assert (yield).messages["people_log"].startswith("+0 ~0 -0"), "an event from before the delete"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_a_local_time_may_be_set_back_by_an_hour_without_an_overlap(project: Project) -> Story:
    relation = f"{project.schema}.local"
    project.spark.sql(
        f"create table {relation} using delta as select id, timestamp_ntz'2024-10-27 02:59:50' - make_interval(0, 0, 0, id) as at from range(20)"
    )
    project.changelog("local_log", f"select * from {relation}", settings={"capture": BY_TIME})
    assert (yield).messages["local_log"] == "+20 ~0 -0, snapshot 1"
    project.spark.sql(f"insert into {relation} values (100, timestamp_ntz'2024-10-27 02:00:00')")
    assert (yield).messages["local_log"] == "+1 ~0 -0, snapshot 2"


@pytest.mark.full
@together
def test_an_overlap_that_is_no_distance_of_its_column_is_refused_by_the_first_run(project: Project) -> Story:
    cases = {
        "number": ("id", "1 hour", "of type bigint; expected a number"),
        "less": ("id", "-1", "of type bigint; expected a number"),
        "seconds": ("timestamp'2024-01-01'", 3600, "of type timestamp; expected an interval, such as '1 hour'"),
        "days": ("date'2024-01-01'", 1, "of type date; expected an interval"),
        "back": ("date'2024-01-01'", "-1 day", "of type date; expected an interval"),
    }
    for name, (at, overlap, _) in cases.items():
        capture = {**BY_TIME, "overlap": overlap}
        project.changelog(f"overlap_{name}", f"select id, {at} as at from range(1)", settings={"capture": capture})
    for name, overlap in {"interval": "1 hour 30 minutes", "day": "2 DAYS"}.items():
        sql = "select id, timestamp'2024-01-01' as at from range(1)"
        project.changelog(f"overlap_{name}", sql, settings={"capture": {**BY_TIME, "overlap": overlap}})
    result = yield
    for name, (_, overlap, message) in cases.items():
        said = result.messages[f"overlap_{name}"]
        assert f"found overlap '{overlap}' with 'at' {message}" in said, said
    assert {result.messages[f"overlap_{name}"] for name in ("interval", "day")} == {"+1 ~0 -0, snapshot 1"}
