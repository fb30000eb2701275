"""Business snapshots: each change goes to the snapshot of its label, whatever runs it takes."""

from __future__ import annotations

import pytest

from tests.support.dbt.operations import killed_after
from tests.support.dbt.project import Project


class Orders:
    """A table of orders with a business date and an event time, and a changelog over it."""

    def __init__(self, project: Project, **label: str) -> None:
        self.project, self.table = project, f"{project.schema}.orders"
        project.spark.sql(f"create table {self.table} (id int, day string, at timestamp) using delta")
        project.changelog("log", f"select * from {self.table}", settings={"label": {"by": "day", **label}})

    def put(self, key: int, day: int, hour: int = 12) -> None:
        self.project.spark.sql(
            f"merge into {self.table} o using (select {key} as id, '2024-01-0{day}' as day, "
            f"timestamp'2024-01-01' + interval {(day - 1) * 24 + hour} hour as at) n on o.id = n.id "
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


@pytest.mark.guarantee("Capture")
def test_rows_of_the_next_label_wait_until_the_open_one_closes_and_late_ones_may_still_join_it(
    project: Project,
) -> None:
    orders = Orders(project, drift="2 hours", at="at", late="open")
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
    project.spark.sql(f"update {orders.table} set day = null where id = 5")
    assert "found 1 changed rows without a label" in orders.capture()


@pytest.mark.guarantee("Capture")
def test_rows_that_a_feed_keeps_aside_come_with_a_later_capture(project: Project) -> None:
    events = f"{project.schema}.events"
    project.spark.sql(f"create table {events} (id int, day int, at timestamp, op string, number int) using delta")
    feed = {"strategy": "feed", "operation": "op", "sequence": "number"}
    label = {"by": "day", "drift": "2 hours", "at": "at"}
    project.changelog("log", f"select * from {events}", settings={"capture": feed, "label": label})

    def capture(*rows: str) -> str:
        project.spark.sql(f"insert into {events} values {', '.join(rows)}")
        return project.run().messages["log"]

    first = capture("(1, 1, timestamp'2024-01-01 12:00', 'I', 1)", "(2, 2, timestamp'2024-01-02 00:00', 'I', 2)")
    assert first == "+1 ~0 -0, snapshot 1 (1 rows kept aside)"
    assert capture("(3, 1, timestamp'2024-01-01 23:00', 'I', 3)") == "+1 ~0 -0, snapshot 2 (1 rows kept aside)"
    assert capture("(4, 2, timestamp'2024-01-02 02:00', 'I', 4)") == "+2 ~0 -0, snapshot 3"
    assert capture("(4, 2, timestamp'2024-01-02 02:00', 'I', 4)") == "+0 ~0 -0, snapshot 3"


@pytest.mark.guarantee("Capture")
def test_a_feed_that_brings_a_key_in_several_labels_at_once_leaves_it_in_each_as_it_was_then(project: Project) -> None:
    events = f"{project.schema}.events"
    project.spark.sql(f"create table {events} (id int, day int, value string, op string, number int) using delta")
    feed = {"strategy": "feed", "operation": "op", "sequence": "number"}
    project.changelog("log", f"select * from {events}", settings={"capture": feed, "label": "day"})

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


@pytest.mark.guarantee("Capture")
def test_a_feed_with_labels_that_is_killed_between_two_of_them_has_each_change_once_in_its_label(
    project: Project,
) -> None:
    events = f"{project.schema}.events"
    project.spark.sql(f"create table {events} (id int, day int, value string, op string, number int) using delta")
    feed = {"strategy": "feed", "operation": "op", "sequence": "number"}
    project.changelog("log", f"select * from {events}", settings={"capture": feed, "label": "day"})
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
