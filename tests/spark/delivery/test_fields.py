"""Columns that leave a model or the `fields` of a sync, and come back."""

from __future__ import annotations

import pytest

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
