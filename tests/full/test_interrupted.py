"""Commands and dbt runs that a signal ends at any moment: with 130, in time, without a word of an unexpected error; the next push goes on."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.dbt.shop import DBT, REVERSE_ETL, start, write_shop
from tests.support.servers.http import Received, Reply, http_server
from tests.support.spark_session import INTERPRETED, spark_settings

ROWS = 300
TURNS = 4  # of a dbt run that is interrupted
LEAVES = 12.0  # seconds; a schedule waits ten, and this machine may be busy
ENDS = 3.0  # seconds in which a process ends whose work is done; a signal is too late then
# What a user is never to read of a signal.
NEVER = ("an unexpected ", "report it", "Py4JError", "dbt_reverse_etl/")


class Api:
    """Takes a row in the time that a test wants it to take."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.seconds = 0.0

    def __call__(self, request: Received) -> Reply:
        time.sleep(self.seconds)
        if request.method == "DELETE":
            self.rows.pop(request.path, None)
        else:
            self.rows[request.path] = request.json["name"]
        return Reply(204)


@dataclass
class Shop:
    """A project on disk, the API and a database to which it pushes."""

    home: Path
    api: Api

    def start(self, *command: str, **env: str) -> subprocess.Popen[str]:
        return start(self.home, *command, **env)

    def ends(self, *command: str, **env: str) -> str:
        process = self.start(*command, **env)
        output = process.communicate(timeout=600)[0]
        assert process.returncode == 0, output
        return output

    def told(
        self, process: subprocess.Popen[str], number: signal.Signals, after: float
    ) -> tuple[int, str, float] | None:
        """Its exit code, its output and how long it took to leave; None: it had ended before."""
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            pass
        else:
            process.communicate()
            return None
        process.send_signal(number)
        told = time.monotonic()
        process.wait(120)
        took = time.monotonic() - told
        return process.returncode, process.communicate(timeout=60)[0], took  # its JVM holds the pipe, and ends after it

    def model(self, number: int) -> dict[str, str]:
        return {f"/people/{n}": f"name {n} {number}" for n in range(ROWS)}

    def change(self, number: int) -> None:
        config = "{{ config(materialized='changelog', unique_key='id') }}\n"
        (self.home / "models/people.sql").write_text(
            f"{config}select id, concat('name ', id, ' {number}') as name from range({ROWS})"
        )


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    api = Api()
    with http_server(api) as server:
        home = tmp_path / "shop"
        spark = spark_settings(tmp_path / "spark") | INTERPRETED
        destinations: dict[str, dict[str, object]] = {
            "api": {"type": "http", "url": server.url, "concurrency": 2},
            "file": {"type": "sqlite", "path": str(tmp_path / "crm.db")},
        }
        write_shop(home, "select 1 as id", spark, destinations)
        made = Shop(home, api)
        made.change(0)
        made.ends(*DBT, "deps")
        made.ends(*DBT, "run", DBT_REVERSE_ETL_PUSH="off")
        yield made


def moments(rnd: random.Random, number: int, seconds: float) -> list[float]:
    """One in each of so many parts of the time that a command takes."""
    return [seconds * (n + rnd.random()) / number for n in range(number)]


@pytest.mark.guarantee("dbt and its commands")
def test_at_any_moment_a_signal_ends_a_command_with_130_and_the_next_push_goes_on(shop: Shop) -> None:
    seed, heard = random.SystemRandom().randrange(10**9), 0
    rnd = random.Random(seed)
    began = time.monotonic()
    shop.ends(*REVERSE_ETL, "plan", "--json")
    takes = time.monotonic() - began
    shop.api.seconds = 0.1  # so that a push sends for a while
    plans = [("push", at) for at in moments(rnd, 5, takes + 8)]
    plans += [(command, at) for command in ("plan", "status", "reconcile") for at in moments(rnd, 2, takes)]
    for command, at in plans:
        number = rnd.choice([signal.SIGINT, signal.SIGTERM])
        ended = shop.told(shop.start(*REVERSE_ETL, command), number, at + 0.2)
        if ended is None:
            continue
        code, output, took = ended
        about = f"seed {seed}: {command}, {number.name} after {at:.1f} s of about {takes:.1f} s\n{output}"
        if code == 0 and took < ENDS:
            continue
        assert code == 130, about
        assert took < LEAVES, about
        assert not [words for words in NEVER if words in output], about
        heard += 1
    assert heard > len(plans) // 2, "too many had ended before"
    shop.api.seconds = 0
    last = shop.start(*REVERSE_ETL, "push")
    output = last.communicate(timeout=600)[0]
    assert last.returncode == 0, output
    assert shop.api.rows == shop.model(0)
    assert "nothing to send" in shop.ends(*DBT, "run"), "everything is on record"


@pytest.mark.guarantee("Report and alerts")
def test_a_sync_that_was_blocked_before_the_signal_shows_as_blocked(shop: Shop) -> None:
    exposures = shop.home / "models/exposures.yml"
    document = yaml.safe_load(exposures.read_text())
    (blocked,) = (one for one in document["exposures"] if one["name"] == "file_people")
    blocked["config"]["meta"]["reverse_etl"]["guards"] = {"max_changes": 10}
    exposures.write_text(yaml.safe_dump(document))
    shop.ends(*DBT, "run")  # a first load has no limit
    shop.change(1)
    shop.api.seconds = 0.5
    push = shop.start(*DBT, "run")
    shown = []
    for line in push.stdout or ():
        shown.append(line)
        if "ERROR blocked" in line:
            break
    push.send_signal(signal.SIGINT)
    shown.append(push.communicate(timeout=120)[0])
    assert push.returncode, "".join(shown)
    assert shop.api.rows != shop.model(1), "the other sync was on its way"
    status = shop.start(*REVERSE_ETL, "status", "--json").communicate(timeout=600)[0]
    found = {one["sync"]: one for one in json.JSONDecoder().raw_decode(status, status.index("[\n  {"))[0]}
    assert found["file_people"]["health"] == "failing", "".join(shown)[-3000:] + str(found["file_people"])
    assert "blocked" in found["file_people"]["reason"], status


@pytest.mark.guarantee("dbt and its commands")
def test_a_test_that_failed_before_the_signal_blocks_the_next_run_although_that_tests_nothing(shop: Shop) -> None:
    singular = shop.home / "tests"
    singular.mkdir()
    (singular / "fails.sql").write_text("select id from {{ ref('people') }} where _change = 'insert'")
    sleeps = "java_method('java.lang.Thread', 'sleep', 20000L) = 'awake'"
    (singular / "lasts.sql").write_text(f"select id from {{{{ ref('people') }}}} where id = 1 and {sleeps}")
    build = shop.start(*DBT, "build", "--threads", "2")
    shown = []
    for line in build.stdout or ():
        shown.append(line)
        if "FAIL 300 fails" in line:  # it counts, although the other one ends after the signal
            break
    build.send_signal(signal.SIGINT)
    shown.append(build.communicate(timeout=120)[0])
    output = "".join(shown)
    assert build.returncode, output
    assert "dbt was interrupted, so nothing is pushed" in output
    next_run = shop.start(*DBT, "run").communicate(timeout=600)[0]
    assert "tests not passed of people: fails" in next_run, output[-1500:] + next_run[-2000:]
    assert shop.api.rows == {}


@pytest.mark.guarantee("dbt and its commands")
def test_at_any_moment_a_signal_ends_a_dbt_run_and_the_next_one_goes_on(shop: Shop) -> None:
    seed = random.SystemRandom().randrange(10**9)
    rnd = random.Random(seed)
    began = time.monotonic()
    shop.ends(*DBT, "run")
    takes = time.monotonic() - began
    shop.api.seconds = 0.1
    for turn, at in enumerate(moments(rnd, TURNS, takes + 8), 1):
        shop.change(turn)
        ended = shop.told(shop.start(*DBT, "run"), signal.SIGINT, at)
        about = f"seed {seed}: SIGINT after {at:.1f} s of about {takes:.1f} s\n{ended and ended[1]}"
        assert ended is None or (ended[0] != 0 and ended[2] < 2 * LEAVES), about
        assert ended is None or not [words for words in NEVER[:2] if words in ended[1]], about
    shop.api.seconds = 0
    shop.ends(*DBT, "run")
    assert shop.api.rows == shop.model(TURNS)
