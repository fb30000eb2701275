"""`dbt-reverse-etl run` beside a dbt that is no dbt: what becomes of what it leaves, or does not leave."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from dbt_reverse_etl.app import dbt_command, invocation
from dbt_reverse_etl.base.errors import ConfigurationError, ReverseEtlError
from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.commands import pushing
from tests.support.config.manifest import manifest

PROFILE = {"target": "dev", "outputs": {"dev": {"type": "spark", "method": "session", "schema": "shop"}}}
RESULTS = {"metadata": {"invocation_id": "inv-1"}, "args": {"which": "run"}, "results": []}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("DBT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "shop"
    (folder / "target").mkdir(parents=True)
    (folder / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    destinations = {"dev": {"crm": {"type": "sqlite", "path": "crm.db"}}}
    profiles = {"shop": PROFILE, "dbt_reverse_etl": {"outputs": destinations}}
    (folder / "profiles.yml").write_text(yaml.safe_dump(profiles))
    monkeypatch.chdir(folder)
    return folder


def dbt(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0, results: str | None = None) -> None:
    """Put one on PATH that ends so, and has run this invocation."""
    written = {**RESULTS, "metadata": {"invocation_id": results}}
    leaves = f"echo '{json.dumps(written)}' > target/run_results.json\n" if results else ""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "dbt").write_text(f"#!/bin/sh\n{leaves}exit {code}\n")
    (folder / "bin" / "dbt").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


def run(*arguments: str) -> Any:
    return cli.main(["run", "--", *arguments], standalone_mode=False, obj={})


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("before", [None, "inv-0"])
@pytest.mark.parametrize("command", ["run", "build", "retry"])
def test_a_dbt_that_leaves_no_results_is_no_success(
    shop: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, command: str
) -> None:
    if before:
        (shop / "target" / "run_results.json").write_text(
            json.dumps({**RESULTS, "metadata": {"invocation_id": before}})
        )
    dbt(shop, monkeypatch)
    with pytest.raises(ReverseEtlError, match=r"found no new run_results\.json, so nothing was pushed") as caught:
        run(command, "--no-write-json")
    assert caught.value.exit_code == 1
    assert "run dbt without --no-write-json" in str(caught.value)


@pytest.mark.parametrize(
    "arguments", [["deps"], ["run", "--help"], ["build", "--empty"], ["run", "--sample=3 days"], ["run", "-h"]]
)
def test_a_dbt_that_runs_no_model_in_full_needs_no_results(
    shop: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    dbt(shop, monkeypatch)
    assert run(*arguments) == 0


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("left", ["", '{"metadata": {', "{}", "[]"])
def test_what_a_killed_dbt_left_of_its_results_keeps_no_later_one_from_running(
    shop: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    (shop / "target" / "run_results.json").write_text(left)
    (shop / "target" / "manifest.json").write_text(json.dumps(manifest({"crm_c": {"destination": "crm"}})))
    dbt(shop, monkeypatch, code=2)
    assert run("run") == 2
    dbt(shop, monkeypatch)
    with pytest.raises(ReverseEtlError, match=r"found no new run_results\.json, so nothing was pushed"):
        run("run")
    pushed: list[Any] = []
    monkeypatch.setattr(invocation, "after_dbt", lambda *_, **how: pushed.append(how) or [])
    dbt(shop, monkeypatch, results="inv-1")
    assert run("run") == 0
    assert len(pushed) == 1


def test_a_failure_of_dbt_is_its_own_and_the_switch_asks_for_no_push(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dbt(shop, monkeypatch, code=2)
    assert run("run") == 2
    dbt(shop, monkeypatch)
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    assert run("run", "--no-write-json") == 0


@pytest.mark.parametrize(
    ("name", "word"),
    [("DBT_REVERSE_ETL_PUSH", "of"), ("DBT_REVERSE_ETL_OVERRIDE", "crm_c"), ("DBT_REVERSE_ETL_OVERRIDE", "crm_c@3")],
)
def test_a_word_of_the_environment_that_nobody_knows_is_refused_before_dbt_runs(
    shop: Path, monkeypatch: pytest.MonkeyPatch, name: str, word: str
) -> None:
    dbt(shop, monkeypatch, results="inv-1")
    monkeypatch.setenv(name, word)
    with pytest.raises(ConfigurationError, match=f"found '{word}'"):
        run("run")
    assert not (shop / "target" / "run_results.json").exists()


def test_what_follows_a_command_of_dbt_is_for_dbt_also_without_the_two_dashes(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(dbt_command, "run_dbt", lambda arguments, *_: given.append(arguments) or 1)
    for dashes in ([], ["--"]):
        assert cli.main(["run", *dashes, "build", "--select", "c", "--json"], standalone_mode=False, obj={}) == 1
    assert given == [["build", "--select", "c", "--json"]] * 2


NEWER = {"crm_c": {"destination": "crm"}, "crm_new": {"destination": "crm"}}


@pytest.mark.parametrize(
    ("selector", "read", "is_refused"),
    [
        ("crm_c", None, False),
        ("crm_neu", manifest(NEWER), True),
        ("crm_new", manifest(NEWER), False),
        ("crm_neu", None, False),  # this Python has no dbt
        ("crm_neu", ConfigurationError(), False),  # dbt says itself what is wrong
    ],
)
def test_a_selector_that_names_no_sync_is_refused_before_dbt_runs(
    shop: Path, monkeypatch: pytest.MonkeyPatch, selector: str, read: Any, is_refused: bool
) -> None:
    (shop / "target" / "manifest.json").write_text(json.dumps(manifest({"crm_c": {"destination": "crm"}})))
    dbt(shop, monkeypatch, code=1)
    parsed: list[Any] = []

    def parse(*place: Any) -> Any:
        parsed.append(place[1:])
        if isinstance(read, Exception):
            raise read
        return read

    monkeypatch.setattr(dbt_command, "parsed", parse)
    command = ["run", "--select", selector, "--", "build", "--select", "c", "--vars", "{day: 1}"]
    if is_refused:
        with pytest.raises(ConfigurationError, match=r"found 'crm_neu'.*did you mean 'crm_new'"):
            cli.main(command, standalone_mode=False, obj={})
    else:
        assert cli.main(command, standalone_mode=False, obj={}) == 1
    assert parsed == ([] if selector == "crm_c" else [("dev", ["--vars", "{day: 1}"])])


def test_what_was_checked_before_the_session_is_what_the_push_is_given(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = manifest({"crm_c": {"destination": "crm"}})
    project["metadata"]["invocation_id"] = "inv-1"
    (shop / "target" / "manifest.json").write_text(json.dumps(project))
    dbt(shop, monkeypatch, results="inv-1")
    given: list[Any] = []
    monkeypatch.setattr(invocation, "after_dbt", lambda *_, **how: given.append(how["configuration"]) or [])
    assert run("run") == 0
    ((resolved,),) = [one.resolved for one in given]
    assert resolved.destination.settings.path == str(shop / "crm.db")


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(("of_dbt", "of_push", "both"), [(1, 6, 1), (0, 6, 6), (1, 3, 3), (2, 1, 2)])
def test_the_exit_code_is_the_one_to_act_on_of_dbt_and_of_the_push(
    shop: Path, monkeypatch: pytest.MonkeyPatch, of_dbt: int, of_push: int, both: int
) -> None:
    (shop / "target" / "manifest.json").write_text(json.dumps(manifest({"crm_c": {"destination": "crm"}})))
    dbt(shop, monkeypatch, code=of_dbt, results="inv-1")
    monkeypatch.setattr(pushing, "_pushed", lambda *_, **how: of_push)
    assert run("run") == both
