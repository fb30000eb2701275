"""From when on a change that is not delivered is late, by the `max_hours` of `late_syncs`."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import Environment, StrictUndefined

from tests.support import ROOT
from tests.support.dbt.macros import CompilationError, Macros


def late_after(max_hours: Any) -> int:
    """The seconds, of a project without syncs."""
    package = SimpleNamespace(_synced=lambda _: [], _view_refuse=Macros()._view_refuse)
    environment = Environment(undefined=StrictUndefined, autoescape=False, extensions=["jinja2.ext.do"])
    text = (ROOT / "macros" / "tests" / "late_syncs.sql").read_text(encoding="utf-8")
    page = environment.from_string(text + "{{ late_syncs(max_hours=given) }}")
    query = page.render(reverse_etl=package, ref=lambda *names: names[-1], given=max_hours)
    (seconds,) = re.findall(r"timestampadd\(second, -(\d+), current_timestamp\(\)\)", query)
    return int(seconds)


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize(
    ("max_hours", "seconds"), [(24, 86400), ("24", 86400), (0.5, 1800), ("0.5", 1800), (0, 0), ("0", 0)]
)
def test_hours_may_be_a_number_or_the_text_of_one(max_hours: Any, seconds: int) -> None:
    assert late_after(max_hours) == seconds


@pytest.mark.parametrize("max_hours", ["a day", "", None, -1, "nan", "inf"])
def test_what_is_no_number_of_hours_is_refused(max_hours: Any) -> None:
    with pytest.raises(CompilationError, match=r"late_syncs: max_hours: found '.*'; expected a number of hours"):
        late_after(max_hours)
