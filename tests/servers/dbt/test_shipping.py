"""What executors get of this package, in a Python that has its dependencies alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dbt_reverse_etl.warehouse import shipping
from tests.support.servers.spark import environment, python_without_the_package

IN_A_TASK = """
import dbt_reverse_etl
from dbt_reverse_etl.warehouse.executors import Work
import dbt_reverse_etl.sinks.http.sink
import dbt_reverse_etl.sinks.kafka.sink
import dbt_reverse_etl.sinks.sql.dialects.mysql.sink
import dbt_reverse_etl.sinks.sql.dialects.postgres.sink
from dbt_reverse_etl.sinks.http.preset import load_preset, preset_names
from dbt_reverse_etl.sinks.http.body import compiled
from dbt_reverse_etl.sinks.http.template import template_text

assert ".zip/" in dbt_reverse_etl.__file__
for name in preset_names():
    for option in load_preset(name)["options"].values():
        if isinstance(option, dict) and "body_template" in option:
            compiled(template_text(option["body_template"], None), "contacts", ("id",))
            print(name)
"""


@pytest.mark.guarantee("dbt and its commands")
def test_the_archive_holds_all_that_tasks_import_and_read(tmp_path: Path) -> None:
    archive = shipping.archive()
    assert archive.stat().st_size < 1_000_000
    python = python_without_the_package(tmp_path / "python")
    env = {**environment(), "PYTHONPATH": str(archive)}
    task = subprocess.run(
        [str(python), "-c", IN_A_TASK], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert task.returncode == 0, task.stderr
    assert {"hubspot", "salesforce", "braze"} <= {*task.stdout.split()}


def test_it_goes_with_the_process(tmp_path: Path) -> None:
    python = "import os; from dbt_reverse_etl.warehouse.shipping import archive; print(archive())"
    made = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=True).stdout.strip()
    assert made.endswith(".zip")
    assert not Path(made).parent.exists()
