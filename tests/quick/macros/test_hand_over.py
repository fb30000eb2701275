"""Whether dbt hands its syncs over to a Python model: not where a run of a developer or of a pull request could be taken for production's."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import Macros

SYNC = {
    "name": "crm",
    "depends_on": {"nodes": ["model.shop.log"]},
    "config": {"meta": {"reverse_etl": {"object": "o"}}},
}
CLOUD = "DBT_CLOUD_INVOCATION_CONTEXT"


class Relation(str):
    identifier = "push_customers"

    def incorporate(self, path: dict[str, str], **_: str) -> str:
        return path["identifier"]


LEDGER = {
    "unique_id": "model.reverse_etl.reverse_etl_ledger",
    "resource_type": "model",
    "config": {"meta": {"of": "the user", "reverse_etl_made_for": {"target": "prod"}}},
}
TESTS = {
    f"test.shop.{name}": {"resource_type": "test", "depends_on": {"nodes": [model]}, "config": {}}
    for name, model in {"ids_are_set": "model.shop.log", "elsewhere": "model.shop.others"}.items()
}


def handed_over(target: str, **env: str) -> tuple[dict[str, Any], list[str]]:
    """The exposures, and what the log has."""
    written, logged = all_handed_over(target, {}, **env)
    return written["exposures"], logged


def all_handed_over(target: str, args: dict[str, Any], **env: str) -> tuple[dict[str, Any], list[str]]:
    """What the table has, and the log."""
    macros = Macros(
        target=SimpleNamespace(name=target, type="databricks"),
        env_var=env.get,
        graph=SimpleNamespace(nodes={LEDGER["unique_id"]: LEDGER, **TESTS}, exposures={"exposure.shop.crm": SYNC}),
        model=SimpleNamespace(name="push_customers", depends_on=SimpleNamespace(nodes=["model.shop.log"])),
        flags=SimpleNamespace(WHICH="build", EMPTY=False),
        invocation_id="1",
        invocation_args_dict=args,
        this=Relation("push_customers"),
    )
    (text,) = re.findall(r"select '(.*)' as syncs", macros.hand_over_syncs(), re.DOTALL)
    return json.loads(text.replace("\\\\", "\\").replace("\\'", "'")), macros.logged


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("context", ["ci", "dev", "staging"])
def test_a_pull_request_or_a_developer_with_the_default_target_of_dbt_cloud_hands_over_no_sync(context: str) -> None:
    exposures, (line,) = handed_over("default", **{CLOUD: context})
    assert exposures == {}
    assert line.startswith(
        f"push_customers: no sync is pushed, because {CLOUD} is {context} and the target is `default`"
    )
    assert "target name" in line


@pytest.mark.parametrize(("target", "context"), [("default", "prod"), ("default", ""), ("prod", "ci"), ("me", "dev")])
def test_a_production_job_or_a_target_with_a_name_of_its_own_hands_its_syncs_over(target: str, context: str) -> None:
    exposures, logged = handed_over(target, **({CLOUD: context} if context else {}))
    assert ([one["name"] for one in exposures.values()], logged) == (["crm"], [])
    assert [one["config"]["meta"] for one in exposures.values()] == [SYNC["config"]["meta"]]


@pytest.mark.guarantee("dbt and its commands")
def test_the_switch_of_the_environment_in_which_dbt_runs_keeps_its_syncs() -> None:
    for word in ("on", "", " On "):
        assert handed_over("prod", DBT_REVERSE_ETL_PUSH=word)[1] == []
    exposures, logged = handed_over("prod", DBT_REVERSE_ETL_PUSH=" OFF")
    assert (exposures, logged) == ({}, ["push_customers: no sync is pushed, because DBT_REVERSE_ETL_PUSH is off"])
    exposures, (line,) = handed_over("prod", DBT_REVERSE_ETL_PUSH="plan")
    assert (exposures, "set it on the cluster" in line) == ({}, True)
    with pytest.raises(Exception, match="found 'fasle'; expected off, plan or on"):
        handed_over("prod", DBT_REVERSE_ETL_PUSH="fasle")


@pytest.mark.guarantee("dbt and its commands")
def test_what_the_command_excludes_the_target_of_the_manifest_and_the_tests_are_handed_over() -> None:
    written, _ = all_handed_over("prod", {"exclude": ("exposure:crm",), "exclude_resource_types": [], "threads": 1})
    assert written["args"] == {"exclude": ["exposure:crm"]}
    (ledger,) = written["nodes"].values()
    assert ledger["config"]["meta"] == {"reverse_etl_made_for": {"target": "prod"}}
    assert written["tests"] == ["test.shop.ids_are_set"]
