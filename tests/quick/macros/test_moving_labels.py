"""A label that depends on the clock or on chance: each row has one during a capture, whatever the expression gives later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros

BY = "coalesce(closed_on, our_clock())"
STAGED = f"if(_stage in ('insert', 'update'), cast({BY} as string), null) as _reverse_etl_label from ("
SETTINGS = SimpleNamespace(label=SimpleNamespace(by=BY, grace=None, at=None, late="fail", known_to=None))


class Capture(Macros):
    """The changed rows of two labels in a stage."""

    def __init__(self) -> None:
        super().__init__(self._answered, local_md5=lambda _: "uuid")
        self._macros.update(_stage_relation=lambda *_: "part", _reopened=lambda _: [])

    @staticmethod
    def _answered(sql: str) -> Sequence[Mapping[str, Any]]:
        times = {"opens": 0, "last": 0, "clock": 0}
        return [{"label": day, "inserts": 2, "updates": 1, **times} for day in ("2024-01-01", "2024-01-02")]


@pytest.mark.guarantee("Capture")
def test_rows_are_counted_and_cut_by_the_label_that_the_stage_keeps() -> None:
    capture = Capture()
    assert capture._labelled("select * from changed", SETTINGS) == f"select *, {STAGED}select * from changed)"
    split = capture._groups("stage", None, SimpleNamespace(inserts=4, updates=2, deletes=1, tombstones=0), SETTINGS)
    for group in split["groups"]:
        assert capture._part_of("shop.log", "stage", SimpleNamespace(**group), "uuid") == "part"
    counted, *parts = capture.run
    assert counted.startswith("select _reverse_etl_label, count_if(")
    assert [part.partition(" where ")[2] for part in parts] == [
        "(_reverse_etl_label in ('2024-01-01'))",
        "(_reverse_etl_label in ('2024-01-02')) or _stage in ('delete', 'tombstone')",
    ]
    assert not [sql for sql in capture.run if BY in sql]


@pytest.mark.guarantee("Capture")
def test_rows_that_lose_a_value_with_a_column_get_their_label_when_they_are_staged() -> None:
    capture = Capture()
    model = [{"name": "id", "type": "int"}, {"name": "closed_on", "type": "date"}]
    columns = SimpleNamespace(
        key=["id"], model=model, names=["id", "closed_on"], dropped=[{"name": "note", "type": "string"}], gone=["note"]
    )
    capture._stage_emptied("shop.log", "stage", SimpleNamespace(base=1, snapshot_id=2), columns, SETTINGS)
    assert f"insert into stage by name select *, {STAGED}select 'update' as _stage" in capture.run[0]


def test_a_stage_without_labels_is_as_it_was() -> None:
    assert Capture()._labelled("select * from changed", SimpleNamespace(label=None)) == "select * from changed"


def test_a_comment_at_the_end_of_a_label_takes_nothing_of_what_comes_behind() -> None:
    problems: list[str] = []
    label = Macros()._label_settings({"by": "day -- its day", "at": "at --", "grace": "1 hour"}, problems)
    assert (label["by"], label["at"], problems) == ("day -- its day\n", "at --\n", [])
    assert Macros()._label_settings("day", problems)["by"] == "day"


def test_labels_to_reopen_that_end_before_they_begin_are_refused() -> None:
    assert Macros()._label_ranges("people", {"from": "a", "to": "b"}, "c") == [["a", "b"]]
    assert Macros()._label_ranges("people", {"from": "d"}, "c") == [["d", "c"]]
    with pytest.raises(CompilationError, match="from 'b' to 'a'; expected the older one first"):
        Macros()._label_ranges("people", {"from": "b", "to": "a"}, "c")
