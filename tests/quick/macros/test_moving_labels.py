"""A label that depends on the clock: rows that have another one when they are stored are refused before the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros

STEADY = "date_format(at, 'yyyy-MM-dd')"
MOVING = ["coalesce(closed_on, current_date())", "if(CURRENT_DATE > day, 'a', 'b')", "date 'today'"]


class Capture(Macros):
    """The rows of two labels, counted, and then stored."""

    def __init__(self, stored: Mapping[str, int]) -> None:
        self.dropped: list[str] = []
        super().__init__(
            lambda sql: self._answered(sql, stored),
            adapter=SimpleNamespace(drop_relation=self.dropped.append),
            local_md5=lambda _: "uuid",
        )
        self._macros.update(_stage_relation=lambda *_: "part", _reopened=lambda _: [])

    @staticmethod
    def _answered(sql: str, stored: Mapping[str, int]) -> Sequence[Mapping[str, Any]]:
        if "as label" in sql:
            times = {"opens": 0, "last": 0, "clock": 0}
            return [{"label": day, "inserts": 2, "updates": 1, **times} for day in ("2024-01-01", "2024-01-02")]
        return [stored] if sql.endswith(" from part") else []

    def part(self, by: str) -> str:
        label = {"by": by, "grace": None, "at": None, "late": "fail", "known_to": None}
        counts = SimpleNamespace(inserts=4, updates=2, deletes=1, tombstones=0)
        split = self._groups("stage", None, counts, SimpleNamespace(label=SimpleNamespace(**label)))
        return str(self._part_of("shop.log", "stage", SimpleNamespace(**split["groups"][-1]), "uuid"))


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("by", MOVING)
@pytest.mark.parametrize(
    "stored", [{"inserts": 1, "updates": 1}, {"inserts": 2, "updates": 0}, {"inserts": 3, "updates": 1}]
)
def test_a_label_that_lost_or_got_a_row_since_it_was_counted_is_not_captured(
    by: str, stored: Mapping[str, int]
) -> None:
    capture = Capture(stored)
    words = f"label 2024-01-02: found 3 changed rows, and {sum(stored.values())} when they were read again; expected"
    with pytest.raises(CompilationError, match=words):
        capture.part(by)
    assert capture.dropped == ["part", "stage"]


@pytest.mark.parametrize("by", MOVING)
def test_a_label_whose_rows_kept_it_is_captured(by: str) -> None:
    capture = Capture({"inserts": 2, "updates": 1})
    assert (capture.part(by), capture.dropped) == ("part", [])


def test_rows_of_a_label_that_depends_on_them_alone_are_counted_once() -> None:
    capture = Capture({})
    assert capture.part(STEADY) == "part"
    assert [sql.split(" as ")[0] for sql in capture.run[1:]] == ["create table part using parquet"]
