"""Where a command looks for the project, its artifacts and its target, against where dbt itself put them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from dbt_reverse_etl.app.place import Place
from dbt_reverse_etl.base.errors import ConfigurationError, ReverseEtlError
from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.config.manifest import profile_of
from tests.support import ROOT
from tests.support.servers import forks

SESSION = {"type": "spark", "method": "session", "schema": "s", "host": "NA"}
PROFILE = {"target": "dev", "outputs": dict.fromkeys(("dev", "ci", "prod"), SESSION)}
OTHER = {**PROFILE, "target": "ci"}
SHOWS_TARGET = "{{ config(alias='at_' ~ target.name) }} select 1 as id"
CONFIGURED = "{{ env_var('FOLDER', 'built') }}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shop"
    (folder / "models" / "deep").mkdir(parents=True)
    (folder / "profiles").mkdir()
    (folder / "profiles" / "profiles.yml").write_text(yaml.safe_dump({"my_project": PROFILE, "other": OTHER}))
    (folder / "models" / "one.sql").write_text(SHOWS_TARGET)
    for name in [name for name in os.environ if name.startswith("DBT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DBT_SEND_ANONYMOUS_USAGE_STATS", "false")
    configure(folder)
    return folder


def configure(folder: Path, **settings: Any) -> None:
    known = {"name": "shop", "version": "1.0", "config-version": 2, "profile": "my_project"}
    written = {**known, **{name.replace("_", "-"): value for name, value in settings.items()}}
    (folder / "dbt_project.yml").write_text(yaml.safe_dump(written))


def install(project: Path) -> None:
    """As `dbt deps` does with a local package."""
    (project / "packages.yml").write_text(yaml.safe_dump({"packages": [{"local": str(ROOT)}]}))
    (project / "dbt_packages").mkdir()
    (project / "dbt_packages" / "reverse_etl").symlink_to(ROOT)


def place(*arguments: str) -> Place:
    given = cli.commands["status"].make_context("status", [*arguments]).params
    return Place(*(given[name] for name in ("project_dir", "profiles_dir", "target", "target_path")))


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    "case",
    [
        ({"DBT_PROFILES_DIR": "{}/profiles"}, ".", {}, []),
        ({"DBT_ENGINE_PROFILES_DIR": "{}/profiles", "DBT_PROFILES_DIR": "/nowhere"}, ".", {}, []),
        ({"DBT_PROFILES_DIR": "{}/profiles", "DBT_TARGET_PATH": "elsewhere", "DBT_TARGET": "prod"}, ".", {}, []),
        ({"DBT_PROFILES_DIR": "{}/profiles", "DBT_TARGET_PATH": "{}/../out"}, "models/deep", {}, []),
        (
            {
                "DBT_PROFILES_DIR": "{}/profiles",
                "DBT_ENGINE_TARGET_PATH": "new",
                "DBT_TARGET_PATH": "old",
                "DBT_ENGINE_TARGET": "ci",
                "DBT_TARGET": "prod",
            },
            ".",
            {"target_path": "configured"},
            [],
        ),
        ({"DBT_PROFILES_DIR": "{}/profiles", "DBT_PROJECT_DIR": "{}"}, "..", {"target_path": CONFIGURED}, []),
        ({"DBT_PROFILES_DIR": "{}/profiles", "FOLDER": "a/b"}, "models", {"target_path": CONFIGURED}, []),
        ({"DBT_PROFILES_DIR": "{}/profiles", "DBT_PROFILE": "other"}, ".", {}, []),
        ({"DBT_PROFILES_DIR": "{}/profiles"}, ".", {"profile": "{{ env_var('WHICH', 'other') }}"}, []),
        (
            {"DBT_TARGET_PATH": "old", "DBT_TARGET": "prod", "DBT_PROJECT_DIR": "/nowhere"},
            "..",
            {"target_path": "configured"},
            ["--project-dir", "shop", "--profiles-dir", "shop/profiles", "--target-path", "said", "--target", "ci"],
        ),
    ],
)
def test_a_command_finds_the_project_the_artifacts_and_the_target_where_dbt_does(
    project: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[dict[str, str], str, dict[str, str], list[str]]
) -> None:
    env, cwd, settings, arguments = case
    configure(project, **settings)
    monkeypatch.chdir(project / cwd)
    for name, value in env.items():
        monkeypatch.setenv(name, value.format(project))
    forks.dbt(Path.cwd(), os.environ, "parse", *arguments)
    manifest = next(path for path in project.parent.rglob("manifest.json"))
    alias = json.loads(manifest.read_text())["nodes"]["model.shop.one"]["alias"]

    found = place(*arguments)
    assert found.folder == project.resolve()
    assert found.artifacts.resolve() == manifest.parent.resolve()
    assert f"at_{found.asked_target()}" == alias
    assert found.target() == found.asked_target(), "without the package no manifest tells of one"


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("cwd", ["shop", ".", pytest.param("shop/models", marks=pytest.mark.full)])
@pytest.mark.parametrize("there", [("shop", "home/.dbt"), (".", "shop", "home/.dbt"), ("home/.dbt",)])
def test_a_command_reads_the_profiles_yml_that_dbt_reads(
    project: Path, monkeypatch: pytest.MonkeyPatch, cwd: str, there: tuple[str, ...]
) -> None:
    root = project.parent
    for folder, target in zip(there, PROFILE["outputs"], strict=False):
        (root / folder).mkdir(parents=True, exist_ok=True)
        written = {**PROFILE, "target": target}
        (root / folder / "profiles.yml").write_text(yaml.safe_dump({"my_project": written}))
    monkeypatch.setenv("HOME", str(root / "home"))
    monkeypatch.chdir(root / cwd)
    arguments = ["--project-dir", str(project)]
    forks.dbt(Path.cwd(), os.environ, "parse", *arguments)
    alias = json.loads((project / "target" / "manifest.json").read_text())["nodes"]["model.shop.one"]["alias"]
    assert f"at_{place(*arguments).asked_target()}" == alias


# Each has dbt parse all of the package.
@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    ("asked", "profile", "target"),
    [
        ("prod", "other", "prod"),
        pytest.param(None, "my_project", "dev", marks=pytest.mark.full),
        pytest.param("ci", "my_project", "ci", marks=pytest.mark.full),
    ],
)
def test_a_command_takes_the_target_that_the_manifest_was_made_for_and_refuses_another(
    project: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None, profile: str, target: str
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("DBT_PROFILES_DIR", str(project / "profiles"))
    install(project)
    configure(project, models={"+meta": {"reverse_etl": {"compare": "hash"}}})  # dbt puts it over that of the ledger
    forks.dbt(project, os.environ, "parse", *(["--target", asked] if asked else []), "--profile", profile)
    assert profile_of(json.loads((project / "target" / "manifest.json").read_text())) == profile
    assert place().project().target == target
    assert place("--target", target).project().target == target
    for other in PROFILE["outputs"].keys() - {target}:
        with pytest.raises(ReverseEtlError, match=rf"expected {target}, the target of manifest\.json"):
            place("--target", other).project()


@pytest.mark.guarantee("dbt and its commands")
def test_a_comparison_with_the_state_of_another_target_selects_no_model_of_the_package(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBT_PROFILES_DIR", str(project / "profiles"))
    install(project)
    forks.dbt(project, os.environ, "parse", "--target", "prod", "--target-path", "of_prod")
    asked = ["ls", "--quiet", "--target", "ci", "--select", "state:modified", "--state", "of_prod"]
    code, said = forks.dbt_forks().run("dbt.cli.main:cli", asked, project, os.environ)
    selected = [
        line for line in said.splitlines() if line.startswith(("shop.", "reverse_etl."))
    ]  # Python may warn there
    assert (code, selected) == (0, ["shop.one"]), "its alias names the target"


def test_a_target_path_that_only_dbt_can_read_is_asked_for(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(project, target_path="{{ var('folder') }}")
    monkeypatch.chdir(project)
    with pytest.raises(ConfigurationError, match="target-path"):
        place()
    assert place("--target-path", "said").artifacts == project / "said"
