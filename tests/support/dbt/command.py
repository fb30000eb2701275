"""Calls the command line in this process, with the session of the tests."""

from __future__ import annotations

import json
import sys
from typing import Any

from click.testing import CliRunner, Result

from dbt_reverse_etl.cli import cli, main
from tests.support.dbt.project import Project


def at(shop: Project) -> list[str]:
    return ["--project-dir", str(shop.folder), "--profiles-dir", str(shop.folder)]


def call(shop: Project, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, *at(shop)], standalone_mode=False)


def exit_code(shop: Project, *arguments: str) -> int:
    """As a shell sees it."""
    sys.argv[1:] = [*arguments, *at(shop)]
    return main()


def read(result: Result) -> Any:
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


def found_by(shop: Project, *arguments: str) -> dict[str, Any]:
    return {report["sync"]: report for report in read(call(shop, "reconcile", "--json", *arguments))}


def counts(report: Any) -> tuple[int, ...]:
    return tuple(report[name] for name in ("rows", "missing", "different", "extra", "foreign"))
