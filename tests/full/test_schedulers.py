"""The examples for Airflow and Dagster, with Airflow and Dagster, each in an environment of its own; the command is one that only ends as it is told."""

from __future__ import annotations

import os
import subprocess
import textwrap
import venv
from pathlib import Path

import pytest

from dbt_reverse_etl.base.errors import ExitCode
from tests.support import ROOT

pytestmark = pytest.mark.full
DEPLOY = ROOT / "examples" / "deploy"
COMMAND = """#!/bin/sh
echo "$@" >> calls
case "$*" in *--json*) echo '[{"counts": {"delivered": {"insert": 2, "delete": 1}}}]';; esac
exit $(cat code)
"""
# What is tried again, with three retries, and what is not.
TRIES = [(ExitCode.OK, 1), (ExitCode.FAILED, 4), (ExitCode.BUSY, 4), (ExitCode.OVERTAKEN, 4), (130, 4)]
TRIES += [(code, 1) for code in (ExitCode.USAGE, ExitCode.BLOCKED, ExitCode.OTHER_CHANGELOG)]


class Environment:
    """A new one with packages of the index, and a folder in which the command and `dbt` note how they are called."""

    def __init__(self, folder: Path, *packages: str) -> None:
        self.folder, self.bin = folder, folder / "venv/bin"
        venv.create(folder / "venv", with_pip=True)
        subprocess.run([self.bin / "pip", "install", "-q", *packages], check=True)
        for name in ("dbt", "dbt-reverse-etl"):
            command = self.bin / name
            command.write_text(COMMAND if name != "dbt" else "#!/bin/sh\n")
            command.chmod(0o755)

    def example(self, name: str, delay: str, none: str) -> str:
        """Its text for this folder, without the waits between tries."""
        text = (DEPLOY / name).read_text()
        assert delay in text
        return text.replace("/srv/shop", str(self.folder)).replace(delay, none)

    def calls(self, code: int, *command: str, **env: str) -> tuple[int, str]:
        """How often the command was called while something ran, and the output."""
        (self.folder / "code").write_text(str(int(code)))
        (self.folder / "calls").write_text("")
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env={**os.environ, **env, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        return len((self.folder / "calls").read_text().splitlines()), done.stdout + done.stderr


def test_dagster_tries_again_what_that_may_mend_and_shows_the_rows_of_a_push(tmp_path: Path) -> None:
    made = Environment(tmp_path, "dagster==1.13.29")
    (tmp_path / "assets.py").write_text(
        made.example("dagster_assets.py", "delay=300", "delay=0")
        + textwrap.dedent("""
        if __name__ == "__main__":
            done = dg.materialize([*defs.assets], raise_on_error=False)
            for event in done.get_asset_materialization_events():
                print("rows:", {name: one.value for name, one in event.materialization.metadata.items()})
        """)
    )
    for code, tries in TRIES:
        calls, output = made.calls(code, "python", "assets.py")
        assert calls == tries, output
        assert ("rows: {'insert': 2, 'delete': 1}" in output) == (code == ExitCode.OK), output


def test_airflow_tries_again_what_that_may_mend(tmp_path: Path) -> None:
    made = Environment(tmp_path, "apache-airflow-task-sdk==1.3.2", "apache-airflow-providers-standard==1.21.0")
    (tmp_path / "dags").mkdir()
    text = made.example("airflow_dag.py", "timedelta(minutes=5)", "timedelta(0)")
    (tmp_path / "dags/shop.py").write_text(text)
    env = {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    made.calls(0, "airflow", "db", "migrate", **env)
    made.calls(0, "airflow", "dags", "reserialize", **env)
    for code, tries in TRIES:
        calls, output = made.calls(code, "airflow", "dags", "test", "shop", **env)
        assert calls == tries, output
        assert ("new_state=up_for_retry" in output) == (tries > 1)
        assert ("successful" in output) == (code == ExitCode.OK)
