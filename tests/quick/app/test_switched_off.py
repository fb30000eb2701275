"""`DBT_REVERSE_ETL_PUSH=off` where a command is called to push: it says that nothing is pushed, and a service does not start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.cli import cli


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without a sync, so that nothing needs Spark."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    session = "{target: dev, outputs: {dev: {type: spark, method: session, schema: shop}}}"
    (tmp_path / "profiles.yml").write_text(f"shop: {session}\ndbt_reverse_etl: {{outputs: {{dev: {{}}}}}}\n")
    (tmp_path / "target").mkdir()
    schema = "https://schemas.getdbt.com/dbt/manifest/v12.json"
    manifest = {
        "metadata": {"invocation_id": "a", "dbt_schema_version": schema},
        "nodes": {},
        "exposures": {},
        "sources": {},
    }
    (tmp_path / "target" / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("command", ["push", "retry"])
def test_a_push_that_is_switched_off_says_that_nothing_is_pushed(
    command: str, project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for word in ("off", "on", "", " on"):
        monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", word)
        assert cli.main([command], standalone_mode=False, obj={}) == 0
        said[word] = "".join(capfd.readouterr())
    assert "Nothing is pushed: DBT_REVERSE_ETL_PUSH is off. Unset it to push" in said["off"]
    assert "Nothing to push." in said["on"]
    assert said["on"] == said[""] == said[" on"], "an empty variable is an unset one"
    assert "Nothing to push." not in said["off"], "as if nothing had been left"


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize("word", ["off", "plan"])
@pytest.mark.parametrize("command", [["serve"], ["poll", "--once"]])
def test_a_service_that_is_switched_off_does_not_start(
    command: list[str], word: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", word)
    with pytest.raises(ConfigurationError, match=f"PUSH: found {word}; expected on: this command sends rows"):
        cli.main(command, standalone_mode=False, obj={})
