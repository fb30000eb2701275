"""What a repair says to the ledger, and to a program that asked for it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from dbt_reverse_etl import cli
from dbt_reverse_etl.app import compared_sync, invocation, push
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.app.reconcile import (
    DIFFERENT,
    DUPLICATE,
    EXTRA,
    FOREIGN,
    LEFTOVER,
    MISSING,
    Difference,
    Differences,
    Reconciled,
    undelivered_of,
)
from dbt_reverse_etl.base.errors import ConfigurationError, ExitCode, Problem
from dbt_reverse_etl.commands import looking
from dbt_reverse_etl.config.settings import SyncSettings
from dbt_reverse_etl.delivery.counts import Counts, PerOperation
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.warehouse.spec import Spec, given_spec

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
KINDS = (MISSING, DIFFERENT, DUPLICATE, EXTRA, FOREIGN, LEFTOVER)


def test_each_repair_asks_for_its_rows_by_an_id_of_its_own_and_leaves_rows_of_others_alone() -> None:
    found = Differences(5, dict.fromkeys(KINDS, 1), [Difference(kind, kind, 1, 1, 1) for kind in KINDS])
    first, second = (undelivered_of(found, "crm", now) for now in (NOW, NOW + timedelta(microseconds=1)))
    assert [row.key for row in first] == [row.key for row in second] == [MISSING, DIFFERENT, EXTRA]
    ids = [{row.asked_by for row in rows} for rows in (first, second)]
    assert None not in ids[0] | ids[1]
    assert [len(one) for one in ids] == [1, 1]
    assert ids[0] != ids[1]


@pytest.mark.guarantee("Secrets and row values")
def test_a_sync_that_cannot_be_compared_for_an_unexpected_reason_fails_alone_and_without_a_row_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def __init__(self, *_: object) -> None:
            raise RuntimeError("row value 4711")

    monkeypatch.setattr(push, "ComparedSync", Broken)
    sync: Any = SimpleNamespace(sync=SimpleNamespace(name="crm"), label="crm.people")
    nothing: Any = None
    found = push.Pusher.reconcile(nothing, sync, nothing, repaired=False)
    assert (found.sync, found.exit_code, found.differences) == ("crm", ExitCode.FAILED, None)
    assert "an unexpected RuntimeError" in found.message
    assert "4711" not in found.message


@pytest.mark.parametrize("repaired", [False, True])
def test_keys_that_several_rows_have_are_a_failure_that_no_repair_mends(repaired: bool) -> None:
    there = Differences(3, dict.fromkeys(KINDS, 0) | {DUPLICATE: 1}, [])
    one: Any = SimpleNamespace(_name="crm", label="crm.people")
    found = compared_sync.ComparedSync._reconciled(one, there, None, "", "", is_repaired=repaired)
    assert found.exit_code is ExitCode.FAILED
    assert "found keys that several rows have: 1; expected one row for each key. Next: delete" in found.message


@pytest.mark.parametrize(
    ("fields", "comparable"),
    [(None, True), ({"id": "id", "name": "name"}, True), ({"id": "id", "name": "title"}, False), ({"id": "id"}, False)],
)
def test_settings_that_say_the_same_in_another_way_can_be_compared_without_a_push(
    fields: dict[str, str] | None, comparable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"id": "int", "name": "string"}

    def resolved(given: dict[str, str] | None) -> Spec:
        sent = given or {name: name for name in columns}
        mapped = tuple((column, name, columns[column]) for column, name in sent.items())
        return Spec(mapped, None, Mode.MIRROR, given_spec(settings(given)))

    def settings(given: dict[str, str] | None) -> SyncSettings:
        return SyncSettings.model_validate({"destination": "crm", "object": "people", "fields": given})

    monkeypatch.setattr(compared_sync, "resolve", lambda *_: resolved(fields))
    one: Any = SimpleNamespace(
        _settings=settings(fields), _shared=SimpleNamespace(spark=None), _resolved=SimpleNamespace(sync=None)
    )
    head: Any = SimpleNamespace(columns=())
    for place in (None, "24 partitions"):
        delivered = replace(resolved(None), key_place=place)
        assert compared_sync.ComparedSync._sends_as_now(one, delivered, head) is comparable


def test_a_column_that_came_after_the_position_needs_a_push_before_it_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = Mock(side_effect=ConfigurationError(Problem("fields", "later", "columns of the changelog: id", "add it")))
    monkeypatch.setattr(compared_sync, "resolve", refused)
    settings = SyncSettings.model_validate({"destination": "crm", "object": "people", "fields": {"later": "later"}})
    one: Any = SimpleNamespace(
        _settings=settings, _shared=SimpleNamespace(spark=None), _resolved=SimpleNamespace(sync=None)
    )
    before = Spec((("id", "id", "int"),), None, Mode.MIRROR, "other settings")
    head: Any = SimpleNamespace(columns=())
    assert not compared_sync.ComparedSync._sends_as_now(one, before, head)
    refused.assert_called_once()


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    ("of_push", "code"),
    [
        (Report("crm", "crm.people", "succeeded"), ExitCode.OK),
        (Report("crm", "crm.people", "failed", ExitCode.FAILED, message="no answer"), ExitCode.FAILED),
        (Report("crm", "crm.people", "succeeded", counts=Counts(skipped=PerOperation(1))), ExitCode.FAILED),
    ],
    ids=["done", "failed", "a row waits"],
)
def test_the_json_of_a_repair_has_what_became_of_its_push_and_the_exit_code_that_counts_it(
    of_push: Report, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {**dict.fromkeys(KINDS, 0), MISSING: 3}
    found = [Reconciled(name, "crm.people", ExitCode.OK, Differences(5, counts, []), 0.1, "") for name in ("crm", "b")]
    found[0] = replace(found[0], repaired=3)
    comparing: Any = SimpleNamespace(reconcile=lambda one, *_, **__: one)
    opened = SimpleNamespace(pusher=comparing, overview=None, chosen=found, overview_now=lambda: None)
    monkeypatch.setattr(looking, "Opened", lambda *_, **__: nullcontext(opened))
    monkeypatch.setattr(invocation, "watched", lambda *_: nullcontext())
    monkeypatch.setattr(invocation, "push_all", lambda _pusher, _due, _overview, ended, _glance: ended(of_push))
    said = CliRunner().invoke(cli.cli, ["reconcile", "--repair", "--json"], standalone_mode=False)
    repaired, other = json.loads(said.stdout)
    assert (said.return_value, repaired["exit_code"], other["exit_code"]) == (code, code, ExitCode.OK)
    assert (repaired["missing"], repaired["repaired"], other["repaired"]) == (3, 3, 0)
    assert (repaired["push"]["status"], repaired["push"]["message"]) == (of_push.status, of_push.message)
    assert other["push"] is None
