"""What the ledger says a destination held, against what was read there after each run."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from click.testing import CliRunner

from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.delivery.facts import BUCKETS, Claim, RunStarted
from dbt_reverse_etl.warehouse.ledger import DeltaLedger
from tests.support.dbt.project import Project
from tests.support.servers.http import HttpServer, Received, Reply, http_server

Rows = dict[int, str]


class Api:
    """Keeps what it is told; the answer to a request may be lost after it was applied."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.loses: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, request: Received) -> Reply:
        key = request.path.rsplit("/", 1)[1]
        with self._lock:
            if request.method == "DELETE":
                self.rows.pop(int(key), None)
            else:
                self.rows[int(key)] = request.json["name"]
            return Reply(204, reset="after") if key in self.loses else Reply(204)


@pytest.fixture
def api() -> Iterator[tuple[Api, HttpServer]]:
    kept = Api()
    with http_server(kept) as server:
        yield kept, server


class Shop:
    """Three syncs of one changelog, and what their destinations held after each run."""

    def __init__(self, project: Project, api: Api, url: str) -> None:
        self.project, self.api = project, api
        self.seen: list[tuple[datetime, dict[str, Rows]]] = []
        project.destinations["crm_api"] = {"type": "http", "url": url, "timeout": {"connect": 5, "read": 5}}
        self.write("(1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
        project.changelog("contacts_changelog", f"select id, name, note from {project.schema}.source")
        fields = ["id", "name"]
        project.sync("crm_mirror", "contacts_changelog", mode="mirror", fields=fields, where="name <> 'hidden'")
        project.sync("crm_keeps", "contacts_changelog", mode="upsert", object="kept", fields=fields)
        # Parked: a repeat would take the doubt away within the run.
        project.sync(
            "crm_api",
            "contacts_changelog",
            destination="crm_api",
            object="people",
            mode="mirror",
            fields=fields,
            on_unknown="park",
        )
        with sqlite3.connect(project.folder / "crm.db") as crm:
            crm.execute("create table contacts (id integer primary key, name text check (length(name) < 8))")

    def write(self, rows: str, note: str = "x") -> None:
        self.project.table("source", f"select *, '{note}' as note from values {rows} as t (id, name)")

    def run(self, *, well: bool = True) -> None:
        assert self.push() is well
        self.see()

    def push(self) -> bool:
        return self.project.dbt("run", "--select", "contacts_changelog").success

    def retry(self) -> None:
        """Rows in doubt are sent again only by this."""
        place = ["--project-dir", str(self.project.folder), "--profiles-dir", str(self.project.folder)]
        result = CliRunner().invoke(cli, ["retry", *place], standalone_mode=False)
        assert (result.exception, result.return_value) == (None, 0), result.output
        self.see()

    def see(self) -> None:
        held = {
            "crm_mirror": dict(self.project.crm("select id, name from contacts")),
            "crm_keeps": dict(self.project.crm("select id, name from kept")),
            "crm_api": dict(self.api.rows),
        }
        self.seen.append((datetime.now(timezone.utc), held))

    def build(self, *syncs: str) -> None:
        """The views; nothing is pushed."""
        for sync in syncs:
            call = f"reverse_etl.delivered(ref('contacts_changelog'), '{sync}')"
            self.project.model(f"delivered_{sync}", f"select * from {{{{ {call} }}}}", {"materialized": "table"})
        result = self.project.dbt("run", "--select", *(f"delivered_{sync}" for sync in syncs))
        assert result.success, result.text

    def told(self, sync: str, at: datetime) -> tuple[Rows, set[int]]:
        """What `delivered` says of one moment: the rows that are sure, and the keys in doubt."""
        rows = self.project.rows(f"select * from {{s}}.delivered_{sync}")
        there = [
            row
            for row in rows
            if _utc(row.delivered_from) <= at and (row.delivered_to is None or at < _utc(row.delivered_to))
        ]
        assert len({row.id for row in there}) == len(there), "one state of a key at one time"
        return {row.id: row.name for row in there if not row.in_doubt}, {row.id for row in there if row.in_doubt}


def _utc(at: Any) -> datetime:
    found: datetime = at
    return found.replace(tzinfo=timezone.utc) if found.tzinfo is None else found


def crash(project: Project, sync: str) -> datetime:
    """What a run leaves that claims everything at the head, and dies while it sends."""
    (name,) = [row.relation for row in project.rows("select '{s}.reverse_etl_ledger' as relation")]
    ledger = DeltaLedger(project.spark, name)
    (sync_id,) = [
        row.sync_id
        for row in project.rows(f"select distinct sync_id from {{s}}.reverse_etl_ledger where sync = '{sync}'")
    ]
    state, now = ledger.read(sync_id), datetime.now(timezone.utc)
    (spec,) = state.specs
    claim = Claim("dead-0", 0, BUCKETS, state.head + 1, spec)
    started = RunStarted(
        sync_id, state.fence + 1, "dead", now, claim.snapshot, spec, state.specs, state.positions, (claim,), (),
        now - timedelta(seconds=1), "elsewhere:1", sync, state.changelog,
    )  # fmt: skip
    assert ledger.start(started)
    return datetime.now(timezone.utc)


@pytest.mark.full
@pytest.mark.guarantee("What people look at")
def test_delivered_tells_what_each_destination_held_after_each_run_and_where_nobody_knows(
    project: Project, api: tuple[Api, HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)  # the command goes there by itself
    kept, server = api
    shop = Shop(project, kept, server.url)
    shop.run()
    shop.write("(1, 'a'), (2, 'bb'), (4, 'far too long'), (5, 'hidden')")
    kept.loses = {"4"}
    shop.run(well=False)  # the mirror refuses 4, the API's answer for 4 is lost
    kept.loses = set()
    shop.write("(1, 'aa'), (2, 'bb'), (4, 'short'), (5, 'e')", note="y")
    shop.run(well=False)  # 4 stays in doubt at the API

    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    shop.write("(1, 'aaa'), (2, 'bb'), (6, 'f')", note="z")
    assert shop.push()
    crashed = crash(shop.project, "crm_api")
    in_doubt = {"crm_mirror": [set(), set(), set()], "crm_keeps": [set(), set(), set()], "crm_api": [set(), {4}, {4}]}
    shop.build(*in_doubt)
    for sync, doubts in in_doubt.items():
        for (at, held), doubt in zip(shop.seen, doubts, strict=True):
            expected = {key: name for key, name in held[sync].items() if key not in doubt}
            assert shop.told(sync, at) == (expected, doubt), (sync, at)
    assert shop.told("crm_api", crashed) == ({2: "bb"}, {1, 4, 5, 6}), "what differs from the claim"

    monkeypatch.delenv("DBT_REVERSE_ETL_PUSH")
    shop.push()
    shop.retry()
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    shop.build("crm_api")
    at, held = shop.seen[-1]
    assert shop.told("crm_api", at) == (held["crm_api"], set())
    assert shop.told("crm_api", crashed)[1] == {1, 4, 5, 6}, "history stays as it was known"


def test_a_delete_of_mode_changelog_ends_what_is_held_and_one_of_a_crashed_run_is_in_doubt(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.table("source", "select *, 'x' as captured_at from values (1, 'a'), (2, 'b'), (3, 'c') as t (id, name)")
    project.changelog("people", f"select * from {project.schema}.source")
    project.sync("crm_people", "people", mode="mirror")
    assert project.run().sync("crm_people") == "+3 ~0 -0"
    project.table("source", "select *, 'x' as captured_at from values (2, 'b'), (3, 'c') as t (id, name)")
    assert project.run().sync("crm_people") == "+0 ~0 -1"
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    project.table("source", "select *, 'x' as captured_at from values (3, 'c') as t (id, name)")
    assert project.run().success
    crash(project, "crm_people")

    held = (
        "reverse_etl.delivered(ref('people'), 'crm_people', columns=['id'])"  # the model has a `captured_at` of its own
    )
    project.model("held", f"select * from {{{{ {held} }}}} where is_held", {"materialized": "table"})
    for mode in ("mirror", "changelog"):  # only Kafka has the second one; the ledger differs in the word alone
        project.rows(f"update {{s}}.reverse_etl_ledger set body = replace(body, 'mirror', '{mode}')")
        result = project.dbt("run", "--select", "held")
        assert result.success, result.text
        rows = project.rows("select id, is_held, in_doubt from {s}.held order by id")
        assert [tuple(row) for row in rows] == [(2, True, True), (3, True, False)], mode
