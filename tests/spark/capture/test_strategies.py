"""Every capture strategy against the full compare: over random histories each captures the same changes."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from tests.support.dbt.project import Project, Result
from tests.support.dbt.together import Story, outcomes, together
from tests.support.effort import scaled

__all__ = ["outcomes"]

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))
KEYS = [(number - 200) * 46_000_000_000_000_003 for number in range(400)]  # almost all that a bigint can be
RUNS = 1 + scaled(4)
LATE = 4  # minutes by which a row may come late
COLUMNS = "id, value, at"
FEED = "'delta.enableChangeDataFeed'"

Row = tuple[str | None, int]  # value, minute of its last update


class Source:
    """A table with its update times, its change feed, a log of its keys and its changes as events; some come late, some twice."""

    def __init__(self, project: Project, rng: random.Random) -> None:
        self.project, self.rng, self.minute, self.sequence = project, rng, 0, 0
        self.live: dict[int, Row] = {}
        self._held: list[tuple[str, str]] = []
        sql = project.spark.sql
        feed = f"tblproperties ({FEED} = 'true')"
        sql(
            f"create table {project.schema}.source (id bigint, value string, at timestamp, gone boolean) using delta {feed}"
        )
        sql(f"create table {project.schema}.log (number bigint, source_id bigint) using delta")
        sql(
            f"create table {project.schema}.events (id bigint, value string, at timestamp, op string, number bigint) using delta"
        )

    def change(self, keys: int) -> None:
        """Change some keys, each up to three times; what was held back of the run before comes now, too."""
        rows, log, events = {}, [], []
        for key in self.rng.sample(KEYS, keys):
            for _ in range(self.rng.randint(1, 3)):
                rows[key] = self._once(key, log, events)
        late = [pair for pair in zip(log, events, strict=True) if self.rng.random() < 0.2]
        now = [pair for pair in zip(log, events, strict=True) if pair not in late] + self._held
        self.rng.shuffle(now)
        now += self.rng.sample(now, min(3, len(now)))
        self._held = late
        schema = self.project.schema
        self.project.spark.sql(
            f"merge into {schema}.source s using (select * from values {', '.join(rows.values())} as v(id, value, at, gone)) v "
            "on s.id = v.id when matched then update set * when not matched then insert *"
        )
        self.project.spark.sql(f"insert into {schema}.log values {', '.join(entry for entry, _ in now)}")
        self.project.spark.sql(f"insert into {schema}.events values {', '.join(event for _, event in now)}")

    def settle(self) -> None:
        """Whatever was held back comes."""
        while self._held:
            self.change(1)

    def _once(self, key: int, log: list[str], events: list[str]) -> str:
        self.sequence += 1
        self.minute += 1
        gone = self.rng.random() < 0.3
        value = "null" if self.rng.random() < 0.2 else f"'{self.rng.choice('abc')}'"
        at = f"timestamp'2024-01-01' + interval {self.minute - self.rng.randint(0, LATE)} minute"
        log.append(f"({self.sequence}, {key})")
        operation = "D" if gone else self.rng.choice("IU")
        events.append(f"({key}, {value}, {at}, '{operation}', {self.sequence})")
        return f"({key}, {value}, {at}, {str(gone).lower()})"


def declare(project: Project, **capture: Any) -> None:
    source = f"{project.schema}.source"
    live = f"select {COLUMNS} from {source} where not gone"
    project.properties(
        "sources",
        {"sources": [{"name": "app", "schema": project.schema, "tables": [{"name": n} for n in ("source", "log")]}]},
    )
    project.changelog("by_compare", live)
    strategies: dict[str, tuple[str, dict[str, Any]]] = {
        "timestamp": (
            f"select {COLUMNS}, gone from {source}",
            {"updated_at": "at", "overlap": f"{LATE} minutes", "deleted": "gone"},
        ),
        "change_table": (
            "-- depends_on: {{ source('app', 'log') }}\n" + live,
            {"table": "app.log", "sequence": "number", "overlap": 100, "key": {"id": "source_id"}},
        ),
        "cdf": (f"select {COLUMNS} from {{{{ source('app', 'source') }}}} where not gone", {"table": "app.source"}),
        "feed": (
            f"select {COLUMNS}, op, number from {project.schema}.events",
            {"operation": "op", "sequence": "number", "overlap": 100},
        ),
    }
    for name, (query, options) in strategies.items():
        settings = {"capture": {"strategy": name, **options, **({} if name == "feed" else capture)}}
        project.changelog(f"by_{name}", query, settings=settings)


@pytest.mark.guarantee("Capture")
def test_every_strategy_captures_what_the_full_compare_captures_over_random_histories(project: Project) -> None:
    source = Source(project, random.Random(SEED))
    declare(project, full_above=1)
    source.change(len(KEYS) // 2)
    for run in range(RUNS):
        source.change(20) if run < RUNS - 1 else source.settle()
        result = project.run()
        assert result.success, result.text
        truth = project.image("by_compare", COLUMNS)
        assert "full compare" not in str(result.messages)
        for name in ("timestamp", "cdf"):
            assert project.image(f"by_{name}", COLUMNS) == truth, (SEED, run, name)
    for name in ("change_table", "feed"):
        assert project.image(f"by_{name}", COLUMNS) == truth, (SEED, name)


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("every_reason", [False, True], ids=["some", "all"])
def test_where_a_change_feed_does_not_tell_the_changes_everything_is_compared_and_the_run_says_why(
    project: Project, every_reason: bool
) -> None:
    source, sql = f"{project.schema}.source", project.spark.sql
    sql(f"create table {source} (id bigint, value string) using delta tblproperties ({FEED} = 'true')")
    sql(f"insert into {source} select id, 'a' from range(40)")
    table = {"name": "app", "schema": project.schema, "tables": [{"name": "source"}]}
    project.properties("sources", {"sources": [table]})
    capture = {"strategy": "cdf", "table": "app.source", "full_above": 1}
    query = "from {{ source('app', 'source') }}"
    project.changelog("rows", f"select id, value {query}", settings={"capture": capture})
    assert project.run().success
    fed = f"using delta tblproperties ({FEED} = 'true')"
    cases: list[tuple[list[str], str | None]] = [
        ([f"insert into {source} values (100, 'b')", f"optimize {source}"], None),
        ([f"update {source} set value = 'b' where id in (3, 4)"], None),
        ([f"insert overwrite {source} select id, 'a' from range(41)"], "had WRITE Overwrite"),
        ([_set(source, FEED, "false"), f"delete from {source} where id = 5"], "has no change data feed"),
        ([_set(source, FEED, "true"), f"delete from {source} where id = 6"], "its change data feed switched"),
        ([f"restore table {source} to version as of 1"], "had RESTORE"),
        ([f"alter table {source} add columns (more int)"], "had ADD COLUMNS"),
        (
            [
                _set(source, "'delta.deletedFileRetentionDuration'", "interval 1 second"),
                f"update {source} set value = 'c' where id = 7",
                "select java_method('java.lang.Thread', 'sleep', 1500L)",
            ],
            "is older than its retention",
        ),
        (
            [f"create or replace table {source} {fed} as select id, 'z' as value from range(9)"],
            "had CREATE OR REPLACE TABLE AS SELECT",
        ),
        *[
            (
                [f"drop table {source}", f"create table {source} {fed} as select id, '{value}' as value from range(9)"],
                "was made anew",
            )
            for value in "yx"
        ],
    ]
    for changes, why in cases if every_reason else [cases[0], cases[2], cases[5], cases[-1]]:
        for statement in changes:
            sql(statement).collect()
        result = project.run()
        assert result.success, result.text
        for name, message in result.messages.items():
            assert (why or "snapshot") in message, (name, message)
            assert why or "full compare" not in message, (name, message)
        truth = project.rows(f"select id, value from {source} order by id")
        assert project.image("rows", "id, value") == truth


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_a_change_feed_tells_the_changes_of_versions_that_were_written_at_the_same_time(project: Project) -> Story:
    source = f"{project.schema}.at_once"
    project.rows(f"create table {source} using delta tblproperties ({FEED} = 'true') as select id from range(40)")
    now = time.time()
    log = Path(urlparse(project.rows(f"describe detail {source}")[0].location).path) / "_delta_log"
    table = {"name": "app_at_once", "schema": project.schema, "tables": [{"name": "at_once"}]}
    project.properties("sources_at_once", {"sources": [table]})
    capture = {"strategy": "cdf", "table": "app_at_once.at_once"}
    project.changelog(
        "rows_at_once", "select id from {{ source('app_at_once', 'at_once') }}", settings={"capture": capture}
    )

    def captured(*ids: int) -> Generator[None, Result, str]:
        for one in ids:
            project.rows(f"insert into {source} values ({one})")
        for commit in log.glob("*.json"):
            os.utime(commit, (now, now))
        return (yield).messages["rows_at_once"]

    assert (yield from captured(100, 101)).startswith("+42")
    assert [(yield from captured(102, 103)), (yield from captured(104)), (yield from captured())] == [
        "+2 ~0 -0, snapshot 2",
        "+1 ~0 -0, snapshot 3",
        "+0 ~0 -0, snapshot 3",
    ]
    with in_time_zone("Asia/Tokyo"):
        assert (yield from captured(105)) == "+1 ~0 -0, snapshot 4", "another machine, in another time zone"


@contextmanager
def in_time_zone(name: str) -> Iterator[None]:
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("TZ", name)
            time.tzset()
            yield
    finally:
        time.tzset()


@pytest.mark.full
@together
def test_when_a_row_changed_all_rows_of_its_group_are_compared_also_of_the_group_that_it_left(
    project: Project,
) -> Story:
    source, sql = f"{project.schema}.grouped", project.spark.sql
    sql(
        f"create table {source} using delta as select id, id % 10 as part, id as value, timestamp'2024-01-01' + make_interval(0, 0, 0, 0, id) as at from range(60)"
    )
    query = f"select id, part, at, sum(value) over (partition by part) as total from {source}"
    capture = {"strategy": "timestamp", "updated_at": "at", "recapture_by": "part", "full_above": 0.9}
    project.changelog("totals", query, settings={"capture": capture})
    assert (yield).statuses["totals"] == "success"
    sql(f"update {source} set part = 7, at = timestamp'2024-02-01' where id = 3")
    assert (yield).messages["totals"] == "+0 ~12 -0, snapshot 2", "five where it was, six where it came, and itself"
    sql(f"insert into {source} values (100, 5, 1000, timestamp'2024-02-02')")
    assert (yield).messages["totals"] == "+1 ~6 -0, snapshot 3"
    assert project.image("totals", "id, part, at, total") == project.rows(f"{query} order by id")


def _set(table: str, name: str, value: str) -> str:
    return f"alter table {table} set tblproperties ({name} = '{value}')"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_what_a_strategy_did_not_propose_is_found_by_the_reconcile_and_recorded_as_drift(project: Project) -> Story:
    project.table(
        "drifting",
        "select id, 'a' as value, timestamp'2024-01-01' + make_interval(0, 0, 0, 0, id) as at from range(10)",
    )
    project.table("named", "select cast(null as bigint) as id where false")
    (project.folder / "macros").mkdir()
    (project.folder / "macros" / "capture_named.sql").write_text(
        "{% macro capture_named(capture) %}"
        f"{{{{ return({{'candidates': 'select id from {project.schema}.named'}}) }}}}"
        "{% endmacro %}"
    )
    query = f"select * from {project.schema}.drifting"
    by_time = {"strategy": "timestamp", "updated_at": "at", "full_compare_every": 2}
    project.changelog("warned", query, settings={"capture": by_time})
    project.changelog("failed", query, settings={"capture": {**by_time, "on_drift": "fail"}})
    project.changelog("own", query, settings={"capture": {"strategy": "named", "full_above": 0.3}})
    assert (yield).statuses["warned"] == "success"
    project.spark.sql(f"delete from {project.schema}.drifting where id in (2, 3)")
    unseen = yield
    assert {unseen.messages[name][:8] for name in ("warned", "failed", "own")} == {"+0 ~0 -0"}
    project.spark.sql(f"insert into {project.schema}.named values (3)")
    found = yield
    assert (
        found.messages["warned"]
        == "+0 ~0 -2, snapshot 3 (drift: 2 changes that were not proposed) (full compare: reconcile)"
    )
    assert found.statuses["warned"] == "success"
    assert "found 2 changes that capture.strategy timestamp had not proposed" in found.messages["failed"]
    assert found.messages["own"] == "+0 ~0 -1, snapshot 2", "the key that its macro named, and no other"
    header = "select _header.kind, _header.drift from {s}.failed where _change = 'snapshot' order by _snapshot_id desc"
    assert project.rows(header)[0] == ("reconcile", 2), "it was captured, and then said"
    project.spark.sql(f"insert into {project.schema}.named select id from range(4)")
    assert (yield).messages["own"] == "+0 ~0 -1, snapshot 3 (full compare: 4 of 9 keys may have changed)"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_another_sql_of_the_model_makes_the_run_compare_everything_and_another_comment_does_not(
    project: Project,
) -> Story:
    source = f"{project.schema}.told_anew"
    project.spark.sql(
        f"create table {source} using delta tblproperties ({FEED} = 'true') as select id, id as value, id as at from range(10)"
    )
    project.properties(
        "sources_anew", {"sources": [{"name": "app_anew", "schema": project.schema, "tables": [{"name": "told_anew"}]}]}
    )

    def captured(sql: str) -> Generator[None, Result, set[str]]:
        for strategy in (
            {"strategy": "timestamp", "updated_at": "at"},
            {"strategy": "cdf", "table": "app_anew.told_anew"},
        ):
            settings = {"capture": strategy}
            project.changelog(
                f"anew_by_{strategy['strategy']}",
                sql + " from {{ source('app_anew', 'told_anew') }}",
                settings=settings,
            )
        result = yield
        return {result.messages[f"anew_by_{name}"] for name in ("timestamp", "cdf")}

    assert (yield from captured("select id, value, at")) == {"+10 ~0 -0, snapshot 1"}
    expected = {"+0 ~9 -0, snapshot 2 (full compare: the SQL of the model or of a view is another one)"}
    assert (yield from captured("select id, value * 2 as value, at")) == expected, "no row of the source changed"
    assert (yield from captured("-- twice\nselect id, value * 2 as value, at")) == {"+0 ~0 -0, snapshot 2"}


@pytest.mark.full
@together
def test_a_time_column_that_was_not_read_before_begins_with_a_full_compare(project: Project) -> Story:
    source = f"{project.schema}.two_times"
    project.spark.sql(f"create table {source} using delta as select id, id + 1000 as a, id as b from range(10)")

    def capture(updated_at: str) -> Generator[None, Result, str]:
        settings = {"capture": {"strategy": "timestamp", "updated_at": updated_at}}
        project.changelog("by_two_times", f"select * from {source}", settings=settings)
        return (yield).messages["by_two_times"]

    assert (yield from capture("a")) == "+10 ~0 -0, snapshot 1"
    project.spark.sql(f"update {source} set b = 100 where id = 3")
    assert (yield from capture("b")) == "+0 ~1 -0, snapshot 2 (full compare: b was not read before)"
    project.spark.sql(f"update {source} set b = 101 where id = 4")
    assert (yield from capture("b")) == "+0 ~1 -0, snapshot 3"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_a_feed_applies_each_change_once_in_its_order_also_when_a_deleted_key_gets_a_late_one(
    project: Project,
) -> Story:
    columns = "number int, id int, value string, op string"
    project.spark.sql(f"create table {project.schema}.late_events ({columns}) using delta")
    project.changelog(
        "from_late_events",
        f"select * from {project.schema}.late_events",
        settings={"capture": {"strategy": "feed", "operation": "op", "sequence": "number", "overlap": 100}},
    )

    def capture(*events: tuple[Any, ...]) -> Generator[None, Result, str]:
        for event in events:
            project.spark.sql(f"insert into {project.schema}.late_events values {event}")
        result = yield
        return result.messages["from_late_events"]

    first = yield from capture(
        (5, 1, "b", "+U"), (1, 1, "a", "+I"), (4, 1, "a", "-U"), (2, 2, "c", "+I"), (9, 3, "x", "d")
    )
    assert first == "+2 ~0 -0, snapshot 1"
    assert (yield from capture((6, 1, "b", "delete"), (7, 2, "c", "u"))) == "+0 ~1 -1, snapshot 2"
    assert (yield from capture((3, 1, "late", "u"), (8, 3, "late", "c"), (7, 2, "c", "u"))) == "+0 ~0 -0, snapshot 2"
    assert project.image("from_late_events", "id, value") == [(2, "c")]
    assert (yield from capture((10, 1, "again", "c"))) == "+1 ~0 -0, snapshot 3"
    assert "operation: found a value that capture.operations does not list" in (
        yield from capture((11, 1, "a", "truncate"), (12, 1, "newer", "u"))
    )


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@together
def test_of_changes_with_one_sequence_the_same_one_counts_whatever_their_order(project: Project) -> Story:
    tied = "select id, n, 1 as number, if(id > 40 and n = 2, 'd', 'u') as op from range(50) cross join range(4) t (n)"
    feed = {"strategy": "feed", "operation": "op", "sequence": "number"}
    names = {"tied_one_way": "id, n", "tied_the_other_way": "id desc, n desc"}
    for name, order in names.items():
        project.table(f"{name}_events", f"select * from ({tied}) order by {order}")
        project.changelog(name, f"select * from {project.schema}.{name}_events", settings={"capture": feed})
    result = yield
    assert {result.messages[name] for name in names} == {"+41 ~0 -0, snapshot 1"}, "a delete wins"
    images = [project.image(name, "id, n") for name in names]
    assert images[0] == images[1]
