"""docs/reference.md says what the code accepts."""

from __future__ import annotations

import runpy
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from tests.support import ROOT

MADE: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "reference.py"))


def test_the_reference_is_what_make_docs_writes_now() -> None:
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert written == MADE["page"](), "docs/reference.md is stale: make docs"


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
