"""`init` writes a first sync into a user's dbt project, keeps what stands there, and dbt itself reads the result."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.app import scaffold
from dbt_reverse_etl.app.scaffold_yaml import with_entry
from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.base.sql import package_root
from dbt_reverse_etl.config.destinations import PlanOnly, collect_destinations
from dbt_reverse_etl.config.manifest import syncs
from dbt_reverse_etl.config.profiles import DbtProject
from tests.support import ROOT
from tests.support.config.loaded import load_destinations
from tests.support.servers import forks

MODEL = "select 1 as customer_id, 'a' as email"
ENTRY = {"local": "packages/reverse_etl"}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as a user has it, with its profile beside it and another home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DBT_PROFILES_DIR", raising=False)
    folder = tmp_path / "shop"
    (folder / "models" / "marts").mkdir(parents=True)
    settings = {"name": "shop", "version": "1.0", "config-version": 2, "profile": "my_project"}
    (folder / "dbt_project.yml").write_text(yaml.safe_dump(settings))
    profile = (ROOT / "profiles.example.yml").read_text().partition("\n# Where syncs deliver")[0]
    (folder / "profiles.yml").write_text(profile)
    (folder / "models" / "marts" / "customers.sql").write_text(MODEL)
    return folder


Initialize = Callable[..., tuple[list[str], str]]


@pytest.fixture
def init(shop: Path) -> Initialize:
    """Runs the command and returns what it wrote and what it said."""

    def run(**arguments: Any) -> tuple[list[str], str]:
        said: list[str] = []
        return scaffold.initialize(shop, said.append, **arguments), "\n".join(said)

    return run


def everything(folder: Path, *parts: str) -> dict[str, bytes]:
    """Every file below a folder, or of these parts of it."""
    places = [folder / part for part in parts] or [folder]
    files = [path for place in places for path in (place, *place.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def dbt(folder: Path, *arguments: str) -> None:
    forks.dbt(
        folder, {**os.environ, "DBT_PROFILES_DIR": str(folder), "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}, *arguments
    )


@pytest.mark.guarantee("Packaging")
def test_dbt_reads_the_written_sync_and_a_second_init_changes_no_byte(shop: Path, init: Initialize) -> None:
    written, _ = init(model="customers", key="customer_id")
    assert written == [
        "packages/reverse_etl",
        "packages.yml",
        "models/marts/customers_changelog.sql",
        "models/marts/customers_changelog_sync.yml",
        "profiles.yml",
    ]
    dbt(shop, "deps")
    dbt(shop, "parse")
    before = everything(shop)
    assert init(model="customers", key="customer_id")[0] == []
    assert everything(shop) == before

    [sync] = syncs(json.loads((shop / "target" / "manifest.json").read_text()))
    assert (sync.name, sync.changelog.name, sync.changelog.key) == (
        "crm_customers",
        "customers_changelog",
        ("customer_id",),
    )
    assert sync.settings.destination == "crm"
    for target in ("dev", "prod"):
        assert load_destinations([shop], target, {}) == PlanOnly(target)


def test_a_project_that_installs_into_packages_keeps_the_copy_elsewhere_and_its_example_says_nothing_to_dbt(
    shop: Path, init: Initialize
) -> None:
    settings = {**yaml.safe_load((shop / "dbt_project.yml").read_text()), "packages-install-path": "packages"}
    (shop / "dbt_project.yml").write_text(yaml.safe_dump(settings))
    written, said = init()
    assert yaml.safe_load((shop / "packages.yml").read_text()) == {
        "packages": [{"local": "local_packages/reverse_etl"}]
    }
    example = shop / "models" / "reverse_etl_example.yml"
    assert "models/reverse_etl_example.yml" in written
    assert "dbt-reverse-etl init --model customers --key COLUMN" in said
    dbt(shop, "deps")
    dbt(shop, "parse")
    assert (shop / "packages" / "reverse_etl").is_symlink()
    (shop / "local_packages" / "reverse_etl" / "macros" / "version.sql").write_text("older")
    assert init()[0] == ["local_packages/reverse_etl"], "behind the link that dbt deps left"
    assert yaml.safe_load(example.read_text()) is None, "until its signs are removed"
    uncommented = example.read_text().partition("without the signs in front:\n#\n")[2].replace("# ", "", 1)
    body = "".join(line.removeprefix("# ") for line in f"# {uncommented}".splitlines(keepends=True))
    assert yaml.safe_load(body)["exposures"][0]["depends_on"] == ["ref('MODEL_changelog')"]


@pytest.mark.parametrize("config", ["materialized='changelog'", 'materialized = "changelog"'])
def test_a_project_that_has_a_changelog_gets_no_example(shop: Path, init: Initialize, config: str) -> None:
    (shop / "models" / "log.sql").write_text("{{ config(" + config + ", unique_key='a') }} select 1 as a")
    assert init()[0] == ["packages/reverse_etl", "packages.yml", "profiles.yml"]


def test_several_key_columns_and_a_file_that_is_there_already(shop: Path, init: Initialize) -> None:
    kept = shop / "models" / "marts" / "customers_changelog_sync.yml"
    kept.write_text("# mine\n")
    init(model="customers", key="shop, customer_id")
    changelog = (shop / "models" / "marts" / "customers_changelog.sql").read_text()
    assert "unique_key=['shop', 'customer_id']" in changelog
    assert kept.read_text() == "# mine\n"


@pytest.mark.parametrize(
    "change",
    [
        ("name: crm_customers", "name: renamed"),
        ("name: crm_customers", 'name: renamed\n    description: "ref of a package"'),
        ("ref('customers_changelog')", 'ref("other")'),
    ],
)
def test_a_sync_that_moved_into_a_file_of_the_user_is_not_written_again(
    shop: Path, init: Initialize, change: tuple[str, str]
) -> None:
    init(model="customers", key="customer_id")
    written = shop / "models" / "marts" / "customers_changelog_sync.yml"
    moved = written.read_text().replace(*change)
    if "package" in moved:
        moved = moved.replace("ref('customers_changelog')", "\"ref('shop', 'customers_changelog')\"")
    (shop / "models" / "exposures.yml").write_text(moved)
    written.unlink()
    assert init(model="customers", key="customer_id")[0] == []
    dashboard = {"name": "sales", "type": "dashboard", "depends_on": ["ref('customers_changelog')"]}
    (shop / "models" / "exposures.yml").write_text(yaml.safe_dump({"exposures": [dashboard]}))
    assert init(model="customers", key="customer_id")[0] == ["models/marts/customers_changelog_sync.yml"]


def test_the_carried_package_is_the_runners_own_and_is_refreshed(shop: Path, init: Initialize) -> None:
    init()
    package = shop / "packages" / "reverse_etl"
    carried, origin = everything(package), package_root()
    assert carried == everything(origin, *scaffold.CARRIED)
    (package / "macros" / "version.sql").write_text("older")
    (package / "macros" / "gone.sql").write_text("{% macro gone() %}{% endmacro %}")
    assert init()[0] == ["packages/reverse_etl"]
    assert everything(package) == carried


@pytest.mark.guarantee("Packaging")
@pytest.mark.parametrize("theirs", ["name: other\n", "{{{", None])
def test_a_folder_of_the_user_is_never_replaced(shop: Path, init: Initialize, theirs: str | None) -> None:
    folder = shop / "packages" / "reverse_etl"
    folder.mkdir(parents=True)
    (folder / ("dbt_project.yml" if theirs else "notes.txt")).write_text(theirs or "mine")
    before = everything(shop)
    with pytest.raises(ConfigurationError, match="move it away"):
        init()
    assert everything(shop) == before


def test_a_link_that_leads_elsewhere_is_refused_and_one_to_the_same_package_stays(
    shop: Path, init: Initialize, tmp_path: Path
) -> None:
    link = shop / "packages" / "reverse_etl"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "gone")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="remove the link"):
            init()
        assert not (shop / "packages.yml").exists()
        (tmp_path / "gone").mkdir(exist_ok=True)
        (tmp_path / "gone" / "dbt_project.yml").write_text("name: reverse_etl\n")
    shutil.rmtree(tmp_path / "gone")
    shutil.copytree(
        package_root(),
        tmp_path / "gone",
        ignore=lambda _, names: {*names} - {*scaffold.CARRIED} if _ == str(package_root()) else [],
    )
    init()
    assert link.is_symlink()


PACKAGES = st.lists(
    st.sampled_from(
        [
            {"package": "dbt-labs/dbt_utils", "version": [">=1.1.0", "<2.0.0"]},
            {"git": "https://example.com/a.git", "revision": "main"},
            {"local": "../other"},
        ]
    ),
    min_size=1,
    max_size=3,
)


@given(packages=PACKAGES, indent=st.booleans(), windows=st.booleans(), extra=st.booleans(), bare=st.booleans())
def test_an_entry_is_added_to_any_list_in_lines_and_nothing_else_changes(
    packages: list[Any], indent: bool, windows: bool, extra: bool, bare: bool
) -> None:
    text = yaml.safe_dump({"packages": packages}, default_flow_style=False)
    head, _, rest = text.partition("\n")
    body = "".join(f"{'  ' if indent else ''}{line}\n" for line in rest.splitlines())
    text = f"# ours\n{head}  # a list\n  # why\n{body}" + ("projects:\n- name: other\n" if extra else "")
    text = text.rstrip("\n") if bare else text
    text = text.replace("\n", "\r\n") if windows else text
    added = with_entry(text, "- local: packages/reverse_etl")
    assert added is not None
    assert yaml.safe_load(added) == {**yaml.safe_load(text), "packages": [ENTRY, *packages]}
    lines = added.splitlines(keepends=True)
    new = [line for line in lines if "packages/reverse_etl" in line]
    lines.remove(new[0])
    assert "".join(lines) == text
    assert new[0].endswith("\r\n" if windows else "\n")


@pytest.mark.parametrize(
    "text", ["packages: [{local: ../a}]\n", "{packages: [{local: ../a}]}\n", "other: 1\n", "a: [\n"]
)
def test_a_list_that_cannot_be_edited_safely_is_left_and_the_user_told(shop: Path, init: Initialize, text: str) -> None:
    (shop / "packages.yml").write_text(text)
    _, said = init()
    assert (shop / "packages.yml").read_text() == text
    assert "- local: packages/reverse_etl" in said


@pytest.mark.parametrize("text", ["", "# none yet\n", "# none yet"])
def test_an_empty_list_of_packages_gets_the_entry(shop: Path, init: Initialize, text: str) -> None:
    (shop / "packages.yml").write_text(text)
    assert "packages.yml" in init()[0]
    after = (shop / "packages.yml").read_text()
    assert after.startswith(text)
    assert yaml.safe_load(after) == {"packages": [ENTRY]}


def test_packages_in_dependencies_yml_are_added_to_there(shop: Path, init: Initialize) -> None:
    (shop / "dependencies.yml").write_text("projects: []\npackages:\n  - local: ../other\n")
    assert "dependencies.yml" in init()[0]
    assert not (shop / "packages.yml").exists()
    assert yaml.safe_load((shop / "dependencies.yml").read_text())["packages"] == [ENTRY, {"local": "../other"}]


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_profile_beside_the_project_gets_every_target_as_plan(shop: Path, init: Initialize, end: str) -> None:
    file = shop / "profiles.yml"
    text = file.read_text().rstrip("\n") + end
    file.write_text(text)
    init()
    assert file.read_text().startswith(text)
    assert yaml.safe_load(file.read_text())["dbt_reverse_etl"] == {"outputs": {"dev": "plan", "prod": "plan"}}


def test_a_profile_that_is_not_in_the_file_takes_no_target_of_another(shop: Path, init: Initialize) -> None:
    project = yaml.safe_load((shop / "dbt_project.yml").read_text())
    (shop / "dbt_project.yml").write_text(yaml.safe_dump({**project, "profile": "elsewhere"}))
    init()
    outputs = yaml.safe_load((shop / "profiles.yml").read_text())["dbt_reverse_etl"]["outputs"]
    assert outputs == {"dev": "plan"}


@pytest.mark.parametrize("others", [0, 1])
def test_a_profile_whose_name_is_told_by_the_environment_gets_every_target_it_may_have(
    shop: Path, init: Initialize, others: int
) -> None:
    project = yaml.safe_load((shop / "dbt_project.yml").read_text())
    project["profile"] = "{{ env_var('PROFILE', 'my_project') }}"
    (shop / "dbt_project.yml").write_text(yaml.safe_dump(project))
    profiles = yaml.safe_load((shop / "profiles.yml").read_text())
    profiles |= {f"other_{n}": {"outputs": {"staging": {"type": "duckdb"}}} for n in range(others)}
    (shop / "profiles.yml").write_text(yaml.safe_dump(profiles))
    init()
    outputs = yaml.safe_load((shop / "profiles.yml").read_text())["dbt_reverse_etl"]["outputs"]
    assert outputs == dict.fromkeys(["dev", "prod", *["staging"] * others], "plan")


def test_a_block_that_is_there_is_kept(shop: Path, init: Initialize) -> None:
    shutil.copyfile(ROOT / "profiles.example.yml", shop / "profiles.yml")
    before = (shop / "profiles.yml").read_bytes()
    _, said = init()
    assert (shop / "profiles.yml").read_bytes() == before
    assert said.endswith("Next: dbt deps, dbt run"), "its destinations are named"


@pytest.mark.parametrize(
    ("outputs", "destination"),
    [
        ({"dev": "plan", "prod": {"hub-1": {"type": "sqlite"}, "crm": {}}}, "hub-1"),
        ({"dev": "plan"}, "crm"),
        ([], "crm"),
    ],
)
def test_a_sync_goes_to_a_destination_that_is_there(
    shop: Path, init: Initialize, outputs: Any, destination: str
) -> None:
    profiles = {**yaml.safe_load((shop / "profiles.yml").read_text()), "dbt_reverse_etl": {"outputs": outputs}}
    (shop / "profiles.yml").write_text(yaml.safe_dump(profiles, sort_keys=False))
    init(model="customers", key="customer_id")
    [sync] = yaml.safe_load((shop / "models/marts/customers_changelog_sync.yml").read_text())["exposures"]
    assert sync["name"] == f"{destination.replace('-', '_')}_customers"
    assert sync["config"]["meta"]["reverse_etl"]["destination"] == destination


@pytest.mark.parametrize("text", ["{my_project: {}}\n", "a: [\n", "- 1\n", "password: 2024-13-45\n"])
def test_a_profile_that_cannot_be_edited_safely_is_left_and_the_user_told(
    shop: Path, init: Initialize, text: str
) -> None:
    (shop / "profiles.yml").write_text(text)
    _, said = init()
    assert (shop / "profiles.yml").read_text() == text
    assert "dbt_reverse_etl:\n  outputs:\n    dev: plan" in said


def test_a_profile_outside_of_the_project_is_written_only_when_asked(
    shop: Path, init: Initialize, tmp_path: Path
) -> None:
    home = tmp_path / "home" / ".dbt"
    home.mkdir(parents=True)
    (shop / "profiles.yml").rename(home / "profiles.yml")
    before = (home / "profiles.yml").read_bytes()
    written, said = init()
    assert not any("profiles.yml" in path for path in written)
    assert (home / "profiles.yml").read_bytes() == before
    assert str(home / "profiles.yml") in said
    assert "prod: plan" in said
    assert str(home / "profiles.yml") in init(write_profile=True)[0]
    assert init(write_profile=True)[0] == []


@pytest.mark.parametrize("others", [0, 1, 2])
def test_the_block_that_is_written_is_read_whatever_other_profiles_stand_beside_it(
    shop: Path, init: Initialize, others: int
) -> None:
    file = shop / "profiles.yml"
    more = {f"other_{n}": {"outputs": {"dev": {"type": "duckdb"}}} for n in range(others)}
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **more}))
    init(write_profile=True)
    name = yaml.safe_load((shop / "dbt_project.yml").read_text())["name"]
    assert isinstance(collect_destinations([shop], "prod", {}, DbtProject(name)), PlanOnly)


def test_without_any_profile_the_user_is_told_and_none_is_made(shop: Path, init: Initialize) -> None:
    (shop / "profiles.yml").unlink()
    _, said = init()
    assert "no profiles.yml yet" in said
    assert not (shop / "profiles.yml").exists(), "it would hide ~/.dbt/profiles.yml"


def test_the_hint_for_git_names_what_is_not_ignored_yet(shop: Path, init: Initialize) -> None:
    (shop / ".gitignore").write_text("/target/\nlogs\n")
    _, said = init()
    assert "in .gitignore: dbt_packages/ spark-warehouse/ metastore_db/ derby.log\n" in said + "\n"
    assert said.endswith("and dbt run pushes")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"model": "customers"}, "--key COLUMN"),
        ({"key": "id"}, "--model MODEL"),
        ({"model": "custmers", "key": "id"}, "a model of this project: customers"),
        ({"model": "customers", "key": "id'}}"}, "--key"),
        ({"model": "customers", "key": "id,"}, "--key"),
    ],
)
def test_a_model_or_key_that_cannot_be_meant_writes_nothing(
    shop: Path, init: Initialize, arguments: dict[str, str], found: str
) -> None:
    before = everything(shop)
    with pytest.raises(ConfigurationError, match=found):
        init(**arguments)
    assert everything(shop) == before


@pytest.mark.parametrize("text", [None, "a: [", "name: reverse_etl"])
def test_a_folder_that_is_no_project_of_the_user_is_refused(shop: Path, init: Initialize, text: str | None) -> None:
    (shop / "dbt_project.yml").unlink()
    if text:
        (shop / "dbt_project.yml").write_text(text)
    before = everything(shop)
    with pytest.raises(ConfigurationError, match="Next: "):
        init()
    assert everything(shop) == before
