"""A rollback over a column that has had another type since: a column of another name has its former values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros

RETYPED = 4
LABELS = {1: "mon", 2: "mon", 4: "tue", 5: "mon"}  # the last one corrects a closed label


def rolled_back(column: str, **place: Any) -> bool:
    """Whether a changelog whose `Plan` is spelled `PLAN` now goes back to a snapshot that spelled it `column`."""
    done: list[Any] = []
    key = {"name": "id", "type": "int"}
    model = [key, {"name": "PLAN", "type": "int"}]
    dropped = [{"name": f"Plan_before_{RETYPED}", "type": "string"}]
    columns = SimpleNamespace(
        key=["id"], model=model, names=["id", "PLAN"], dropped=dropped, present=[*model, *dropped]
    )
    head = {"snapshot_id": 5, "columns": model, "key_columns": ["id"], "open_label": "tue", "undone": []}
    macros = Macros(lambda _: [{"newest": 5}])
    macros._macros.update(
        _opened_changelog=lambda *_, **__: {"name": "log", "target": "log", "head": head, "columns": columns},
        _header=lambda _, snapshot: {"columns": [key, {"name": column, "type": "string"}], "label": LABELS[snapshot]},
        _roll_back=lambda *_: done.append(True),
        _labels_undone=lambda *_: {},
    )
    macros.rollback("log", **place)
    return bool(done)


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(("column", "place"), [("Plan", {"to": 1}), ("PLAN", {"to": 2}), ("plan", {"label": "mon"})])
def test_a_column_that_has_had_another_type_since_is_refused_in_each_case_and_below_a_late_correction(
    column: str, place: dict[str, Any]
) -> None:
    with pytest.raises(CompilationError, match=f"in Plan_before_{RETYPED}, for it has had another type since"):
        rolled_back(column, **place)


def test_a_snapshot_or_a_label_that_has_the_present_type_is_gone_back_to() -> None:
    assert rolled_back("PLAN", to=RETYPED)
    assert rolled_back("PLAN", label="tue")
