"""What `--help` offers is what a command takes, with its defaults."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dbt_reverse_etl.cli import cli


@pytest.mark.parametrize(("command", "is_offered"), [("push", True), ("plan", True), ("test", False)])
def test_only_a_command_that_takes_a_selection_offers_it(command: str, is_offered: bool) -> None:
    assert ("--select" in CliRunner().invoke(cli, [command, "--help"]).output) is is_offered


def test_the_help_of_report_names_the_file_that_it_writes_by_default() -> None:
    assert "[default: report.html]" in CliRunner().invoke(cli, ["report", "--help"]).output
