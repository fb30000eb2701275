"""What `dbt-reverse-etl wide-table` prints, in a terminal or a file that has not every letter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.cli import cli
from tests.support.wide.chains import table
from tests.support.wide.declarations import CUSTOMERS, REGION

WIDE = {"root": "customers", "nodes": [CUSTOMERS, REGION | {"columns": ["name"]}]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tables = {f"model.shop.{name}": table(name) for name in ("customers", "regions")}
    wide = {
        "unique_id": "model.shop.wide",
        "depends_on": {"nodes": [*tables]},
        "config": {"meta": {"reverse_etl": {"wide_table": WIDE}}},
    }
    manifest = {
        "metadata": {"project_name": "shop"},
        "sources": {},
        "nodes": tables | {"model.shop.wide": table("wide", **wide)},
    }
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def test_a_tree_is_printed_where_its_lines_have_no_letters(project: Path) -> None:
    arguments = ["wide-table", "explain", "wide", "--project-dir", str(project)]
    shown = {charset: CliRunner(charset=charset).invoke(cli, arguments) for charset in ("utf-8", "cp1252")}
    assert "└─ 1. left join region" in shown["utf-8"].output
    assert "\\u2514\\u2500 1. left join region" in shown["cp1252"].output


def test_a_picture_that_cannot_be_written_is_refused_before_the_tree_is_printed(project: Path) -> None:
    def drawn(svg: Path) -> Result:
        arguments = ["wide-table", "explain", "wide", "--project-dir", str(project), "--svg", str(svg)]
        return CliRunner().invoke(cli, arguments, standalone_mode=False)

    refused = drawn(project / "absent" / "tree.svg")
    assert isinstance(refused.exception, ConfigurationError)
    assert "--svg: found no folder" in str(refused.exception)
    assert refused.output == ""
    assert drawn(project / "tree.svg").exception is None
    assert (project / "tree.svg").read_text().startswith("<svg")
    (project / "link.svg").symlink_to("tree.svg")
    assert drawn(project / "link.svg").exception is None
    assert (project / "link.svg").is_symlink()
    assert drawn(Path("/dev/null")).exception is None
