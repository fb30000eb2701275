"""`dbt clone`: a developer's schema that begins as a shallow clone of production's changelog and ledger."""

from __future__ import annotations

import shutil

import pytest

from tests.support.dbt.project import Project


@pytest.mark.full
@pytest.mark.guarantee("dbt and its commands")
def test_a_clone_goes_on_from_productions_snapshot_and_leaves_production_alone(project: Project) -> None:
    def at(schema: str, file: str) -> None:
        project.output["schema"] = schema
        project.destinations["crm"] = {"type": "sqlite", "path": str(project.folder / file)}

    prod, dev = project.schema, f"{project.schema}_dev"
    project.table("source", "select * from values (1, 'pro'), (2, 'free'), (3, 'trial') as t (id, plan)")
    project.changelog("people", f"select id, plan from {prod}.source")
    project.sync("crm_people", "people", mode="mirror")
    assert project.dbt("run").sync("crm_people") == "+3 ~0 -0"
    shutil.copytree(project.folder / "target", project.folder / "prod")
    project.spark.sql(f"create schema if not exists {dev}")
    at(dev, "dev.db")
    cloned = project.dbt("clone", "--state", str(project.folder / "prod"))
    assert cloned.success, cloned.text

    project.table("source", "select * from values (1, 'pro'), (2, 'paid') as t (id, plan)")
    at(dev, "dev.db")
    ran = project.dbt("run")
    assert ran.messages["people"] == "+0 ~1 -1, snapshot 2", ran.text
    assert ran.sync("crm_people") == "+2 ~0 -0", "the destination of the clone is empty"
    at(prod, "crm.db")
    ran = project.dbt("run")
    assert ran.messages["people"] == "+0 ~1 -1, snapshot 2", ran.text
    assert ran.sync("crm_people") == "+0 ~1 -1"
    assert project.crm() == [(1, "pro"), (2, "paid")]
    project.spark.sql(f"drop schema {dev} cascade")
