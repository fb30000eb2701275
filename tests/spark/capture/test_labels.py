"""Business snapshots: each change goes to the snapshot of its label, whatever runs it takes."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from pyspark.sql import functions as F

from dbt_reverse_etl.base.sql import render
from tests.support.dbt.labels import AFTER, BEFORE, LABEL, LABELS, Labelled, random_script
from tests.support.dbt.operations import Operations, killed_after
from tests.support.dbt.project import Project

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))


class Orders:
    """A table of orders with a business date and an event time, and a changelog over it."""

    def __init__(self, project: Project, year: int = 2024, **label: str) -> None:
        self.project, self.table, self.year = project, f"{project.schema}.orders", year
        project.spark.sql(f"create table {self.table} (id int, day string, at timestamp) using delta")
        project.changelog("log", f"select * from {self.table}", settings={"label": {"by": "day", **label}})

    def put(self, key: int, day: int, hour: int = 12) -> None:
        self.project.spark.sql(
            f"merge into {self.table} o using (select {key} as id, '{self.year}-01-0{day}' as day, "
            f"timestamp'{self.year}-01-01' + interval {(day - 1) * 24 + hour} hour as at) n on o.id = n.id "
            "when matched then update set * when not matched then insert *"
        )

    def drop(self, key: int) -> None:
        self.project.spark.sql(f"delete from {self.table} where id = {key}")

    def capture(self) -> str:
        return self.project.run().messages["log"]

    def snapshots(self) -> list[tuple[int, str | None, int, int, int]]:
        """Snapshot, day of its label, inserts, updates, deletes."""
        rows = self.project.rows(
            "select _snapshot_id, int(substr(_header.label, 9)) as day, _header.inserts, _header.updates, _header.deletes "
            "from {s}.log where _change = 'snapshot' order by 1"
        )
        return [tuple(row) for row in rows]

    def mixed(self) -> int:
        """Rows in a snapshot of another label."""
        return self.project.rows(
            "select count(*) as n from {s}.log r join {s}.log h on h._snapshot_id = r._snapshot_id and h._change = 'snapshot' "
            "where r._change in ('insert', 'update_postimage') and r.day <> h._header.label"
        )[0].n


def fed_by_day(project: Project) -> str:
    """The table of events from which the changelog `log` is fed, labelled by their day."""
    events = f"{project.schema}.events"
    project.spark.sql(f"create table {events} (id int, day int, value string, op string, number int) using delta")
    feed = {"strategy": "feed", "operation": "op", "sequence": "number"}
    project.changelog("log", f"select * from {events}", settings={"capture": feed, "label": "day"})
    return events


@pytest.mark.guarantee("Capture")
def test_a_capture_that_spans_labels_commits_one_snapshot_for_each_and_a_closed_label_needs_a_word(
    project: Project,
) -> None:
    orders = Orders(project)
    for key, day in [(1, 2), (2, 1), (3, 2), (4, 3), (5, 1)]:
        orders.put(key, day)
    assert orders.capture() == "+5 ~0 -0, snapshot 3 (3 labels)"
    assert orders.snapshots() == [(1, 1, 2, 0, 0), (2, 2, 2, 0, 0), (3, 3, 1, 0, 0)]
    orders.put(1, 3)
    orders.put(6, 4)
    orders.drop(2)
    assert orders.capture() == "+1 ~1 -1, snapshot 5 (2 labels)"
    assert orders.snapshots()[3:] == [(4, 3, 0, 1, 0), (5, 4, 1, 0, 1)]

    orders.put(7, 2)
    orders.put(8, 4)
    refused = orders.capture()
    assert "found 1 changed rows of closed labels (2024-01-02); expected none before 2024-01-04" in refused
    assert len(orders.snapshots()) == 5
    word = project.dbt("run-operation", "reopen", "--args", "{model: log, label: '2024-01-02'}")
    assert word.success, word.text
    assert orders.capture() == "+2 ~0 -0, snapshot 8 (2 labels)"
    assert orders.snapshots()[5:] == [(6, None, 0, 0, 0), (7, 2, 1, 0, 0), (8, 4, 1, 0, 0)]
    orders.put(9, 2)
    assert "closed labels (2024-01-02)" in orders.capture(), "one word, one correction"
    orders.drop(9)
    assert "+0 ~0 -0, snapshot 8" in orders.capture()
    assert orders.mixed() == 0
    assert project.rows("select count(*) as n from {s}.log where _change = 'update_preimage'")[0].n == 1
    assert not project.dbt("run-operation", "reopen", "--args", "{model: log, label: '2024-01-09'}").success, (
        "it is not closed"
    )


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_rows_of_the_next_label_wait_until_the_open_one_closes_and_late_ones_may_still_join_it(
    project: Project,
) -> None:
    orders = Orders(project, 2900, grace="2 hours", at="at", late="open")
    orders.put(1, 1)
    assert orders.capture() == "+1 ~0 -0, snapshot 1"
    orders.put(2, 2, hour=0)
    orders.put(1, 2, hour=1)
    assert orders.capture() == "+0 ~0 -0, snapshot 1 (2 rows kept aside)"
    orders.put(3, 1, hour=23)
    assert orders.capture() == "+1 ~0 -0, snapshot 2 (2 rows kept aside)", "the open label still takes its rows"
    orders.put(4, 2, hour=2)
    assert orders.capture() == "+2 ~1 -0, snapshot 3", "two hours after its first row the next label opens"
    assert orders.mixed() == 0
    orders.put(5, 1)
    assert orders.capture() == "+1 ~0 -0, snapshot 4"
    assert [day for _, day, *_ in orders.snapshots()] == [1, 1, 2, 2], "`late: open` takes it into the open label"
    orders.put(6, 3, hour=0)
    assert orders.capture() == "+0 ~0 -0, snapshot 4 (1 rows kept aside)", "no newer row will ever come"
    project.spark.sql(f"update {orders.table} set at = current_timestamp() - interval 110 minutes where id = 6")
    assert orders.capture() == "+0 ~0 -0, snapshot 4 (1 rows kept aside)"
    project.spark.sql(f"update {orders.table} set at = current_timestamp() - interval 120 minutes where id = 6")
    assert orders.capture() == "+1 ~0 -0, snapshot 5", "two hours after its first row, by the clock"
    project.spark.sql(f"update {orders.table} set day = null where id = 5")
    assert "found 1 changed rows without a label" in orders.capture()


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_labels_of_a_changelog_that_began_empty_or_without_them_are_captured_as_of_any_other(project: Project) -> None:
    def source(name: str, *rows: str) -> None:
        project.table(name, f"select * from values {', '.join(rows)} as t (id, day)")

    def model(name: str, settings: dict[str, object]) -> None:
        rows = f"select * from {project.schema}.{name}_rows where id > 0"
        project.changelog(name, rows, settings=settings)

    source("empty_rows", "(0, 'day 1')")
    for name in ("later_rows", "gone_rows"):
        source(name, "(1, 'day 1')", "(2, 'day 3')", "(3, 'day 2')")
    model("empty", {"label": "day"})
    for name in ("later", "gone"):
        model(name, {})
    assert {*project.run().messages.values()} == {"+0 ~0 -0, snapshot 1", "+3 ~0 -0, snapshot 1"}

    for name in ("later", "gone"):
        model(name, {"label": "day"})
    source("empty_rows", "(1, 'day 2')", "(2, 'day 1')")
    source("later_rows", "(1, 'day 2')", "(2, 'day 3')", "(4, 'day 1')")
    source("gone_rows", "(1, 'day 1')")
    assert project.run().messages == {
        "empty": "+2 ~0 -0, snapshot 3 (2 labels)",
        "later": "+1 ~1 -1, snapshot 3 (2 labels)",
        "gone": "+0 ~0 -2, snapshot 2",
    }
    source("empty_rows", "(1, 'day 3')", "(2, 'day 1')")
    source("later_rows", "(1, 'day 2')", "(2, 'day 3')", "(4, 'day 2')")
    source("gone_rows", "(1, 'day 2')")
    assert project.run().messages == {
        "empty": "+0 ~1 -0, snapshot 4",
        "later": "+0 ~1 -0, snapshot 4",
        "gone": "+0 ~1 -0, snapshot 3",
    }

    def shown(name: str, label: str) -> dict[int, str]:
        view = render("as_of", f"{project.schema}.{name}", label=label, key="id")
        return {row.id: row.day for row in project.rows(f"select id, day from {view}")}

    assert [shown("empty", label) for label in ("", "day 1", "day 2", "day 3")] == [
        {}, {2: "day 1"}, {1: "day 2", 2: "day 1"}, {1: "day 3", 2: "day 1"},
    ]  # fmt: skip
    first = {1: "day 1", 2: "day 3", 3: "day 2"}
    assert [shown("later", label) for label in ("", "day 1", "day 2")] == [
        first, {**first, 4: "day 1"}, {1: "day 2", 2: "day 3", 4: "day 2"},
    ]  # fmt: skip
    assert [shown("gone", label) for label in ("", "day 2")] == [{1: "day 1"}, {1: "day 2"}]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_labels_that_are_reopened_stay_so_until_a_capture_has_brought_their_rows_all_of_them(project: Project) -> None:
    events = fed_by_day(project)

    def capture(rows: str) -> str:
        project.spark.sql(f"insert into {events} values {rows}")
        return project.run().messages["log"]

    def reopen(label: str) -> str:
        return project.dbt("run-operation", "reopen", "--args", f"{{model: log, label: {label}}}").text

    assert "+3 ~0 -0" in capture("(1, 1, 'a', 'I', 1), (2, 2, 'x', 'I', 2), (3, 3, 'z', 'I', 3)")
    assert "the next capture may correct '1'" in reopen("1")
    assert "may correct '1', '2'" in reopen("[2, 1]"), "it adds to what is reopened"
    assert "nothing to do: '1' is reopened already" in reopen("1")
    assert "nothing to do: '3' is not closed: the open label is 3" in reopen("3")
    assert "found label '4'; expected one before the open label, 3" in reopen("4")
    assert "found label with since; expected from, to, or both" in reopen("{since: 1}")
    assert "+0 ~0 -0" in capture("(9, 3, 'z', '-U', 4)"), "it moves a position, and changes nothing"
    assert "+0 ~3 -0" in capture("(1, 1, 'b', 'U', 5), (1, 2, 'c', 'U', 6), (2, 2, 'y', 'U', 7)")
    views = {label: render("as_of", f"{project.schema}.log", label=label, key="id") for label in ("1", "2", "3")}
    shown = [{row.id: row.value for row in project.rows(f"select * from {view}")} for view in views.values()]
    assert shown == [{1: "b"}, {1: "c", 2: "y"}, {1: "c", 2: "y", 3: "z"}]
    refused = capture("(2, 1, 'w', 'U', 8)")
    assert "found 1 changed rows of closed labels (1); expected none before 3" in refused
    assert """reopen --args '{model: log, label: ["1"]}'""" in refused


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_changelog_with_labels_of_the_version_before_goes_on(project: Project) -> None:
    orders = Orders(project)
    for key, day in ((1, 1), (2, 2)):
        orders.put(key, day)
    assert orders.capture() == "+2 ~0 -0, snapshot 2 (2 labels)"
    log = f"{project.schema}.log"
    header = F.col("_header").dropFields("undone").withField("reopened", F.lit("2024-01-01"))
    older = project.spark.table(log).withColumn("_header", F.when(F.col("_header").isNotNull(), header))
    older.localCheckpoint().write.format("delta").mode("overwrite").option("overwriteSchema", "true").saveAsTable(log)

    def shown(day: int) -> list[int]:
        view = render("as_of", log, label=f"2024-01-0{day}", key="id")
        return sorted(row.id for row in project.rows(f"select id from {view}"))

    assert (shown(1), shown(2)) == ([1], [1, 2])
    orders.put(3, 1)
    assert orders.capture() == "+1 ~0 -0, snapshot 3"
    assert (shown(1), shown(2)) == ([1, 3], [1, 2, 3])
    orders.put(4, 1)
    assert "closed labels (2024-01-01)" in orders.capture(), "one word, one correction"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_after_rollbacks_and_corrections_of_closed_labels_each_label_shows_what_it_is_now(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One random history of real captures and operations; each key's value begins with its label."""
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    rng, operations, keys = random.Random(SEED), Operations(project), 12
    project.changelog("things", f"select * from {project.schema}.source", settings={"label": LABEL})
    history = Labelled()
    history.capture({key: f"{rng.choice(LABELS[:2])} a" for key in range(keys)})
    rows = ", ".join(map(str, history.head.image.items()))
    project.table("source", f"select * from values {rows} as t (id, v)")
    assert project.run().success
    rollbacks = corrections = 0
    for _ in range(2):
        steps = random_script(rng, history, 8, keys)
        told = f"seed {SEED}: {steps}"
        result = operations.run("play", model="things", steps=steps)
        assert result.success, f"{told}\n{result.text}"
        rollbacks += sum(step["op"] == "rollback" for step in steps)
        corrections += sum(step["op"] == "reopen" for step in steps)
        assert_labels_are(operations, history, told)
        operations.done("prune", keep=3)
        pruned = project.rows(f"select max(_header.base) as base from {operations.table} where _change = 'pruned'")
        history.kept_from = pruned[0].base or 1
        assert_labels_are(operations, history, f"pruned, {told}")
    assert rollbacks > 1
    assert corrections > 1


def assert_labels_are(operations: Operations, history: Labelled, told: str) -> None:
    """Every label that pruning left, by as_of and by the intervals of scd2; and the head."""
    project, labels = operations.project, [BEFORE, *LABELS, AFTER]
    found = project.rows(f"select snapshot_id, label from {render('snapshots', operations.table)} order by 1")
    assert [row.label for row in found] == [one.label for one in history.snapshots[history.kept_from :]], told
    assert operations.image() == {*history.head.image.items()}, told
    kept = [*filter(history.is_kept, labels)]
    views = {label: render("as_of", operations.table, label=label, key="id") for label in labels}
    asked = " union all ".join(f"select '{label}' as label, id, v from {views[label]}" for label in kept)
    shown = Counter(tuple(row) for row in project.rows(asked))
    wanted = Counter((label, *row) for label in kept for row in history.as_of(label).items())
    assert shown == wanted, told
    held = f"select id, v, valid_from_label as since, valid_to_label as until from {render('scd2', operations.table, key='id', labels=True)}"
    intervals = [row for row in project.rows(held) if row.since is not None]
    assert Counter(
        (label, row.id, row.v)
        for row in intervals
        for label in kept
        if row.since <= label and (row.until is None or label < row.until)
    ) == wanted, told  # fmt: skip
    for label in {*labels} - {*kept}:
        with pytest.raises(Exception, match="was pruned"):
            project.rows(f"select * from {views[label]}")


@pytest.mark.full
def test_rows_that_a_feed_keeps_aside_come_with_a_later_capture(project: Project) -> None:
    events = f"{project.schema}.events"
    project.spark.sql(f"create table {events} (id int, day int, at timestamp, op string, number int) using delta")
    feed = {"strategy": "feed", "operation": "op", "sequence": "number"}
    label = {"by": "day", "grace": "2 hours", "at": "at"}
    project.changelog("log", f"select * from {events}", settings={"capture": feed, "label": label})

    def capture(*rows: str) -> str:
        project.spark.sql(f"insert into {events} values {', '.join(rows)}")
        return project.run().messages["log"]

    first = capture("(1, 1, timestamp'2900-01-01 12:00', 'I', 1)", "(2, 2, timestamp'2900-01-02 00:00', 'I', 2)")
    assert first == "+1 ~0 -0, snapshot 1 (1 rows kept aside)"
    assert capture("(3, 1, timestamp'2900-01-01 23:00', 'I', 3)") == "+1 ~0 -0, snapshot 2 (1 rows kept aside)"
    assert capture("(4, 2, timestamp'2900-01-02 02:00', 'I', 4)") == "+2 ~0 -0, snapshot 3"
    assert capture("(4, 2, timestamp'2900-01-02 02:00', 'I', 4)") == "+0 ~0 -0, snapshot 3"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_feed_that_brings_a_key_in_several_labels_at_once_leaves_it_in_each_as_it_was_then(project: Project) -> None:
    events = fed_by_day(project)

    def capture(rows: str) -> str:
        project.spark.sql(f"insert into {events} values {rows}")
        return project.run().messages["log"]

    assert capture(
        "(1, 1, 'a', 'I', 1), (2, 1, 'x', 'I', 2), (1, 1, 'b', 'U', 3), (1, 2, 'c', 'U', 4), (3, 3, 'z', 'I', 5)"
    ) == ("+3 ~1 -0, snapshot 3 (3 labels)")
    assert capture("(2, 3, 'y', 'U', 6), (1, 3, 'c', 'D', 7), (1, 4, 'd', 'I', 8), (2, 4, 'y2', 'U', 9)") == (
        "+1 ~2 -1, snapshot 5 (2 labels)"
    )

    assert (
        capture(
            "(1, 5, 'e', 'U', 10), (1, 6, 'f', 'U', 11), (2, null, null, 'D', 12), (4, 5, 'v', 'I', 13), (4, null, null, 'D', 14)"
        )
        == "+1 ~2 -2, snapshot 7 (2 labels)"
    )
    for day in range(1, 7):
        project.model(f"label_{day}", f"select id, value from {{{{ reverse_etl.as_of(ref('log'), label='{day}') }}}}")
    assert project.run().success
    assert [{row.id: row.value for row in project.rows(f"select * from {{s}}.label_{day}")} for day in range(1, 7)] == [
        {1: "b", 2: "x"},
        {1: "c", 2: "x"},
        {2: "y", 3: "z"},
        {1: "d", 2: "y2", 3: "z"},
        {1: "e", 2: "y2", 3: "z", 4: "v"},
        {1: "f", 3: "z"},
    ]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_an_unknown_operation_stops_a_feed_before_its_first_label_though_a_newer_event_follows(
    project: Project,
) -> None:
    events = fed_by_day(project)
    first = "(1, 1, 'a', 'I', 1), (1, 2, 'b', 'U', 2), (2, 2, 'x', 'I', 3)"
    unknown = "(2, 2, 'x', 'truncate', 4), (2, 2, 'y', 'U', 5)"
    project.spark.sql(f"insert into {events} values {first}, {unknown}")
    message = project.run().messages["log"]
    assert "nothing was captured. capture.operation: found a value that capture.operations does not list" in message
    assert project.rows("select count(*) as n from {s}.log")[0].n == 0


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_feed_with_labels_that_is_killed_between_two_of_them_has_each_change_once_in_its_label(
    project: Project,
) -> None:
    events = fed_by_day(project)
    project.spark.sql(
        f"insert into {events} values (1, 1, 'a', 'I', 1), (2, 1, 'x', 'I', 2), (1, 2, 'b', 'U', 3), (2, 2, 'y', 'U', 4)"
    )
    for _ in ("commit of the first label", "old images of the second"):
        with killed_after(1, ("insert",)):
            project.dbt("run", "--exclude", "package:reverse_etl", "--single-threaded")
    assert project.run().messages["log"] == "+0 ~2 -0, snapshot 2"
    rows = project.rows(
        "select _snapshot_id, _change, coalesce(_header.label, value) as shown from {s}.log where _change in ('insert', 'update_postimage', 'snapshot') order by 1, 2, 3"
    )
    assert [tuple(row) for row in rows] == [
        (1, "insert", "a"),
        (1, "insert", "x"),
        (1, "snapshot", "1"),
        (2, "snapshot", "2"),
        (2, "update_postimage", "b"),
        (2, "update_postimage", "y"),
    ]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_operations_after_a_capture_that_was_killed_between_labels_leave_the_full_image_where_it_is(
    project: Project,
) -> None:
    orders = Orders(project)
    days = "select id, concat('2024-01-0', day) as day, timestamp'2024-01-01' as at from values"
    project.spark.sql(f"insert into {orders.table} {days} (1, 1), (2, 1), (3, 1), (4, 1) t (id, day)")
    orders.capture()
    project.spark.sql(f"insert overwrite {orders.table} {days} (1, 2), (2, 2), (3, 3), (4, 1) t (id, day)")
    with killed_after(2, ("insert",)):  # the old images of the first label, and its commit
        project.dbt("run", "--exclude", "package:reverse_etl", "--single-threaded")
    assert orders.snapshots() == [(1, 1, 4, 0, 0), (2, 2, 0, 2, 0)]
    given = {"savepoint": "name: before", "release": "savepoint: before", "reopen": "label: '2024-01-01'"}
    for operation, more in given.items():
        assert project.dbt("run-operation", operation, "--args", f"{{model: log, {more}}}").success
    assert [row.base for row in project.rows("select _header.base from {s}.log where _change = 'snapshot'")] == [1] * 5
    assert orders.capture() == "+0 ~1 -0, snapshot 6"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_capture_that_is_killed_between_labels_is_followed_by_one_that_still_knows_which_columns_got_wider(
    project: Project,
) -> None:
    rows = f"{project.schema}.amounts"
    project.spark.sql(
        f"create table {rows} using delta as select id, if(id < 7, 1, 2) as day, 50.00BD as amount from range(9)"
    )

    def model(sql: str) -> None:
        project.changelog("log", f"{sql} from {rows}", settings={"label": "day"})

    model("select id, day, cast(amount as decimal(5, 2)) as amount")
    assert project.run().messages["log"] == "+9 ~0 -0, snapshot 2 (2 labels)"
    changed = "if(id = 7, amount + 1, if(id = 8, amount / 100, amount))"
    model(f"select id, if(id = 8, 3, day) as day, cast({changed} as decimal(7, 4)) as amount")
    with killed_after(2, ("insert",)):  # the old images of the first label, and its commit
        project.dbt("run", "--exclude", "package:reverse_etl", "--single-threaded")
    assert project.run().messages["log"] == "+0 ~1 -0, snapshot 4", "50.00 and 0.5000 have one hash"
    assert [float(amount) for (amount,) in project.image("log", "amount")] == [50.0] * 7 + [51.0, 0.5]
    assert project.run().messages["log"] == "+0 ~0 -0, snapshot 4"
    said = project.rows("select _header.positions as p from {s}.log where _change = 'snapshot' order by _snapshot_id")
    assert ["reverse_etl/columns" in row.p for row in said] == [False, False, True, False]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_by_except_rows_that_got_a_new_column_before_a_kill_between_labels_are_not_captured_again(
    project: Project,
) -> None:
    rows = f"{project.schema}.parcels"
    project.spark.sql(f"create table {rows} using delta as select id, 1 as day from range(5)")

    def model(columns: str) -> None:
        project.changelog("log", f"select {columns} from {rows}", settings={"label": "day", "compare": "except"})

    model("id, day")
    assert project.run().messages["log"] == "+5 ~0 -0, snapshot 1"
    model("id, if(id = 4, 2, day) as day, if(id > 1, concat('box ', id), null) as box")
    with killed_after(2, ("insert",)):  # the old images of the first label, and its commit
        project.dbt("run", "--exclude", "package:reverse_etl", "--single-threaded")
    assert project.run().messages["log"] == "+0 ~1 -0, snapshot 3"
    assert project.run().messages["log"] == "+0 ~0 -0, snapshot 3"
    assert project.rows("select id from {s}.log where _snapshot_id = 3 and _change = 'update_postimage'") == [(4,)]
    assert project.image("log", "box") == [(None,), (None,), ("box 2",), ("box 3",), ("box 4",)]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_label_by_chance_is_drawn_once_for_each_row(project: Project) -> None:
    project.table("source", "select id from range(100)")
    settings = {"label": "if(rand() < 0.5, 'a', 'b')"}
    project.changelog("log", f"select * from {project.schema}.source", settings=settings)
    assert project.run().messages["log"] == "+100 ~0 -0, snapshot 2 (2 labels)"
    assert sorted(project.image("log", "id")) == [(key,) for key in range(100)]
    assert project.run().messages["log"] == "+0 ~0 -0, snapshot 2"
    assert {row.tableName for row in project.rows("show tables in {s}") if not row.isTemporary} == {"source", "log"}


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_rows_that_lose_a_value_with_a_column_and_have_no_event_go_to_the_snapshot_of_their_label(
    project: Project,
) -> None:
    events = fed_by_day(project)
    project.spark.sql(f"insert into {events} values (1, 1, 'a', 'I', 1), (2, 2, 'x', 'I', 2)")
    assert project.run().messages["log"] == "+2 ~0 -0, snapshot 2 (2 labels)"
    settings = {
        "capture": {"strategy": "feed", "operation": "op", "sequence": "number"},
        "label": {"by": "day", "late": "open"},
        "on_column_change": "sync_all_columns",
    }
    project.changelog("log", f"select id, day, op, number from {events}", settings=settings)
    project.spark.sql(f"insert into {events} values (3, 3, 'z', 'I', 3)")
    assert project.run().messages["log"] == "+1 ~2 -0, snapshot 4 (2 labels)"
    assert project.image("log", "id, day, value") == [(1, 1, None), (2, 2, None), (3, 3, None)]
