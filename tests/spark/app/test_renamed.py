"""A renamed sync stops until it is said what becomes of the rows that it delivered under its former name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dbt.command import call, exit_code, read
from tests.support.dbt.project import Project

NAMES = {n: f"name {n}" for n in range(20)}


@pytest.fixture
def shop(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setattr(sys, "argv", ["dbt-reverse-etl"])
    here = Path.cwd()
    people(project, 20)
    project.changelog("people_changelog", f"select id, name from {project.schema}.source")
    project.sync("crm_contacts", "people_changelog", mode="mirror")
    yield project
    os.chdir(here)


def people(project: Project, number: int) -> None:
    project.table("source", f"select cast(id as int) as id, concat('name ', id) as name from range({number})")


def rename(project: Project, before: str, name: str, **settings: object) -> None:
    (project.folder / f"models/exposure_{before}.yml").unlink()
    project.sync(name, "people_changelog", mode="mirror", **settings)


def runs(project: Project) -> int:
    return int(project.rows("select count(*) from {s}.reverse_etl_ledger where fact = 'run_started'")[0][0])


@pytest.mark.full
@pytest.mark.guarantee("Configuration")
def test_a_renamed_sync_stops_and_goes_on_with_renamed_from_or_begins_anew_after_forget(shop: Project) -> None:
    assert shop.run().sync("crm_contacts") == "+20 ~0 -0"

    rename(shop, "crm_contacts", "crm_people")
    people(shop, 6)
    stopped = shop.run()
    assert not stopped.success
    assert stopped.sync("crm_people") == "ERROR renamed"
    assert "one of crm_contacts for crm.contacts, at snapshot 1, which no sync has any more" in stopped.text
    assert dict(shop.crm()) == NAMES
    assert runs(shop) == 1, "no run began"
    assert exit_code(shop, "plan", "--quiet") == 5
    [status] = read(call(shop, "status", "--json"))
    assert (status["health"], status["reason"].partition(":")[0]) == ("failing", "renamed")

    rename(shop, "crm_people", "crm_people", renamed_from="crm_contacts")
    taken = shop.run()
    assert taken.success, taken.text
    assert taken.sync("crm_people") == "+0 ~0 -14"
    assert dict(shop.crm()) == {n: NAMES[n] for n in range(6)}
    assert shop.dbt("run-operation", "resync", "--args", "{sync: crm_people}").success
    asked = shop.rows(
        "select from_json(body, 'exposure string, destination string, object string') as said from {s}.reverse_etl_ledger where fact = 'request'"
    )
    asked_of = [(row.said.exposure.rpartition(".")[2], row.said.object) for row in asked]
    assert asked_of == [("crm_contacts", "contacts")], "it is asked of the position, not of the name"
    assert all(row.said.destination for row in asked), "and of the destination"

    rename(shop, "crm_people", "crm_third")
    people(shop, 3)
    shop.rows(
        "insert into {s}.reverse_etl_ledger (sync_id, fence, seq, fact, recorded_at, sync, run_id, body) select 'request', 0, 0, 'request', "
        """current_timestamp(), 'crm_contacts', uuid(), '{"operation": "forget", "exposure": "exposure.other_shop.crm_contacts"}'"""
    )
    assert "renamed_from: crm_contacts takes the position over" in shop.run().text, "another project asked for its own"
    assert shop.dbt("run-operation", "forget", "--args", "{sync: crm_contacts}").success
    anew = shop.run()
    assert anew.success, anew.text
    assert anew.sync("crm_third") == "+3 ~0 -0"
    assert len(shop.crm()) == 6, "it was said that they stay"
    assert shop.run().sync("crm_third") == "nothing to send"
    assert runs(shop) == 4, "the request was carried out, once, as a run of its own"

    (shop.folder / "models/people_changelog.sql").rename(shop.folder / "models/persons_changelog.sql")
    (shop.folder / "models/people_changelog.yml").unlink()
    shop.changelog("persons_changelog", f"select id, name from {shop.schema}.source")
    shop.sync("crm_third", "persons_changelog", mode="mirror")
    assert shop.run().sync("crm_third") == "ERROR other_changelog", "a renamed changelog is another one"
