"""A changelog that is a model with versions: each is a changelog of its own, and no operation takes one for the other."""

from __future__ import annotations

import pytest

from tests.support.dbt.project import Project


@pytest.fixture
def shop(project: Project) -> Project:
    for version, column in ((1, "name"), (2, "full_name")):
        sql = f"select cast(id as int) as id, concat('name ', id) as {column} from range({version * 2})"
        (project.folder / "models" / f"people_v{version}.sql").write_text(sql)
    config = {"materialized": "changelog", "unique_key": "id"}
    versions = {
        "latest_version": 2,
        "versions": [{"v": 1}, {"v": 2, "config": {"meta": {"reverse_etl": {"publish": "people"}}}}],
    }
    project.on_run_end("{{ reverse_etl.publish(results) }}")
    project.properties("people", {"models": [{"name": "people", "config": config, **versions}]})
    for version in (1, 2):
        project.sync(f"crm_people_{version}", f"people', v='{version}", mode="mirror", object=f"people_{version}")
    return project


def heads(project: Project) -> list[int]:
    """The newest snapshot of each version."""
    return [project.rows(f"select max(_snapshot_id) from {{s}}.people_v{version}")[0][0] for version in (1, 2)]


@pytest.mark.full
@pytest.mark.guarantee("Configuration")
def test_each_version_of_a_model_is_delivered_and_an_operation_wants_to_know_which_one_is_meant(shop: Project) -> None:
    first = shop.run()
    assert first.success, first.text
    assert [first.sync(f"crm_people_{version}") for version in (1, 2)] == ["+2 ~0 -0", "+4 ~0 -0"]
    assert "publish shop.people.v2: people shows snapshot 1, 4 rows" in first.text
    assert [len(shop.crm(f"select * from people_{version}")) for version in (1, 2)] == [2, 4]

    for operation, more in (("reset", ""), ("savepoint", ", name: before"), ("maintain", "")):
        asked = shop.dbt("run-operation", operation, "--args", f"{{model: people{more}}}")
        assert not asked.success
        assert "which is shop.people.v1 and shop.people.v2; expected one of them" in asked.text
    assert shop.dbt("run-operation", "savepoint", "--args", "{model: shop.people.v2, name: before}").success
    reset = shop.dbt("run-operation", "reset", "--args", "{model: people.v1}")
    assert reset.success, reset.text

    again = shop.run()
    assert "resync --args '{sync: crm_people_1}'" in again.text, "its changelog is another one now"
    assert again.sync("crm_people_2") == "nothing to send"
    assert heads(shop) == [1, 2], "version 1 began anew, version 2 has one more: the savepoint"
