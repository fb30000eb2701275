"""The session that a command opens is the one that dbt's profile describes, as dbt reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dbt_reverse_etl.app.place import Place
from dbt_reverse_etl.base.errors import ConfigurationError, ExitCode, ReverseEtlError
from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.config.manifest import LEDGER_NODE

PROFILE = """
shop:
  target: dev
  outputs:
    dev: {type: "{{ env_var('KIND', 'spark') }}", method: "{{ env_var('METHOD', 'session') }}", schema: shop}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    (tmp_path / "profiles.yml").write_text(PROFILE)
    return tmp_path


def test_a_method_from_the_environment_is_rendered(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(Place(project, None, None, None).session("dev"))
    monkeypatch.setenv("METHOD", "thrift")
    with pytest.raises(ConfigurationError, match="found type spark, method thrift; expected type: spark with"):
        Place(project, None, None, None).session("dev")


def test_where_no_session_is_to_be_had_the_message_of_databricks_names_the_python_model(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, next_step in (
        ("databricks", "a Python model in the workspace: docs/databricks.md"),
        ("duckdb", "push where"),
    ):
        monkeypatch.setenv("KIND", kind)
        with pytest.raises(ConfigurationError, match=f"found type {kind}, .*{next_step}"):
            Place(project, None, None, None).session("dev")


def test_a_session_is_that_of_the_dbt_profile_that_the_manifest_was_made_with_unless_another_one_is_asked_for(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DBT_PROFILE", raising=False)
    other = "other: {target: dev, outputs: {dev: {type: spark, method: thrift, schema: shop}}}\n"
    (project / "profiles.yml").write_text(PROFILE + other)

    def session(made_with: str) -> object:
        meta = {"reverse_etl_made_for": {"target": "dev", "profile": made_with}}
        (project / "target").mkdir(exist_ok=True)
        nodes = {LEDGER_NODE: {"config": {"meta": meta}}}
        (project / "target" / "manifest.json").write_text(json.dumps({"nodes": nodes, "metadata": {}}))
        place = Place(project, None, None, None)
        return place.session(place.project().target)

    assert callable(session("shop"))
    with pytest.raises(ConfigurationError, match=r"other\.outputs\.dev: found type spark, method thrift"):
        session("other")
    assert callable(session("user")), "that of dbt Cloud is in no file"
    monkeypatch.setenv("DBT_PROFILE", "shop")
    assert callable(session("other"))


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("asked", ["--target", "DBT_TARGET", "DBT_ENGINE_TARGET"])
def test_a_target_that_is_asked_for_and_is_not_that_of_the_manifest_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    meta = {"reverse_etl_made_for": {"target": "dev", "profile": "shop"}}
    (project / "target").mkdir()
    manifest = {"nodes": {LEDGER_NODE: {"config": {"meta": meta}}}, "metadata": {}}
    (project / "target" / "manifest.json").write_text(json.dumps(manifest))
    for name in ("DBT_TARGET", "DBT_ENGINE_TARGET"):
        monkeypatch.delenv(name, raising=False)

    def place(target: str) -> Place:
        if asked == "--target":
            return Place(project, None, target, None)
        monkeypatch.setenv(asked, target)
        return Place(project, None, None, None)

    assert place("dev").target() == "dev"
    with pytest.raises(ConfigurationError, match=rf"{asked}.*: found prod; .*or give --target dev here") as caught:
        place("prod").target()
    assert "expected dev, the target of manifest.json" in str(caught.value)
    monkeypatch.setenv("DBT_TARGET", "prod")
    assert Place(project, None, "dev", None).target() == "dev", "the option goes before the variable, as in dbt"


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    ("left", "code", "found"),
    [(None, ExitCode.USAGE, "no such file"), ('{"nodes": ', ExitCode.FAILED, r"unreadable \(JSONDecodeError\)")],
)
def test_artifacts_that_are_missing_are_a_wrong_call_and_half_written_ones_are_worth_another_try(
    project: Path, left: str | None, code: ExitCode, found: str
) -> None:
    (project / "target").mkdir()
    if left is not None:
        (project / "target" / "manifest.json").write_text(left)
    wrong = [["status", "--target-path", "profiles.yml"]] if left is None else []
    for arguments in (["push", "--if-due"], ["status"], *wrong):
        with pytest.raises(ReverseEtlError, match=rf"manifest\.json: found {found}; expected an artifact") as caught:
            cli.main(arguments, standalone_mode=False, obj={})
        assert caught.value.exit_code == code


@pytest.mark.guarantee("dbt and its commands")
def test_a_command_without_pyspark_is_a_wrong_call(project: Path) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from dbt_reverse_etl.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program, "status"], capture_output=True, text=True, check=False)
    assert "Next: pip install 'dbt-reverse-etl[spark]'" in done.stderr, done.stdout
    assert done.returncode == ExitCode.USAGE


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("command", ["serve", "poll"])
def test_a_service_where_the_system_has_no_locks_is_a_wrong_call(project: Path, command: str) -> None:
    program = "import sys; sys.modules['fcntl'] = None; from dbt_reverse_etl.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program, command], capture_output=True, text=True, check=False)
    found = "serve and poll: found an operating system without fcntl; expected Linux or macOS. Next: run it there"
    assert found in done.stderr, done.stdout
    assert done.returncode == ExitCode.USAGE


@pytest.mark.parametrize("command", [["plan"], ["status"], ["push"], ["check"], ["wide-table", "explain", "orders"]])
def test_outside_of_a_project_each_command_asks_for_the_project_not_for_its_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(cli, command, standalone_mode=False)
    assert isinstance(said.exception, ConfigurationError)
    assert "dbt_project.yml: found no such file; expected a dbt project. Next: cd into it" in str(said.exception)
