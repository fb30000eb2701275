"""What a command that looks into the ledger knows: overrides, and failed tests that the project still has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dbt_reverse_etl import cli
from dbt_reverse_etl.app import invocation
from dbt_reverse_etl.app.place import Opened
from dbt_reverse_etl.app.project import OVERRIDE
from dbt_reverse_etl.app.push import Pusher
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.terminal import options
from dbt_reverse_etl.warehouse.overview import Overview
from tests.support.delivery.pushers import at, pusher, sync
from tests.support.delivery.world import MemoryLedger

A = sync("a", "orders")
WORD = "a@5:+0~0-2"
MANIFEST = {"nodes": {"test.shop.unique_id.1": {}}, "unit_tests": {"unit_test.shop.orders.sums": {}}}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project with one sync, whose ledger the test names; an override is set."""
    configuration = SimpleNamespace(syncs=[A.sync], resolved=[A], destinations={}, refuse_unset=lambda **_: None)
    project = SimpleNamespace(
        switch="on", target="prod", env={OVERRIDE: WORD}, manifest=lambda: MANIFEST, folder=Path()
    )
    project.configuration = lambda _: configuration
    monkeypatch.setattr(invocation, "open_ledger", lambda *_: MemoryLedger())
    monkeypatch.setattr(invocation, "overview_of", lambda *_: Overview())
    return SimpleNamespace(project=lambda: project, session=lambda _: lambda: None)


def test_a_command_that_sends_takes_the_override_from_the_environment(place: Any) -> None:
    with Opened(place, ("a",), reaches=True, sends=True) as opened:
        assert opened.pusher.overrides == [WORD]


@pytest.mark.guarantee("Guards")
def test_the_command_plan_takes_the_override_that_the_next_push_takes_and_refuses_one_of_no_sync(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "Place", lambda *_, **__: place)
    found: list[Any] = []
    monkeypatch.setattr(Pusher, "plan", lambda pusher, *_: found.append(pusher.overrides) or Report("a", "crm.a", ""))

    def plan(*more: str) -> Result:
        return CliRunner().invoke(cli.cli, ["plan", *more], standalone_mode=False)

    assert (plan().exception, found) == (None, [[WORD]])
    place.project().env[OVERRIDE] = "b@5:+0~0-2"
    assert isinstance(plan().exception, ConfigurationError)
    assert (plan("--markdown").exception, found[1:]) == (None, [[]]), "nobody pushes a branch before its merge"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["undelivered", "ordres"],
            "selection: found 'ordres'; expected a sync or a tag: a, orders. Next: did you mean",
        ),
        (["test", "*", "--key", "{}"], "SYNC: found '*', which names a, orders; expected one sync. Next: name one"),
        (
            ["reconcile", "--leftovers", "keep"],
            "--leftovers: found no --repair; expected both. Next: add it, or remove",
        ),
    ],
)
def test_a_wrong_argument_is_answered_with_what_to_write(
    command: list[str], message: str, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "Place", lambda *_, **__: place)
    configuration = place.project().configuration(MANIFEST)
    configuration.resolved += [sync("orders", "orders")]
    configuration.syncs += [configuration.resolved[1].sync]
    error = CliRunner().invoke(cli.cli, command, standalone_mode=False).exception
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith(message)


@pytest.mark.guarantee("Guards")
def test_a_failed_test_that_the_project_no_longer_has_blocks_no_command_for_it_can_never_pass(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ("test.shop.unique_id.1", "unit_test.shop.orders.sums")
    failing = {"orders": (*there, "test.shop.gone.2")}
    monkeypatch.setattr(invocation, "overview_of", lambda *_: Overview(at(A, 4).states, failing=failing))
    with Opened(place, ("a",)) as opened:
        assert opened.overview.failing == opened.overview_now().failing == {"orders": there}
        assert pusher(orders=5).status(A, opened.overview)["reason"].startswith("tests not passed of orders: unique_id")
        failing["orders"] = ("test.shop.gone.2",)
        assert pusher(orders=5).status(A, opened.overview_now())["health"] == "behind"
