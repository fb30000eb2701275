"""A machine on which Spark cannot be started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONNECT = """
from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.warehouse.session import connect
try:
    connect({})
except ReverseEtlError as error:
    print(error)
"""


def test_without_a_java_the_next_step_is_to_install_one(tmp_path: Path) -> None:
    env = {**os.environ, "JAVA_HOME": str(tmp_path / "nonexistent")}
    ended = subprocess.run([sys.executable, "-c", CONNECT], env=env, cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    said = ended.stdout.decode()
    assert said.startswith(
        "Spark: found no Java that starts it; expected Java 17 or 21. Next: install it and set JAVA_HOME"
    )
