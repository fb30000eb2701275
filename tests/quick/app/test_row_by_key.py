"""One row that `dbt-reverse-etl test --key` sends: what blocks it, and what it leaves blocked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from dbt_reverse_etl.app import sync_push
from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.config.guards import Guards
from dbt_reverse_etl.delivery.counts import NO_ROWS, PerOperation
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.ports import Job, OneRow, Ports, RunResult, Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.warehouse.overview import Overview, Refusal
from tests.support.delivery.pushers import at, pusher, sync, without_spark
from tests.support.delivery.world import MemoryLedger

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
A = sync("a", "orders")._replace(guards=Guards.model_validate({"max_deletes": 1}))
FAILING = {"orders": ("test.shop.unique_id.0123456789",)}
BLOCKED = Refusal("blocked", "a: found 3 deletes", NOW, id_of(A), 1, "orders")
OVERRIDE = "a@5:+0~0-2"


class Ledger(MemoryLedger):
    """With what it has to record of pushes that ended before a run began."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, Refusal] = {}

    def record(self, fact: str, known: Mapping[str, Refusal], invocation_id: str, now: datetime) -> None:
        self.refused |= known


def sent(only: str | None, overview: Overview, ledger: Ledger, *overrides: str) -> Report:
    """A push whose run asks the guard of two deletes, and goes well if they pass."""
    memory: dict[str, Any] = {"ledger": ledger}
    warehouse = replace(pusher(orders=5), overrides=overrides, **memory)
    return warehouse.push(A, replace(at(A, 4), failing=overview.failing, refusals=overview.refusals), only)


def began(job: Job, ports: Ports) -> None:
    """The run of the row has fence 2."""
    ports.ledger._began(SimpleNamespace(fence=2, sync_id=job.task.sync_id, mark=""))  # type: ignore[attr-defined]


def judged(job: Job, ports: Ports, attempted: PerOperation, refused: PerOperation = NO_ROWS) -> RunResult:
    began(job, ports)
    ports.guard(attempted, refused, State())
    return RunResult(Status.SUCCEEDED, 2)


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_push, "run", lambda job, ports, _: judged(job, ports, PerOperation(delete=2)))
    monkeypatch.setattr(sync_push, "stored_key", lambda *_: OneRow("k", 1))
    without_spark(monkeypatch)


@pytest.mark.guarantee("Guards")
def test_a_failed_test_blocks_one_row_too_until_it_is_overridden_by_the_word_of_its_message() -> None:
    failing = Overview(failing=FAILING)
    report = sent("{}", failing, Ledger())
    assert (report.status, report.exit_code) == ("blocked", ExitCode.BLOCKED)
    assert report.message == (
        "a: found tests not passed of orders: unique_id; expected a push within its guards; nothing was sent. Next: "
        f"mend the model, or let this one pass: DBT_REVERSE_ETL_OVERRIDE='{OVERRIDE}' dbt-reverse-etl test a --key ..."
    )
    assert sent("{}", failing, Ledger(), OVERRIDE).status == Status.SUCCEEDED


def test_guards_that_count_rows_say_nothing_of_one_that_is_named_by_its_key() -> None:
    assert sent("{}", Overview(), Ledger()).status == Status.SUCCEEDED
    assert sent(None, Overview(), Ledger()).status == "blocked"


@pytest.mark.guarantee("Guards")
def test_rows_that_were_refused_before_have_passed_the_limits_and_wait_for_a_failed_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two, blocked = PerOperation(delete=2), "blocked"

    def pushed(refused: PerOperation, *, failing: bool = False) -> str:
        monkeypatch.setattr(sync_push, "run", lambda job, ports, _: judged(job, ports, two, refused))
        return sent(None, Overview(failing=FAILING if failing else {}), Ledger()).status

    assert pushed(NO_ROWS) == blocked, "one delete is allowed"
    assert pushed(PerOperation(delete=1)) == pushed(two) == Status.SUCCEEDED
    assert pushed(two, failing=True) == blocked


@pytest.mark.guarantee("Guards")
@pytest.mark.parametrize(
    ("only", "refusal", "kept"),
    [
        ("{}", BLOCKED, {"a": replace(BLOCKED, fence=2)}),
        ("{}", replace(BLOCKED, status="failed"), {}),  # the run of this row has just shown that it is over
        (None, BLOCKED, {}),
    ],
)
def test_a_row_that_is_sent_alone_leaves_a_blocked_sync_blocked(
    only: str | None, refusal: Refusal, kept: Mapping[str, Refusal]
) -> None:
    ledger = Ledger()
    assert sent(only, Overview(refusals={"a": refusal}), ledger, OVERRIDE).status == Status.SUCCEEDED
    assert ledger.refused == kept


def test_a_row_whose_run_fails_leaves_a_blocked_sync_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(job: Job, ports: Ports, _: Policy) -> RunResult:
        began(job, ports)
        raise OSError

    monkeypatch.setattr(sync_push, "run", run)
    ledger = Ledger()
    assert sent("{}", Overview(refusals={"a": BLOCKED}), ledger, OVERRIDE).status == Status.FAILED
    assert ledger.refused == {"a": replace(BLOCKED, fence=2)}


def test_a_run_that_forgets_a_former_position_is_none_of_this_sync() -> None:
    one = SyncPush(pusher(orders=5), A, at(A, 4))
    for sync_id, fence in (("former", 51), (one.id, 2)):
        with suppress(AttributeError):  # there is no Spark to name the ledger
            one._name_ledger(SimpleNamespace(fence=fence, sync_id=sync_id, mark=""))  # type: ignore[arg-type]
        assert one.fence == (1 if sync_id == "former" else 2)
