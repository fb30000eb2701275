"""Columns that leave a model or the `fields` of a sync, and come back."""

from __future__ import annotations

import pytest

from dbt_reverse_etl.base.errors import ExitCode
from tests.support.dbt.command import call
from tests.support.dbt.project import Project


@pytest.mark.full
@pytest.mark.guarantee("What is sent")
def test_a_column_that_leaves_the_model_is_said_once_sends_nothing_and_stays_at_the_destination_until_it_comes_back(
    project: Project,
) -> None:
    def model(columns: str, *rows: str) -> None:
        project.table("source", f"select {columns} from values {', '.join(rows)} as t (id, name, plan)")
        settings = {"on_column_change": "sync_all_columns"}
        project.changelog("things", f"select * from {project.schema}.source", settings=settings)

    project.sync("crm_things", "things", mode="mirror")
    model("*", "(1, 'Ann', 'pro')", "(2, 'Bob', 'free')", "(3, 'Cem', null)")
    assert project.run().sync("crm_things") == "+3 ~0 -0"

    model("id, name", "(1, 'Ann', null)", "(2, 'Rob', null)", "(3, 'Cem', null)")
    dropped = project.run()
    assert dropped.messages["things"] == "+0 ~2 -0, snapshot 2"
    assert dropped.sync("crm_things") == "+0 ~1 -0"
    assert (
        "no longer sends plan, which the model or `fields` has no more; its values at the destination stay"
        in dropped.text
    )
    assert project.crm() == [(1, "Ann", "pro"), (2, "Rob", "free"), (3, "Cem", None)]
    rested = project.run()
    assert "no longer sends" not in rested.text

    model("*", "(1, 'Ann', null)", "(2, 'Rob', 'free')", "(3, 'Cem', 'pro')")
    back = project.run()
    assert back.messages["things"] == "+0 ~2 -0, snapshot 3"
    assert back.sync("crm_things") == "+0 ~3 -0", "nobody knows what the destination holds of it"
    assert project.crm() == [(1, "Ann", None), (2, "Rob", "free"), (3, "Cem", "pro")]

    project.sync("crm_things", "things", mode="mirror", fields=["id", "plan"])
    chosen = project.run()
    assert chosen.sync("crm_things") == "+0 ~0 -0"
    assert "no longer sends name" in chosen.text


@pytest.mark.full
@pytest.mark.guarantee("What is sent")
@pytest.mark.parametrize("pushed", [False, True], ids=["not pushed between", "pushed between"])
def test_a_column_that_came_back_with_another_type_is_sent_again_and_what_was_delivered_before_is_still_known(
    project: Project, monkeypatch: pytest.MonkeyPatch, *, pushed: bool
) -> None:
    """A struct became text, and the filter's text a number: Spark computes neither of the old over the new."""

    def model(columns: str, *rows: str) -> None:
        project.table("source", f"select {columns} from values {', '.join(rows)} as t (id, profile, status)")
        settings = {"on_column_change": "sync_all_columns"}
        project.changelog("things", f"select * from {project.schema}.source", settings=settings)

    project.model("held", "select * from {{ reverse_etl.delivered(ref('things'), 'crm_things') }}")
    project.sync("crm_things", "things", mode="mirror", where="status = 'active'")
    rows = ["(1, named_struct('a', 1), 'active')", "(2, named_struct('a', 2), 'idle')", "(3, null, 'active')"]
    model("*", *rows)
    assert project.run().sync("crm_things") == "+2 ~0 -0"

    project.sync("crm_things", "things", mode="mirror")
    if not pushed:
        monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    model("id", *rows)
    assert project.run().success
    monkeypatch.delenv("DBT_REVERSE_ETL_PUSH", raising=False)

    project.sync("crm_things", "things", mode="mirror", where="status = 1")
    model("*", "(1, 'one', 1)", "(2, null, 1)", "(3, null, 0)")
    back = project.run()
    assert back.success, back.text
    assert back.sync("crm_things") == ("+0 ~2 -1" if pushed else "+1 ~1 -1")
    assert project.crm("select id, profile from contacts order by id") == [(1, "one"), (2, None)]

    again = project.run()
    assert again.success, again.text
    held = project.rows(f"select id, snapshot_id, is_held from {project.schema}.held where id in (1, 3)")
    first = {row.id: row.is_held for row in held if row.snapshot_id == 1}
    assert first == {1: False, 3: False}, "what was delivered before, by the former values"
    assert {row.id for row in held if row.is_held} == {1}
    compared = call(project, "reconcile")
    assert (compared.exception, compared.return_value) == (None, ExitCode.OK)
