"""The last line of a push."""

from __future__ import annotations

import pytest

from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.delivery.counts import Counts, PerOperation
from dbt_reverse_etl.delivery.health import Health, Left, Standing
from dbt_reverse_etl.terminal import console

SENT = Report(
    "a", "crm.a", "succeeded", ExitCode.OK, counts=Counts(delivered=PerOperation(2, 1, 0)), standing=Standing(Health.OK)
)
REFUSED = Report(
    "b",
    "crm.b",
    "partial",
    ExitCode.FAILED,
    counts=Counts(delivered=PerOperation(0, 0, 3)),
    standing=Standing(Health.FAILING, (Left("rejected", "HTTP 422", 1, "at_a_time"),)),
)
PLANNED = Report("c", "crm.c", "planned", ExitCode.OK, planned=PerOperation(5, 0, 0), is_plan=True)
OVERTAKEN = Report("e", "crm.e", "overtaken", ExitCode.OVERTAKEN)
UNPLANNED = Report("d", "crm.d", "failed", ExitCode.FAILED, is_plan=True)


@pytest.mark.parametrize(
    ("reports", "line"),
    [
        ([SENT], "Pushed 1 sync: +2 ~1 -0 delivered, 0 failed"),
        ([SENT, REFUSED], "Pushed 2 syncs: +2 ~1 -3 delivered, 1 failed, 1 row undelivered"),
        ([SENT, PLANNED], "Pushed 1 sync: +2 ~1 -0 delivered, 0 failed, 1 sync only planned"),
        ([PLANNED], "Planned 1 sync: nothing was sent"),
        ([PLANNED, PLANNED], "Planned 2 syncs: nothing was sent"),
        ([PLANNED, UNPLANNED], "Planned 2 syncs, 1 failed: nothing was sent"),
        ([SENT, OVERTAKEN], "Pushed 1 sync: +2 ~1 -0 delivered, 0 failed, 1 left to a later run"),
        ([OVERTAKEN], "Pushed 0 syncs: +0 ~0 -0 delivered, 0 failed, 1 left to a later run"),
        ([SENT, UNPLANNED], "Pushed 1 sync: +2 ~1 -0 delivered, 1 failed, 1 sync only planned"),
    ],
)
def test_the_last_line_counts_what_was_pushed_and_never_calls_a_plan_a_push(reports: list[Report], line: str) -> None:
    assert console.summary(reports) == line
