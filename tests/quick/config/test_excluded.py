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


@pytest.mark.guarantee("dbt Cloud")
def test_what_a_step_excludes_is_not_pushed_with_the_models_of_another_step() -> None:
    def pushed_by(*steps: dict[str, Any]) -> list[list[str]]:
        joined = join(dict(enumerate(steps, 1)), "dev")
        return [[sync.name for sync in run(read, PROJECT).push] for _, read in joined]

    without_c, without_any = {"exclude": ["exposure:crm_c"]}, {"exclude_resource_types": ["exposure"]}
    for excluding in (without_c, without_any, {"exclude": "exposure:crm_c"}):
        assert pushed_by(results("crm_c", **excluding), results("crm_d")) == [[], ["crm_d"]]
        assert pushed_by(results("crm_d"), results("crm_c", **excluding)) == [["crm_d"], []]
    assert pushed_by(results("crm_c", **without_c), results("crm_d", exclude=["tag:x"])) == [[], ["crm_d"]]
    assert pushed_by(results("crm_c", **without_c), results("crm_c", "crm_d")) == [["crm_c", "crm_d"]], (
        "asked for later"
    )
    assert pushed_by(results("crm_c", "crm_d"), results("crm_c", **without_c)) == [["crm_d"], []], "the last step wins"
    for one, same in (
        ("exposure:crm_c", ["exposure:crm_c"]),
        (["tag:x", "exposure:crm_c"], ["exposure:crm_c", "tag:x"]),
        (["tag:x exposure:crm_c"], ["exposure:crm_c", "tag:x", "tag:x"]),
    ):
        assert pushed_by(results("crm_c", exclude=one), results("crm_d", exclude=same)) == [["crm_d"]]


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize(
    "steps",
    [
        [("build", "crm_c", {"exclude": ["tag:late"]}), ("build", "crm_d", {})],
        [("run", "crm_c", {}), ("build", "crm_d", {})],
        [("run", "crm_c", {}), ("test", "", {}), ("build", "crm_d", {})],
    ],
)
@pytest.mark.parametrize("kind", ["test", "unit_test"])
def test_a_failed_test_of_any_step_is_one_of_each_model_that_it_tests(
    kind: str, steps: list[tuple[str, str, dict[str, Any]]]
) -> None:
    test = {"resource_type": kind, "depends_on": {"nodes": ["model.shop.crm_c", "model.shop.crm_d"]}}
    project = {**PROJECT, "nodes": {**PROJECT["nodes"], f"{kind}.shop.both": test}}

    def failed(*statuses: str | None) -> list[set[str]]:
        """The models with a failed test, of each push."""
        read = {}
        for number, ((command, model, args), status) in enumerate(zip(steps, statuses, strict=True), 1):
            read[number] = results(model, which=command, **args)
            tests = [{"unique_id": f"{kind}.shop.both", "status": status}] if status else []
            read[number]["results"] = [row for row in read[number]["results"] if model] + tests
        return [{*run(one, project).failed_tests} for _, one in join(read, "dev")]

    both = {"model.shop.crm_c", "model.shop.crm_d"}
    before = [None] * (len(steps) - 2)
    assert failed("fail", *before, None) == [both, both]
    assert failed(None, *before, "fail") == [both, both]
    assert failed("pass", *before, "fail") == [both, both]
    assert failed("fail", *before, "pass") == [set(), set()], "the last result counts"
