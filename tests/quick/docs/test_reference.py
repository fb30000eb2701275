"""docs/reference.md says what the code accepts, and docs/guarantees.md what the tests prove."""

from __future__ import annotations

import runpy
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

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
    words: dict[str, list[str]] = Field(default_factory=dict, alias="texts")


@pytest.mark.parametrize(
    "row",
    [
        "| `kind` | `a`, `b` | required |  |",
        "| `inner` | mapping |  |  |",
        "| `depth` | whole number, at least 1 | `3` | how deep, in metres |",
        "| `texts` | mapping of text to list of text |  |  |",
    ],
)
def test_a_setting_shows_its_values_its_default_and_its_meaning(row: str) -> None:
    assert row in list(MADE["table"]("A", Outer))


def test_every_macro_that_is_described_stands_in_it() -> None:
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for name in ("scd2", "as_of", "current_unique", "kafka_topic"):
        assert f"\n### {name}\n" in written
