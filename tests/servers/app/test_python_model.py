"""What a Python model of dbt that pushes says when it cannot, and what it leaves out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from dbt_reverse_etl.app import invocation
from dbt_reverse_etl.app.project import Project
from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.python_model import push
from dbt_reverse_etl.warehouse.overview import Overview
from tests.support.config.manifest import manifest


def test_a_model_without_its_hook_fails_and_the_message_names_the_hook() -> None:
    def table(name: str) -> Any:
        raise AnalysisException(f"{name} is not there")

    this = SimpleNamespace(database="main", schema="shop", identifier="push_customers")
    with pytest.raises(ReverseEtlError) as raised:
        push(SimpleNamespace(this=this), SimpleNamespace(table=table), "profiles")
    assert "`main`.`shop`.`push_customers__syncs`: found no such table" in str(raised.value)
    assert "{{ reverse_etl.hand_over_syncs() }}" in str(raised.value)


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("given", [{"exclude": ["exposure:crm_*"]}, {"exclude_resource_types": ["exposure"]}])
def test_a_sync_that_the_command_excludes_is_not_pushed_by_a_python_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    (tmp_path / "profiles.yml").write_text("dbt_reverse_etl: {outputs: {prod: {crm: {type: sqlite, path: crm.db}}}}")
    project, said = Project(tmp_path, [tmp_path], "prod", tmp_path), list[str]()
    display: Any = SimpleNamespace(say=lambda text, *_, **__: said.append(text))

    def opened(*_: object) -> Any:
        raise LookupError

    monkeypatch.setattr(invocation, "open_ledger", opened)
    syncs = {"invocation_id": "1", "command": "build", "refers_to": ["model.shop.crm_c"], "args": given}
    session: Any = None
    assert (
        invocation.after_models(project, {**manifest({"crm_c": {"destination": "crm"}}), **syncs}, session, display)
        == []
    )
    assert said == ["crm_c: not pushed, for this command excludes the exposure"]
    for others in ({}, {"exclude": ["exposure:crm", "customers"]}):
        with pytest.raises(LookupError):
            invocation.after_models(
                project, {**manifest({"crm_c": {"destination": "crm"}}), **syncs, "args": others}, session, display
            )


@pytest.mark.guarantee("dbt and its commands")
def test_a_failed_test_that_was_removed_blocks_no_push_of_a_python_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profiles.yml").write_text("dbt_reverse_etl: {outputs: {prod: {crm: {type: sqlite, path: crm.db}}}}")
    failing = ["test.shop.removed", "test.shop.there", "unit_test.shop.no_macro_sees_it"]
    nothing: Any = None

    def blocking(**handed_over: object) -> list[str]:
        def overview(*_: object) -> Overview:
            return Overview(failing={"main.shop.log": failing})

        def carried_out(_: object, __: object, overview: Overview, *___: object) -> list[Any]:
            return [*overview.failing["main.shop.log"]]

        monkeypatch.setattr(invocation, "open_ledger", lambda *_: nothing)
        monkeypatch.setattr(invocation, "overview_of", overview)
        monkeypatch.setattr(invocation, "_carried_out", carried_out)
        syncs = {"invocation_id": "1", "command": "build", "refers_to": ["model.shop.crm_c"], **handed_over}
        project = Project(tmp_path, [tmp_path], "prod", tmp_path)
        written = manifest({"crm_c": {"destination": "crm"}})
        display: Any = SimpleNamespace(say=lambda *_, **__: None)
        return [*map(str, invocation.after_models(project, {**written, **syncs}, nothing, display))]

    assert blocking(tests=["test.shop.there"]) == failing[1:]
    assert blocking() == failing, "an older dbt package hands over no tests"
