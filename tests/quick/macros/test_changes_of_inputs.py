"""What a capture knows of the changes of its inputs, from their positions: changelogs, change feeds, and the tree in its SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import Macros

NOON = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
REPLACED = "log was put back from a copy"


@pytest.mark.guarantee("Capture")
def test_a_changelog_whose_snapshot_is_of_another_capture_than_the_one_that_was_read_was_put_back() -> None:
    def why(read: str, newest: int, of_read: str = "c5") -> str | None:
        macros = Macros(lambda _: [{"kept": newest - 5, "retyped": 0, "captured_by": of_read}])
        head = SimpleNamespace(changelog_uuid="u", snapshot_id=newest, capture_uuid=of_read if newest == 5 else "c7")
        assert macros._changelog_position(head) == f"u:{newest}:{head.capture_uuid}"
        found: str | None = macros._changelog_problem("log", "s.log", read.split(":"), head)
        return found

    assert [why("u:5:c5", 5), why("u:5:c5", 7), why("u:5", 5, "other"), why("u:5", 7, "other")] == [None] * 4
    assert [why("u:5:c5", 5, "other"), why("u:5:c5", 7, "other")] == [REPLACED] * 2


@pytest.mark.guarantee("Capture")
def test_an_index_counts_up_to_the_newest_snapshot_of_a_capture_that_the_changelog_still_has() -> None:
    def newest(position: str, *indexed: str) -> tuple[int, list[str]]:
        rows = [{"_changelog_uuid": one} for one in indexed]
        macros = Macros(lambda sql: [{"newest": 4}] if "from log where" in sql else rows)
        return macros._newest_indexed("index", "log", position), macros.run

    assert newest("u:7:c7", "u:7:c7", "u:4:c4")[0] == 7
    assert newest("u:7:c7")[0] == 0
    assert newest("") == (0, [])
    found, run = newest("u:7:c7", "u:9:other", "u:4:c4")
    assert found == 4
    assert "_snapshot_id in (9, 4)" in run[1]
    assert run[1].endswith("_snapshot_id, _header.capture_uuid) in ('u:9:other', 'u:4:c4')")


class Feed:
    """A Delta table whose newest version is 8; version 7 was read."""

    def __init__(self, type_of_v: str, kind: str = "spark") -> None:
        self.type, self.kind = type_of_v, kind
        self.run: list[str] = []

    def __call__(self, statement: str) -> Sequence[dict[str, Any]]:
        if statement.startswith("describe history"):
            about = {"operation": "MERGE", "operationParameters": "{}"}
            newest = [{"version": n, "timestamp": NOON + timedelta(seconds=n), **about} for n in (8, 7)]
            return newest[: int(statement.rsplit(maxsplit=1)[-1])]
        if statement.startswith("describe table"):
            return [{"name": "id", "type": "bigint"}, {"name": "v", "type": self.type}]
        if statement.startswith("show tblproperties"):
            return [{"key": "delta.enableChangeDataFeed", "value": "true"}]
        return [{"kept_from": NOON}]

    def read(self, known: str) -> Any:
        kind = SimpleNamespace(type=self.kind, name="dev")
        macros = Macros(self, local_md5=lambda text: text, target=kind)
        found = macros._delta_feed("t", known, "capture.table")
        self.run = macros.run
        return found


SECONDS = {n: f"{n}:{(NOON + timedelta(seconds=n)).timestamp()}" for n in (7, 8)}


@pytest.mark.guarantee("Capture")
def test_a_column_of_a_fed_table_that_has_another_type_makes_the_capture_compare_everything() -> None:
    columns = Feed("int").read(SECONDS[7])["position"].partition("#")[2]
    assert Feed("int").read(f"{SECONDS[7]}#{columns}")["problem"] is None
    assert Feed("bigint").read(SECONDS[7])["problem"] is None, "a position of an earlier build"
    wider = Feed("bigint").read(f"{SECONDS[7]}#{columns}")
    assert wider["problem"] == "a column of t is new or has another type"
    unread = Feed("bigint").read(f"{SECONDS[8]}#{columns}")
    assert (unread["position"], unread["problem"]) == (f"{SECONDS[8]}#{columns}", None), "no version came after it"
    assert Feed("int").read(SECONDS[8])["position"] == f"{SECONDS[8]}#{columns}", (
        "of an earlier build, at the newest one"
    )


@pytest.mark.guarantee("Capture")
def test_a_table_leaves_the_cache_before_its_columns_and_then_its_version_are_noted() -> None:
    feed = Feed("int")
    feed.read(SECONDS[8])
    assert feed.run == ["refresh table t", "describe table t", "describe history t limit 1"]
    on_databricks = Feed("int", "databricks")
    on_databricks.read(SECONDS[8])
    assert on_databricks.run == feed.run[1:]


@pytest.mark.guarantee("Capture")
def test_a_feed_that_cannot_be_read_names_each_possible_cause() -> None:
    found = Feed("int").read(SECONDS[7])["unreadable"]
    assert found.startswith("the change feed of t after version 7 cannot be read: ")
    assert all(cause in found for cause in ("files", "right", "columns"))


@pytest.mark.guarantee("Capture")
def test_sql_around_another_tree_than_the_declared_one_makes_the_capture_compare_everything() -> None:
    def why(sql: str, *called: str) -> list[str]:
        model = SimpleNamespace(compiled_code=sql, depends_on=SimpleNamespace(macros=list(called)))
        macros = Macros(model=model)
        macros._macros.update(_wide_outside=lambda plan: [], _wide_query=lambda plan, relations: "with a\n  select 1")
        plan, options = SimpleNamespace(relations={}), SimpleNamespace(recompute="affected")
        found: list[str] = macros._not_incremental(plan, options)
        return found

    called = "macro.reverse_etl.wide_table"
    assert why("select *, 1 from (\n    with a\n-- of orders\nselect 1)", called) == []
    assert why("select id from leaf") == [], "a leaf of a generated chain"
    assert why("select *, 1 from (with b\nselect 2)", called) == [
        "the SQL of the model joins another tree than its meta.reverse_etl.wide_table"
    ]
