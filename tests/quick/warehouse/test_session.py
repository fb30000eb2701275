"""Sessions of Spark that no Spark runs for: a machine without Java, and a server elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkRuntimeError

from dbt_reverse_etl.warehouse import session

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


@pytest.mark.parametrize(
    ("is_of_dbt", "of_server", "kept"),
    [
        (False, "timestamp_millis", "TIMESTAMP_MICROS"),
        (False, "INT96", "INT96"),
        (True, "TIMESTAMP_MILLIS", "TIMESTAMP_MILLIS"),
    ],
)
def test_a_new_session_of_spark_connect_keeps_microseconds_whatever_its_server_was_started_with(
    is_of_dbt: bool, of_server: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"spark.sql.parquet.outputTimestampType": of_server}
    spark = SimpleNamespace(conf=SimpleNamespace(get=settings.get, set=settings.__setitem__))
    builder, active = Mock(), Mock(side_effect=None if is_of_dbt else PySparkRuntimeError("no session"))
    builder.enableHiveSupport.return_value = builder.config.return_value = builder
    builder.getOrCreate.return_value = spark
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder, active=active))
    monkeypatch.setattr(session, "is_remote", lambda: True)
    assert session.connect({"spark.remote": "sc://spark.example"}) is spark
    assert list(settings.values()) == [kept]
