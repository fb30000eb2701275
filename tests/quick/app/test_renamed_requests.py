"""What was asked of a sync whose name changed: it is carried out for its position, or left alone with a word, and hides no other position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.app import sync_push
from dbt_reverse_etl.app.identity import id_of, requests_of
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.delivery.facts import RunStarted
from dbt_reverse_etl.delivery.ports import Job, RunResult, Status
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.warehouse.overview import Overview, Request
from dbt_reverse_etl.warehouse.spec import Spec
from tests.support.delivery.pushers import at, pusher, sync
from tests.support.delivery.world import MemoryLedger

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def named(name: str, object_name: str, **more: Any) -> ResolvedSync:
    one = sync(name, "orders", **more)
    return one._replace(sync=replace(one.sync, settings=one.sync.settings.model_copy(update={"object": object_name})))


CONTACTS = named("contacts", "x")


def ledger_of(
    before: Iterable[ResolvedSync], now: Iterable[ResolvedSync], *asked: str, project: str = "shop"
) -> Overview:
    """`before` was pushed; `asked` says `resync contacts` or `resync contacts x`, with the object, in this order."""
    states, started, aliases = dict[str, State](), dict[str, RunStarted](), dict[str, set[str]]()
    for one in before:
        own, exposure = id_of(one), one.sync.position_of
        states |= at(one, 5).states
        aliases[own] = {one.sync.name}
        started[own] = RunStarted(
            own, 1, "r", NOW, 5, "s", {}, (), (), (), NOW, "o", sync=one.sync.name, exposure=exposure
        )
    requests: dict[str, list[Request]] = {}
    objects = {one.sync.name: one.sync.settings.object for one in [*now, *before]}
    for number, text in enumerate(asked):
        operation, name, *place = text.split()
        exposure, when = f"exposure.{project}.{name}", NOW + timedelta(minutes=number)
        requests.setdefault(name, []).append(
            Request(
                f"{operation} {name}",
                name,
                operation,
                when,
                exposure=exposure,
                object=place[0] if place else objects.get(name, "x"),
            )
        )
    configured = frozenset(map(id_of, now))
    return Overview(states, requests, started, configured=configured, aliases=aliases)


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each request with the name of the sync for which it was carried out; each run that sends by `sent`."""
    done: list[str] = []

    def carry_out(request: Request, state: State, job: Job, *_: object) -> None:
        done.append(f"{request.id} for {job.task.sync} of {job.task.object}")

    def run(job: Job, *_: object) -> RunResult:
        done.append("sent")
        return RunResult(Status.SUCCEEDED, 2)

    monkeypatch.setattr(sync_push, "carry_out", carry_out)
    monkeypatch.setattr(sync_push, "run", run)
    monkeypatch.setattr(Spec, "arrow_schema", lambda _: pa.schema([("id", pa.int64())]))
    monkeypatch.setattr(SyncPush, "_spec", lambda one, *_, **__: next(iter(at_spec(one))))
    monkeypatch.setattr(SqliteSink, "missing", lambda *_: None)
    return done


def at_spec(one: SyncPush) -> Iterable[Spec]:
    return map(Spec.of, at(one._resolved, 5).states[one.id].specs.values())


def pushed(one: ResolvedSync, now: list[ResolvedSync], overview: Overview) -> Report:
    memory: dict[str, Any] = {"ledger": MemoryLedger()}
    return replace(pusher(orders=5), resolved=now, **memory).push(one, overview)


def planned(one: ResolvedSync, now: list[ResolvedSync], overview: Overview) -> Report:
    memory: dict[str, Any] = {"ledger": MemoryLedger()}
    return replace(pusher(orders=5), resolved=now, **memory).plan(one, overview, rows=0)


PEOPLE = named("people", "x")


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("asked", [["resync people"], ["forget people"], ["resync people", "forget people"]])
def test_a_request_of_its_new_name_does_not_get_a_renamed_sync_past_its_stop(
    asked: list[str], carried_out: list[str]
) -> None:
    overview = ledger_of([CONTACTS], [PEOPLE], *asked)
    report = pushed(PEOPLE, [PEOPLE], overview)
    assert (report.status, report.exit_code) == ("renamed", ExitCode.OTHER_CHANGELOG), report.message
    assert carried_out == []
    shown = planned(PEOPLE, [PEOPLE], overview)
    assert (shown.status, shown.exit_code) == ("renamed", ExitCode.OTHER_CHANGELOG), shown.message


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (["adopt people"], ["adopt people for people of x", "sent"]),
        (["resync people", "forget contacts"], ["forget contacts for contacts of x", "resync people for people of x", "sent"]),
    ],
)  # fmt: skip
def test_a_renamed_sync_that_adopts_or_whose_former_position_is_forgotten_goes_on(
    asked: list[str], wanted: list[str], carried_out: list[str]
) -> None:
    report = pushed(PEOPLE, [PEOPLE], ledger_of([CONTACTS], [PEOPLE], *asked))
    assert report.status == Status.SUCCEEDED, report.message
    assert carried_out == wanted


TAKEN = named("people", "x", renamed_from="contacts")


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("operation", ["resync", "adopt", "forget"])
def test_what_was_asked_of_the_former_name_is_carried_out_for_the_position(
    operation: str, carried_out: list[str]
) -> None:
    overview = ledger_of([CONTACTS], [TAKEN], f"{operation} contacts", "resync people")
    assert pushed(TAKEN, [TAKEN], overview).status == Status.SUCCEEDED
    assert carried_out == [f"{operation} contacts for people of x", "resync people for people of x", "sent"]


@pytest.mark.guarantee("Configuration")
def test_of_two_requests_of_the_former_name_a_killed_push_leaves_the_second_to_the_next(carried_out: list[str]) -> None:
    overview = ledger_of([TAKEN], [TAKEN], "adopt contacts")  # the first has begun a run by the new name
    pushed(TAKEN, [TAKEN], overview)
    assert carried_out == ["adopt contacts for people of x", "sent"]


def test_what_an_earlier_build_asked_of_a_name_alone_is_for_that_name(carried_out: list[str]) -> None:
    overview = ledger_of([TAKEN], [TAKEN], "forget contacts", "resync people")
    asked = {name: [replace(one, exposure="", object="") for one in some] for name, some in overview.requests.items()}
    pushed(TAKEN, [TAKEN], replace(overview, requests=asked))
    assert carried_out == ["resync people for people of x", "sent"]


def test_what_was_asked_of_a_former_name_in_another_project_is_left(carried_out: list[str]) -> None:
    overview = ledger_of([CONTACTS], [TAKEN], "resync contacts", project="other")
    assert pushed(TAKEN, [TAKEN], overview).message == ""
    assert carried_out == ["sent"]


@pytest.mark.parametrize("object_name", ["x", "y"])
def test_a_new_sync_of_the_former_name_carries_out_what_was_asked_of_it(
    object_name: str, carried_out: list[str]
) -> None:
    """`x`: at another destination."""
    new = named("contacts", object_name)
    overview = ledger_of([TAKEN, new], [TAKEN, new], "adopt contacts")
    pushed(TAKEN, [TAKEN, new], overview)
    assert carried_out == ["sent"]
    pushed(new, [TAKEN, new], overview)
    assert carried_out[1:] == [f"adopt contacts for contacts of {object_name}", "sent"]


@pytest.mark.parametrize(
    "others", [[], [TAKEN], [TAKEN._replace(sync=replace(TAKEN.sync, enabled=False))], [named("third", "x", renamed_from="contacts")]]
)  # fmt: skip
def test_a_new_sync_of_a_former_name_never_carries_out_what_was_asked_of_the_position(
    others: list[ResolvedSync], carried_out: list[str]
) -> None:
    new = named("contacts", "y")
    overview = ledger_of([TAKEN, new], [new, *others])
    asked = Request("adopt people", "people", "adopt", NOW, exposure="exposure.shop.contacts", object="x")
    pushed(new, [new, *others], replace(overview, requests={"people": [asked]}))
    assert carried_out == ["sent"]


def test_a_disabled_sync_that_swapped_names_keeps_what_was_asked_of_it(carried_out: list[str]) -> None:
    other = named("contacts", "y", renamed_from="people")
    other = other._replace(sync=replace(other.sync, enabled=False))
    overview = ledger_of([TAKEN, named("people", "y")], [TAKEN, other])
    asked = Request("adopt people", "people", "adopt", NOW, exposure="exposure.shop.people")
    pushed(TAKEN, [TAKEN, other], replace(overview, requests={"people": [asked]}))
    assert carried_out == ["sent"]


def test_a_forget_of_a_retired_name_is_not_for_the_sync_that_was_renamed_from_it(carried_out: list[str]) -> None:
    overview = ledger_of([TAKEN], [TAKEN])
    asked = Request("forget contacts", "contacts", "forget", NOW, exposure="exposure.shop.contacts")
    pushed(TAKEN, [TAKEN], replace(overview, requests={"contacts": [asked]}))
    assert carried_out == ["sent"]


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("alone", [[], [0], [1]])
def test_of_two_syncs_that_swap_names_each_carries_out_what_was_asked_of_its_former_one(
    alone: list[int], carried_out: list[str]
) -> None:
    before = [CONTACTS, named("people", "y")]
    now = [TAKEN, named("contacts", "y", renamed_from="people")]
    first = ["resync contacts for people of x", "sent"], ["forget people for contacts of y", "sent"]
    known = [now[place] if place in alone else one for place, one in enumerate(before)]  # pushed by its new name
    overview = ledger_of(known, now, "resync contacts x", "forget people y")
    for one in now:
        pushed(one, now, overview)
    assert carried_out == [*first[0], *first[1]]


def test_a_sync_that_moved_carries_out_what_was_asked_of_its_name(carried_out: list[str]) -> None:
    moved = named("contacts", "y")
    pushed(moved, [moved], ledger_of([CONTACTS], [moved], "adopt contacts y", "forget contacts x"))
    assert carried_out == ["adopt contacts for contacts of y", "sent"]


def test_a_sync_is_due_while_something_is_asked_of_its_position_or_of_its_name_before_that_was_known() -> None:
    assert requests_of(TAKEN, ledger_of([CONTACTS], [TAKEN], "resync contacts"), [TAKEN])
    assert requests_of(TAKEN, ledger_of([], [TAKEN], "resync people"), [TAKEN])
    assert not requests_of(TAKEN, ledger_of([TAKEN], [TAKEN], "resync others"), [TAKEN])
