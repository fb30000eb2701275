"""What the documentation names is there, and what can be run is documented."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.base.version import VERSION
from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.sinks.base import Sink
from dbt_reverse_etl.warehouse.session import LOCAL
from tests.support import ROOT

PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def test_the_destinations_that_a_reconcile_can_read_are_named() -> None:
    points = [one for one in entry_points(group="dbt_reverse_etl.sinks") if one.module.startswith("dbt_reverse_etl.")]
    read = {one.name for one in points if one.load().read is not Sink.read}
    said = re.search(r"It works for (.*?); (.*?) cannot be read\.", text("docs/operations.md"))
    assert said
    can, cannot = (set(re.findall(r"`(\w+)`", part)) for part in said.groups())
    assert (can, cannot) == (read, {one.name for one in points} - read)


def test_every_test_that_the_readme_names_as_a_proof_is_there() -> None:
    named = re.findall(r"`((?:tests|python)/\S+\.py)::(\w+)`", text("README.md"))
    assert len(named) == text("README.md").count("::") > 10
    assert_are_there(named)


@pytest.mark.parametrize("file", [".ci/matrix.py", "tests/mutants.yml"])
def test_every_test_that_the_matrix_and_the_mutants_run_is_there(file: str) -> None:
    files = {name for name in re.findall(r"\btests/[\w/]+(?:\.py)?(?=[:\s\",])", text(file)) if name != "tests/"}
    assert files
    for name in files:
        assert (ROOT / name).exists(), name
    assert_are_there(re.findall(r"(tests/[\w/]+\.py)::(?:\w+::)?(test_\w+)", text(file)))


def assert_are_there(named: list[tuple[str, str]]) -> None:
    for file, test in named:
        assert re.search(rf"^\s*(?:async )?def {test}\(|^{test} = ", text(file), re.MULTILINE), f"{file}::{test}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8"))
    for target, heading in links:
        if not target.startswith("https://"):
            file = page.parent / target if target else page
            assert file.exists(), target
            assert not heading or heading in headings(file), (target, heading)


def headings(page: Path) -> set[str]:
    """As GitHub names them in links."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_command_and_exit_code_is_documented() -> None:
    readme, operations = text("README.md"), text("docs/operations.md")
    assert set(re.findall(r"`dbt-reverse-etl ([\w-]+)`", readme)) == set(cli.commands)
    for page in (readme, operations):
        assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == set(ExitCode)


def test_every_macro_operation_test_and_model_is_documented() -> None:
    querying, operations = text("docs/querying.md"), text("docs/operations.md")
    for file in (ROOT / "macros" / "changelog").glob("[a-z]*.sql"):
        assert f"`reverse_etl.{file.stem}(" in querying, file
    for file in (ROOT / "macros" / "tests").glob("[a-z]*.sql"):
        assert f"`reverse_etl.{file.stem}`" in querying, file
    for file in (ROOT / "models").glob("*.sql"):
        assert f"`{file.stem}`" in querying, file
    for file in (ROOT / "macros" / "operations").glob("[a-z]*.sql"):
        assert f"dbt run-operation {file.stem} " in operations, file


def test_a_block_of_commands_can_be_pasted_into_zsh_which_takes_a_comment_for_arguments() -> None:
    fenced = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    indented = re.compile(r"^    (?:pip|dbt|dbt-reverse-etl|make|export|cd|cp) .*$", re.MULTILINE)
    for page in PAGES:
        written = page.read_text(encoding="utf-8")
        for block in fenced.findall(written) + indented.findall(written):
            assert not re.search(r"(^|\s)#", block), (page.name, block)


PROFILES = ("profiles.example.yml", "examples/quickstart/profiles.yml", "docs/tutorial.md", "docs/clusters.md")


@pytest.mark.parametrize("page", PROFILES)
def test_every_profile_that_is_shown_has_the_same_versions_and_the_settings_for_one_machine(page: str) -> None:
    settings = dict(re.findall(r"^ +(spark\.[\w.]+): +\"?([^\"\n]*?)\"? *(?:#.*)?$", text(page), re.MULTILINE))
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)$", text("constraints.txt"), re.MULTILINE))
    scala_jar = f"delta-spark_{pinned['pyspark'].rpartition('.')[0]}_2.13:{pinned['delta-spark']}"
    assert settings["spark.jars.packages"] == f"io.delta:{scala_jar}"
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    assert settings.items() >= (LOCAL | quiet).items()


def test_the_model_that_pushes_in_databricks_installs_the_wheel_of_this_version_and_no_name_of_a_public_index() -> None:
    (described,) = yaml.safe_load(text("examples/databricks/models/push_customers.yml"))["models"]
    (library,) = described["config"]["additional_libs"]
    assert library["whl"].rpartition("/")[2] == f"dbt_reverse_etl-{VERSION}-py3-none-any.whl"
    (extra,) = re.findall(r"^postgres = (\[.*\])$", text("pyproject.toml"), re.MULTILINE)
    assert described["config"]["packages"] == yaml.safe_load(extra), "what Databricks installs beside it"
