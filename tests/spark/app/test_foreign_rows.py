"""Two syncs in one object, and one whose mode and filter change: whoever put a row there, only that sync takes it away."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.base.errors import ExitCode
from tests.support.dbt.command import call, found_by
from tests.support.dbt.project import Project
from tests.support.servers.http import http_server
from tests.support.servers.people_api import PeopleApi

SEED = 20261123
IDS = 24
PLANS = ["a", "b", "c", None]  # c is hidden from all; None: not in the model
# What one sync does in turn: rows of an older mode or filter are left there, and later they are not.
MOODS = [("upsert", "a"), ("upsert", "b"), ("insert_only", "a"), ("mirror", "a")]
MIRROR, UPSERT, UNTOLD, SOMEBODY = "mirror", "upsert", "either of the two", "somebody"

Model = dict[int, tuple[str, str]]  # plan, name


class Object:
    """What stands at a destination, noted by whoever watches: the name of each row, and who put it there."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[str, str]] = {}

    @property
    def names(self) -> dict[int, str]:
        return {key: name for key, (name, _) in self.rows.items()}

    def two_syncs(self, model: Model) -> None:
        """A mirror of plan a, and an upsert of plan b."""
        for key, (_, owner) in [*self.rows.items()]:
            if owner == MIRROR and model.get(key, ("", ""))[0] not in ("a", "b"):
                del self.rows[key]
        for key, (plan, name) in model.items():
            if plan in ("a", "b"):
                self.rows[key] = (name, MIRROR if plan == "a" else UPSERT)

    def one_sync(self, model: Model, mode: str, seen: str) -> None:
        """One sync that sees one plan."""
        visible = {key: name for key, (plan, name) in model.items() if plan == seen}
        for key, (_, owner) in [*self.rows.items()]:
            if mode == "mirror" and owner == MIRROR and key not in visible:
                del self.rows[key]
        for key, name in visible.items():
            if mode != "insert_only":
                self.rows[key] = (name, MIRROR)
            elif key not in self.rows:
                self.rows[key] = (name, UNTOLD)

    def somebody(self, rnd: random.Random, keys: list[int]) -> dict[int, str]:
        """Rows that a person puts where there is none."""
        added = {key: f"by hand {rnd.random():.4f}" for key in keys if key not in self.rows and rnd.random() < 0.4}
        self.rows |= {key: (name, SOMEBODY) for key, name in added.items()}
        return added


class Shop:
    """The model, three objects, and the account of each."""

    def __init__(self, project: Project, api: PeopleApi) -> None:
        self.project, self.api, self.rnd = project, api, random.Random(SEED)
        self.model: Model = {}
        self.mode, self.seen = MOODS[0]
        self.owners: set[str] = set()
        self.shared, self.moody, self.remote = Object(), Object(), Object()

    def change(self) -> None:
        """Some rows get another plan or name, leave the model or come into it."""
        for key in range(IDS):
            if self.rnd.random() < 0.5:
                plan = self.rnd.choice(PLANS)
                self.model.pop(key, None)
                if plan:
                    self.model[key] = (plan, f"name {self.rnd.randint(0, 3)}")
        rows = ", ".join(f"({key}, '{plan}', '{name}')" for key, (plan, name) in self.model.items())
        self.project.table("source", f"select * from values {rows} as t (id, plan, name)")

    def run(self) -> None:
        where, fields = f"plan = '{self.seen}'", ["id", "name"]  # not the plan, so that no row tells whose it is
        self.project.sync("moody", "people", object="moody", mode=self.mode, where=where, fields=fields)
        result = self.project.run()
        assert result.success, result.text
        self.shared.two_syncs(self.model)
        self.remote.two_syncs(self.model)
        self.moody.one_sync(self.model, self.mode, self.seen)
        self.holds()

    def holds(self) -> None:
        assert dict(self.project.crm("select id, name from shared")) == self.shared.names
        assert dict(self.project.crm("select id, name from moody")) == self.moody.names
        assert self.api.rows == self.remote.names
        self.owners |= {owner for one in (self.shared, self.moody, self.remote) for _, owner in one.rows.values()}

    def somebody(self) -> None:
        """A person puts rows where there are none: of keys that the model hides, has deleted, or does not know."""
        keys = [*(key for key in range(IDS) if self.model.get(key, ("c", ""))[0] == "c"), *range(100, 103)]
        for name, there in (("shared", self.shared), ("moody", self.moody)):
            self.lite(f"insert into {name} values (?, ?)", *there.somebody(self.rnd, keys).items())
        self.api.rows |= self.remote.somebody(self.rnd, keys)

    def vandalise(self) -> None:
        """A person changes and deletes rows of the syncs."""
        for name, there, owners in (("shared", self.shared, (MIRROR, UPSERT)), ("moody", self.moody, (MIRROR,))):
            ours = [key for key, (_, owner) in there.rows.items() if owner in owners and self._is_delivered(key, name)]
            for key in self.rnd.sample(ours, min(3, len(ours))):
                gone = self.rnd.random() < 0.5
                self.lite(
                    f"delete from {name} where id = ?" if gone else f"update {name} set name = 'spoilt' where id = ?",
                    (key,),
                )

    def _is_delivered(self, key: int, name: str) -> bool:
        plan = self.model.get(key, ("", ""))[0]
        if name == "shared":
            return plan in ("a", "b")
        return plan == self.seen and self.mode != "insert_only"  # which promises no values

    def lite(self, statement: str, *values: tuple[Any, ...]) -> None:
        with closing(sqlite3.connect(self.project.folder / "crm.db", isolation_level=None)) as connection:
            connection.executemany(statement, values)


@pytest.fixture
def shop(project: Project) -> Iterator[Shop]:
    here, api = Path.cwd(), PeopleApi()
    with http_server(api) as server:
        project.destinations["api"] = {"type": "http", "url": server.url}
        project.changelog("people", f"select id, plan, name from {project.schema}.source")
        for prefix, place in (("crm", {"object": "shared"}), ("api", {"object": "people", "destination": "api"})):
            for mode, plan in (("mirror", "a"), ("upsert", "b")):
                given: dict[str, Any] = {"mode": mode, "where": f"plan = '{plan}'", "fields": ["id", "name"]}
                project.sync(f"{prefix}_{mode}", "people", **place, **given)
        yield Shop(project, api)
    os.chdir(here)


@pytest.mark.guarantee("What is sent")
@pytest.mark.full
def test_over_random_histories_no_row_of_anybody_else_is_deleted_and_after_a_repair_nothing_differs(shop: Shop) -> None:
    print(f"seed {SEED}")
    for number, (shop.mode, shop.seen) in enumerate(MOODS):
        shop.change()
        if number in (1, 3):
            for sync in ("crm_mirror", "api_mirror", "moody"):
                assert shop.project.dbt("run-operation", "resync", "--args", f"{{sync: {sync}}}").success
        shop.run()
        shop.somebody()
        shop.vandalise()
        repaired = call(shop.project, "reconcile", "--repair")
        assert (repaired.exception, repaired.return_value) == (None, ExitCode.OK), repaired.output
        shop.holds()
    assert {report["exit_code"] for report in found_by(shop.project).values()} == {ExitCode.OK}
    assert shop.owners == {MIRROR, UPSERT, SOMEBODY, UNTOLD}, "the history has met them all"


@pytest.mark.full
@pytest.mark.guarantee("What is sent")
def test_a_sync_sends_again_what_a_mirror_of_its_object_deleted_since_its_last_push(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path.cwd()
    for mode, plan in (("mirror", "a"), ("upsert", "b")):
        given: dict[str, Any] = {"mode": mode, "where": f"plan = '{plan}'", "fields": ["id", "name"]}
        project.sync(f"crm_{mode}", "people", object="shared", **given)

    def held(plan: str) -> list[tuple[Any, ...]]:
        others = "select 2, 'b', 'Bob' union all select id + 10, 'a', 'Cem' from range(20)"
        project.changelog("people", f"select 1L as id, '{plan}' as plan, 'Ann' as name union all {others}")
        assert project.run().success
        return project.crm("select id from shared where id < 10 order by id")

    assert held("b") == [(1,), (2,)]
    for plan in ("a", "c"):
        monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
        held(plan)
        monkeypatch.delenv("DBT_REVERSE_ETL_PUSH")
        pushed = call(project, "push", "--select", "crm_mirror")
        assert (pushed.exception, pushed.return_value) == (None, ExitCode.OK), pushed.output
    assert project.crm("select id from shared where id < 10") == [(2,)]
    assert held("b") == [(1,), (2,)]
    os.chdir(here)


@pytest.mark.full
@pytest.mark.guarantee("What is sent")
def test_a_sync_that_only_updates_sends_again_what_a_mirror_of_its_object_made_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path.cwd()
    project.sync("crm_mirror", "people", object="shared", mode="mirror", where="plan = 'a'", fields=["id", "name"])
    project.sync("crm_scores", "people", object="shared", mode="update_only", fields=["id", "score"])
    with closing(sqlite3.connect(project.folder / "crm.db")) as crm:
        crm.execute("create table shared (id integer primary key, name text, score integer)")
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    for plan in ("a", "b", "a"):
        others = "select id + 10, 'a', 'Cem', 7L from range(20)"
        project.changelog("people", f"select 1L as id, '{plan}' as plan, 'Ann' as name, 5L as score union all {others}")
        assert project.run().success
        with monkeypatch.context() as pushing:
            pushing.delenv("DBT_REVERSE_ETL_PUSH")
            for name in ("crm_mirror", "crm_scores"):
                pushed = call(project, "push", "--select", name)
                assert (pushed.exception, pushed.return_value) == (None, ExitCode.OK), pushed.output
        assert project.crm("select * from shared where id < 10") == ([(1, "Ann", 5)] if plan == "a" else []), plan
    os.chdir(here)
