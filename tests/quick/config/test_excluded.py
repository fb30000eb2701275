"""What a dbt command excludes is captured with its model, and not pushed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from dbt_reverse_etl.app.invocation import after_dbt
from dbt_reverse_etl.app.project import Ask, Project
from dbt_reverse_etl.config.artifacts import Invocation, run
from dbt_reverse_etl.serve.steps import join
from dbt_reverse_etl.terminal.screen import Screen
from tests.support.config.manifest import manifest

PROJECT = manifest({"crm_c": {"destination": "crm"}, "crm_d": {"destination": "crm"}})
PROJECT["metadata"] |= {"invocation_id": "inv-1", "project_name": "shop"}


def results(*models: str, **args: Any) -> dict[str, Any]:
    rows = [{"unique_id": f"model.shop.{name}", "status": "success"} for name in models or ("crm_c", "crm_d")]
    args = {"which": "build", "target": "dev", **args}
    return {"metadata": {"invocation_id": "inv-1"}, "args": args, "results": rows}


def pushed(**args: Any) -> list[str]:
    found: Invocation = run(results(**args), PROJECT)
    assert {sync.name for sync in (*found.push, *found.excluded)} == {"crm_c", "crm_d"}
    return [sync.name for sync in found.push]


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        (["exposure:crm_c"], ["crm_d"]),
        (("exposure:shop.crm_c",), ["crm_d"]),
        (["tag:slow exposure:crm_d"], ["crm_c"]),
        ("exposure:crm_d", ["crm_c"]),
        (["crm_c"], ["crm_d"]),
        (["fqn:shop.crm_c"], ["crm_d"]),
        (["exposure:*"], []),
        (["exposure:crm_?"], []),
        (["resource_type:exposure"], []),
        ([], ["crm_c", "crm_d"]),
        (None, ["crm_c", "crm_d"]),
        (["exposure:crm"], ["crm_c", "crm_d"]),
        (["resource_type:model", "e*", "tag:crm_c", "exposure:crm_c,tag:slow"], ["crm_c", "crm_d"]),
    ],
)
@pytest.mark.parametrize("command", ["run", "build"])
def test_a_sync_that_a_command_excludes_by_name_is_not_pushed(exclude: Any, left: list[str], command: str) -> None:
    assert pushed(which=command, exclude=exclude) == left


@pytest.mark.guarantee("dbt and its commands")
def test_a_command_that_excludes_exposures_as_a_kind_pushes_nothing() -> None:
    assert pushed(exclude_resource_types=["exposure"]) == []
    assert pushed(exclude_resource_types=["test"]) == ["crm_c", "crm_d"]


def test_a_line_names_what_was_captured_and_left_out(tmp_path: Path) -> None:
    outputs = {"dev": {"crm": {"type": "sqlite", "path": "crm.db"}}}
    (tmp_path / "profiles.yml").write_text(yaml.safe_dump({"dbt_reverse_etl": {"outputs": outputs}}))
    said: list[str] = []

    def unreachable() -> NoReturn:
        raise AssertionError("nothing is due, so that no session is needed")

    for models, lines in ((("crm_c",), ["crm_c: not pushed, for this command excludes the exposure"]), (("a",), [])):
        (tmp_path / "manifest.json").write_text(json.dumps(PROJECT))
        (tmp_path / "run_results.json").write_text(json.dumps(results(*models, exclude=["exposure:crm_?"])))
        project = Project(tmp_path, [tmp_path], "dev", tmp_path, {})
        for ask in (Ask.RUN, Ask.IF_DUE):
            said.clear()
            assert after_dbt(project, unreachable, Screen(lambda text, *_: said.append(text)), ask=ask) == []
            assert said == lines


def test_of_steps_that_are_pushed_together_all_must_exclude_a_sync() -> None:
    first, second = results("crm_c", exclude=["exposure:crm_c"]), results("crm_d")
    for steps in ({1: first, 2: second}, {1: second, 2: first}):
        ((_, joined),) = join(steps, "dev")
        assert [sync.name for sync in run(joined, PROJECT).push] == ["crm_c", "crm_d"]
    ((_, joined),) = join({1: first, 2: results("crm_d", exclude=["tag:x", "exposure:crm_c"])}, "dev")
    assert [sync.name for sync in run(joined, PROJECT).push] == ["crm_d"]
    ((_, joined),) = join({1: results("crm_d", exclude="exposure:crm_c"), 2: first}, "dev")
    assert [sync.name for sync in run(joined, PROJECT).push] == ["crm_d"]
