"""Which snapshot the hook `publish` shows: none after a failed test, and after `dbt test` alone none that was committed once the tests had begun."""

from __future__ import annotations

import datetime as clock
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from tests.support import ROOT
from tests.support.dbt.macros import Macros

NOW = datetime.now(timezone.utc)
BEGAN = NOW - timedelta(minutes=10)
Commit = Mapping[str, Any]


class _Returned(BaseException):
    """As dbt's `return` leaves a macro."""


def is_newer(commits: Sequence[Commit], zone: timezone | None) -> bool:
    """What `_is_newer` says of snapshot 7, where the session gives its times in this zone, or without one."""

    def shown(at: datetime) -> datetime:
        return at.astimezone(zone) if zone else (at + timedelta(hours=5)).replace(tzinfo=None)

    def run_query(text: str) -> Any:
        if text == "select current_timestamp()":
            return SimpleNamespace(rows=[[shown(datetime.now(timezone.utc))]])
        assert text.startswith("describe history things limit ")
        return SimpleNamespace(rows=[{**one, "timestamp": shown(one["timestamp"])} for one in commits])

    def leave(value: object) -> None:
        raise _Returned(value)

    page = jinja2.Environment(undefined=jinja2.StrictUndefined, extensions=["jinja2.ext.do"]).from_string(
        (ROOT / "macros" / "hooks" / "publish.sql").read_text() + "{{ _is_newer(changelog, none) }}"
    )
    modules = SimpleNamespace(datetime=clock, pytz=SimpleNamespace(utc=timezone.utc))
    package = SimpleNamespace(_changed=lambda _: 7)
    changelog = SimpleNamespace(head=None, target="things")
    context = {"run_started_at": BEGAN, "run_query": run_query, "return": leave, "modules": modules}
    with pytest.raises(_Returned) as returned:
        page.render(**context, reverse_etl=package, changelog=changelog)
    return bool(returned.value.args[0])


def commit(said: str | None, minutes: int) -> Commit:
    return {"userMetadata": said, "timestamp": BEGAN + timedelta(minutes=minutes)}


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("zone", [None, timezone.utc, timezone(timedelta(hours=-8))])
@pytest.mark.parametrize(
    ("commits", "is_so"),
    [
        ([commit("snapshot 7 of capture a", 1)], True),
        ([commit("snapshot 7 of capture a", -1)], False),
        ([commit(None, 2), commit("snapshot 8 of capture b", 1), commit("snapshot 7 of capture a", -1)], False),
        ([commit("snapshot 71 of capture b", 1), commit("snapshot 7 of capture a", -1)], False),
        ([commit(None, 2), commit("snapshot 7 of capture a", 1), commit("snapshot 6 of capture b", -1)], True),
        ([commit(None, 2)], False),
    ],
)
def test_a_snapshot_that_was_committed_after_the_tests_began_is_not_published_in_any_zone(
    commits: list[Commit], zone: timezone | None, *, is_so: bool
) -> None:
    assert is_newer(commits, zone) is is_so


THINGS = {
    "unique_id": "model.shop.things",
    "name": "things",
    "resource_type": "model",
    "config": {"materialized": "changelog", "meta": {"reverse_etl": {"publish": "live"}}},
}
TEST = {
    "unique_id": "test.shop.no_negative",
    "name": "no_negative",
    "resource_type": "test",
    "config": {},
    "depends_on": {"nodes": ["model.shop.things"]},
}


def result(node: Mapping[str, Any], status: str) -> dict[str, Any]:
    return {"node": node, "status": status, "adapter_response": {}}


class Existing(str):
    """A table of the schema."""

    type = "table"


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("status", ["fail", "error"])
def test_after_a_failed_unit_test_which_the_graph_does_not_hold_the_snapshot_is_not_published(status: str) -> None:
    macros = Macros(
        graph={"nodes": {one["unique_id"]: one for one in (THINGS, TEST)}},
        flags=SimpleNamespace(EMPTY=False),
        invocation_args_dict={},
    )
    unit = {**TEST, "resource_type": "unit_test", "unique_id": "unit_test.shop.things.adds", "name": "adds"}
    macros.publish([result(TEST, "pass"), result(unit, status)])
    assert macros.logged == [f"publish things: not published, for tests did not pass: adds ({status})"]
    elsewhere = {**unit, "depends_on": {"nodes": ["model.shop.others"]}}
    tests = {"test.shop.no_negative": "pass", unit["unique_id"]: status}
    node = {**THINGS, "defer_relation": None}
    assert macros._not_publishable(node, [TEST["unique_id"]], tests, [elsewhere]) == ""
    assert macros._not_publishable(node, [TEST["unique_id"]], {**tests, unit["unique_id"]: "pass"}, [unit]) == ""


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("others", "taken_by"),
    [([], "s.live, a table"), ([{"unique_id": "model.shop.live", "name": "live", "alias": "Live"}], "model.shop.live")],
)
def test_after_dbt_test_a_name_that_is_taken_meanwhile_leaves_that_changelog_alone_unpublished(
    others: list[dict[str, Any]], taken_by: str
) -> None:
    of_all = {"resource_type": "model", "database": None, "schema": "s", "alias": "", "defer_relation": None}
    nodes = [
        {**of_all, **one} for one in ({**THINGS, "alias": "things"}, TEST, *({**one, "config": {}} for one in others))
    ]
    existing = Existing("s.live")
    macros: Any = Macros(
        graph=SimpleNamespace(nodes={one["unique_id"]: one for one in nodes}, sources={}),
        flags=SimpleNamespace(EMPTY=False),
        invocation_args_dict={},
        adapter=SimpleNamespace(get_relation=lambda **_: existing),
    )
    macros._macros["_opened_changelog"] = lambda *_: SimpleNamespace(target="s.things")
    macros.publish([result(TEST, "pass")])
    assert macros.logged == [
        f"publish things: not published, for 'live' is the name of {taken_by}; expected a name of its own; "
        "next: take another one in meta.reverse_etl.publish"
    ]
    assert macros.run == []
