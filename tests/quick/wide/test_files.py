"""The files of generated chains: where they belong, and which of them no wide table needs any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.base.sql import value_of
from dbt_reverse_etl.config.profiles import DbtProject
from dbt_reverse_etl.wide.files import folder_of, write
from dbt_reverse_etl.wide.inputs import Inputs
from tests.support.wide.chains import CHANGELOGS, PLAIN, generated, table
from tests.support.wide.declarations import COUNTRY, CUSTOMERS, REGION, TABLES

WIDE = {"root": "customers", "nodes": [CUSTOMERS, REGION | {"columns": ["name"]}, COUNTRY | {"columns": ["size"]}]}


@pytest.mark.parametrize("model", ["wide_orders", "wide-orders", "wide.orders", "wide orders"])
def test_what_a_chain_reads_is_needed_whatever_its_model_is_called(tmp_path: Path, model: str) -> None:
    chains = {f"{model}_chain"}
    assert not write(tmp_path, generated(WIDE, PLAIN, model), chains).unneeded
    logged = generated(WIDE, CHANGELOGS, model)
    unneeded = {path.stem for path in write(tmp_path, logged, chains).unneeded}
    assert f"{model}_chain_joined" in unneeded
    assert not unneeded & {one.name for one in logged}


def test_a_chain_that_no_model_declares_any_more_is_named_with_what_it_alone_needs(tmp_path: Path) -> None:
    old, new = (generated(WIDE, CHANGELOGS, model) for model in ("old", "new"))
    assert not write(tmp_path, old, {"old_chain"}).unneeded
    assert not write(tmp_path, new, {"old_chain", "new_chain"}).unneeded
    unneeded = [path.stem for path in write(tmp_path, new, {"new_chain"}).unneeded]
    assert unneeded == ["old_chain", "old_chain_changelog"]


def test_the_chain_of_a_disabled_model_is_declared() -> None:
    def model(name: str, **about: Any) -> dict[str, Any]:
        wide = {"meta": {"reverse_etl": {"wide_table": WIDE}}}
        return table(name, unique_id=f"model.shop.{name}", config=wide, depends_on={"nodes": [*TABLES]}, **about)

    nodes = {one["unique_id"]: one for one in (model("small"), model("people", version=2))}
    known = {name: table(name, unique_id=name) for name in TABLES}
    disabled = {"model.shop.off": [model("off")], "model.shop.other": [table("other", unique_id="model.shop.other")]}
    manifest = {"metadata": {"project_name": "shop"}, "nodes": nodes | known, "sources": {}, "disabled": disabled}
    inputs = Inputs(manifest, nodes["model.shop.small"], value_of("_wide_plan", WIDE))
    assert inputs.chains == {"small_chain", "people_v2_chain", "off_chain"}


def test_their_folder_is_not_guessed_from_what_dbt_renders(tmp_path: Path) -> None:
    (tmp_path / "dbt_project.yml").write_text("""model-paths: ["{{ env_var('M', 'models') }}"]""")
    with pytest.raises(ConfigurationError, match="model-paths: found Jinja"):
        folder_of(tmp_path, {"metadata": {"project_name": "shop"}, "nodes": {}}, [])


@pytest.mark.parametrize("text", [b"", b"name: [shop", b"shop", b"name: \xff"])
def test_a_project_file_that_is_no_mapping_in_yaml_is_refused_in_three_parts(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "dbt_project.yml").write_bytes(text)
    with pytest.raises(ConfigurationError, match=r"dbt_project\.yml: found no mapping in YAML"):
        folder_of(tmp_path, {"metadata": {"project_name": "shop"}, "nodes": {}}, [])


@pytest.mark.parametrize("method", ["is_file", "read_text"])
def test_a_project_file_that_this_user_may_not_read_is_named_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop")
    with monkeypatch.context() as patched:
        patched.setattr(Path, method, refuse)
        with pytest.raises(ConfigurationError) as caught:
            folder_of(tmp_path, {"metadata": {"project_name": "shop"}, "nodes": {}}, [])
        profile = DbtProject(folder=tmp_path).own_profile
    assert "dbt_project.yml: found a file that cannot be read; expected a dbt project." in str(caught.value)
    assert profile == ""


@pytest.mark.parametrize("paths", ["models", "{a: b}", "[1]"])
def test_model_paths_that_are_no_list_of_texts_are_refused(tmp_path: Path, paths: str) -> None:
    (tmp_path / "dbt_project.yml").write_text(f"model-paths: {paths}")
    with pytest.raises(ConfigurationError, match="model-paths: found no list of paths"):
        folder_of(tmp_path, {"metadata": {"project_name": "shop"}, "nodes": {}}, [])
