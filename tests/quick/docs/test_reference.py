"""docs/reference.md says what the code accepts, and docs/guarantees.md what the tests prove."""

from __future__ import annotations

import runpy
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, PositiveFloat

from tests.support import ROOT

PROOFS: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "guarantees.py"))
MADE: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "reference.py"))


@pytest.mark.guarantee("What people look at")
def test_the_reference_is_what_make_docs_writes_now() -> None:
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert written == MADE["page"](), "docs/reference.md is stale: make docs"


def test_the_guarantees_are_those_that_tests_are_marked_with() -> None:
    written = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    assert written == PROOFS["page"](), "docs/guarantees.md is stale: make docs"
    assert len(written.partition("\n## ")[0].splitlines()) <= 30, "its first screen is a summary"


def test_every_setting_has_a_meaning() -> None:
    settings = list(MADE["settings"]())
    assert len([line for line in settings if line.startswith("| `")]) > 150
    assert not [line for line in settings if line.startswith("| `") and line.endswith("|  |")]


class Inner(BaseModel):
    """Inside.

    Attributes:
        depth: how deep,
            in metres.
    """

    depth: Annotated[int, Field(ge=1)] = 3


class Outer(BaseModel):
    """Outside."""

    kind: Literal["a", "b"]
    inner: Inner | None = None
    rate: PositiveFloat | Literal["any"] | None = None
    few: list[Annotated[int, Field(le=9)]] = Field(min_length=1)
    words: dict[str, list[str]] = Field(default_factory=dict, alias="texts")


@pytest.mark.parametrize(
    "row",
    [
        "| `kind` | `a`, `b` | required |  |",
        "| `inner` | mapping |  |  |",
        "| `depth` | whole number, at least 1 | `3` | how deep, in metres |",
        "| `rate` | number, more than 0 or `any` |  |  |",
        "| `few` | list of whole number, at most 9 | required |  |",
        "| `texts` | mapping of text to list of text |  |  |",
    ],
)
def test_a_setting_shows_its_values_its_default_and_its_meaning(row: str) -> None:
    assert row in list(MADE["table"]("A", Outer))


class Shared(BaseModel):
    often: int = 1


class One(Shared):
    """The first."""

    kind: Literal["one"]
    depth: int


class Two(Shared):
    """The second."""

    kind: Literal["two"]


class Either(BaseModel):
    choice: One | Two


def test_what_several_mappings_share_stands_once_and_what_picks_one_in_the_line_above_it() -> None:
    written = list(MADE["table"]("A", Either))
    assert [line for line in written if line.startswith(("| `", "`"))] == [
        "| `choice` | mapping | required |  |",
        "`choice` with `kind: one`: The first.\n",
        "| `depth` | whole number | required |  |",
        "`choice` with `kind: two`: The second.\n",
        "`choice`: \n",
        "| `often` | whole number | `1` |  |",
    ]


def test_every_macro_that_is_described_stands_in_it_with_its_arguments_or_the_names_of_shared_ones() -> None:
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for name in ("scd2", "as_of", "current_unique", "kafka_topic"):
        assert f"\n### {name}\n" in written
    assert "\nShared: `relation`, `key`, `columns`.\n" in written
    assert written.count("\n| `columns` | optional[list[string]] |") < 4
