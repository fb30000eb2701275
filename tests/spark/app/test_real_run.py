"""A whole `dbt run` in a process of its own, as a scheduler runs it: stopped by SIGTERM or SIGINT, watched for what it writes."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dbt.shop import DBT, start, write_shop
from tests.support.servers.http import HttpServer, Received, Reply, http_server
from tests.support.spark_session import INTERPRETED, spark_settings

SECRET, EMAIL = "canary-token-27182818", "canary.person@example.com"
# Put together row by row, so that no SQL text and no plan holds it.
MODEL = """
select id, concat('name ', id) as name, if(id = 7, concat('canary.person', chr(64 + id - id), 'example.com'), null) as email
from range(40)
"""
HELD = 40  # seconds: a run that waits for its request is seen to do so
A_PART_OF_THE_MODEL = b"chr(64 + id - id)"


class Api:
    """Holds back the answers after the tenth row, refuses one row with its own words, and keeps the others."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.stuck, self.go_on = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def __call__(self, request: Received) -> Reply:
        if request.headers.get("authorization") != f"Bearer {SECRET}":
            return Reply(401)
        row = request.json
        if row["email"] is not None and not self.go_on.is_set():
            return Reply(422, f"the e-mail {row['email']} is refused, token {SECRET}".encode())
        with self._lock:
            self.rows[request.path] = row["name"]
            is_held = len(self.rows) > 10 and not self.go_on.is_set()
        if is_held:
            self.stuck.set()
            self.go_on.wait(HELD)  # the request that is under way when the signal comes, and ends long after it
        return Reply(204)


@pytest.fixture
def api() -> Iterator[tuple[HttpServer, Api]]:
    keeps = Api()
    with http_server(keeps) as server:
        yield server, keeps


@pytest.fixture
def project(tmp_path: Path, api: tuple[HttpServer, Api]) -> Path:
    """A user's project; its profile makes a Spark session that also writes an event log."""
    home = tmp_path / "shop"
    events = tmp_path / "events"
    events.mkdir()
    spark = (
        spark_settings(tmp_path / "spark")
        | INTERPRETED
        | {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(events), "spark.eventLog.compress": "false"}
    )
    crm = {
        "type": "http",
        "url": api[0].url,
        "concurrency": 2,
        "auth": {"type": "bearer", "token": "{{ env_var('T') }}"},
    }
    write_shop(home, MODEL, spark, {"crm": crm})
    return home


def dbt(project: Path, *arguments: str) -> subprocess.Popen[str]:
    return start(project, *DBT, *arguments, T=SECRET)


def written_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()


@pytest.mark.full
@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize(
    "told_by", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)], ids=["SIGTERM", "SIGINT"]
)
def test_a_run_ended_by_a_signal_leaves_in_time_leaks_nothing_and_the_next_one_goes_on(
    project: Path, api: tuple[HttpServer, Api], tmp_path: Path, told_by: signal.Signals
) -> None:
    keeps = api[1]
    assert dbt(project, "deps").wait(120) == 0
    run = dbt(project, "--log-level", "debug", "run")
    assert keeps.stuck.wait(300)
    run.send_signal(told_by)
    told = time.monotonic()
    run.wait(60)
    took = time.monotonic() - told
    output = run.communicate(timeout=60)[0]  # its JVM, which holds the pipe too, ends after it
    assert took < 10, "it leaves within 10 seconds"
    assert run.returncode == 1, output
    assert "interrupted" in output
    assert 10 <= len(keeps.rows) < 39

    written = dict(written_below(tmp_path))
    for log in (tmp_path / "events", project / "logs/dbt.log"):
        text = b"".join(content for path, content in written.items() if path.is_relative_to(log))
        assert A_PART_OF_THE_MODEL in text, f"{log} cannot be searched"
    for path, content in [*written.items(), (Path("the console"), output.encode())]:
        is_data = "warehouse" in path.parts and "reverse_etl_ledger" not in path.parts
        assert SECRET.encode() not in content, path
        assert is_data or EMAIL.encode() not in content, path

    keeps.go_on.set()
    again = dbt(project, "run")
    output = again.communicate(timeout=300)[0]
    assert again.returncode == 0, output
    assert keeps.rows == {f"/people/{n}": f"name {n}" for n in range(40)}
