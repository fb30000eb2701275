"""A push killed at every fault point, into every kind of destination: one clean run later the destination is the model."""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from dbt_reverse_etl.delivery.facts import Fact, RunFinished, WaveAcknowledged
from dbt_reverse_etl.delivery.fault_points import FAULT_POINTS
from dbt_reverse_etl.sinks.base import Settings, Sink
from dbt_reverse_etl.sinks.http import HttpSink
from dbt_reverse_etl.sinks.postgres import PostgresSink
from dbt_reverse_etl.sinks.sqlite import SqliteSink
from tests.faults.victim import KEYS, WAVE_ROWS, WAVES, FileLedger, Orders, push
from tests.unit.http_server import HttpServer, Received, Reply, http_server
from tests.unit.postgres_server import new_database

SINKS = [f"dbt_reverse_etl.sinks.{name}" for name in ("http", "http_transport", "postgres", "sqlite")]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.faults.victim", *SINKS])

FIRST = {key: n for n, key in enumerate(KEYS) if n < 6}
# Every key changes: inserts, updates and deletes.
SECOND = {key: n + 10 for n, key in enumerate(KEYS) if n not in (1, 4)}
NEVER = {True: {"doubt.recorded"}, False: {"claims.settled", "claims.recorded"}}  # by whether the sink is transactional


class Place(Protocol):
    """A destination: how to reach it, what it holds, and what was applied to it in what order."""

    sink: type[Sink]
    settings: Settings
    transactional: bool

    def rows(self) -> dict[str, int]: ...

    def applied(self) -> Sequence[tuple[str, int | None]]: ...


class SqlitePlace:
    sink, transactional = SqliteSink, True

    def __init__(self, folder: Path) -> None:
        self._file = folder / "crm.sqlite"
        self.settings = SqliteSink.settings_model(path=str(self._file))

    def rows(self) -> dict[str, int]:
        with sqlite3.connect(self._file) as connection:
            return dict(connection.execute("select key, value from people"))

    def applied(self) -> Sequence[tuple[str, int | None]]:
        return []


class PostgresPlace:
    """As the role of the documentation, on a table of somebody else."""

    sink, transactional = PostgresSink, True

    def __init__(self) -> None:
        self._database = new_database()
        self._database.table("create table people (key text primary key, value bigint)")
        self.settings = PostgresSink.settings_model(**self._database.settings())

    def rows(self) -> dict[str, int]:
        return dict(self._database.rows("select key, value from people"))

    def applied(self) -> Sequence[tuple[str, int | None]]:
        return []


class HttpPlace:
    """An API that applies each request and keeps the order in which they came."""

    sink, transactional = HttpSink, False

    def __init__(self, server: HttpServer) -> None:
        self.settings = HttpSink.settings_model(url=server.url)
        self._rows: dict[str, int] = {}
        self._applied: list[tuple[str, int | None]] = []
        self._lock = threading.Lock()
        server.default = self._answer

    def _answer(self, request: Received) -> Reply:
        key = request.path.rsplit("/", 1)[1]
        with self._lock:
            value = None if request.method == "DELETE" else int(request.json["value"])
            self._applied.append((key, value))
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value
        return Reply(204)

    def rows(self) -> dict[str, int]:
        return dict(self._rows)

    def applied(self) -> Sequence[tuple[str, int | None]]:
        return list(self._applied)


@pytest.fixture(params=["sqlite", "postgres", "http"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqlitePlace(tmp_path)
    elif request.param == "postgres":
        yield PostgresPlace()
    else:
        with http_server() as server:
            yield HttpPlace(server)


class Scene:
    """A changelog, a ledger, a destination, and processes that push."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._orders = Orders(folder / "ledger.jsonl", place.sink, place.settings, {}, "people", [FIRST])

    def push(self, **changes: Any) -> int | None:
        """Exit code of the process; below zero: the signal that killed it."""
        for suffix in (".steps", ".result"):
            self._orders.ledger.with_suffix(suffix).unlink(missing_ok=True)
        process = PROCESSES.Process(target=push, args=(replace(self._orders, **changes),))
        process.start()
        process.join(60)
        return process.exitcode

    def capture(self, image: Mapping[str, int]) -> None:
        self._orders = replace(self._orders, images=[*self._orders.images, image])

    def came_by(self, point: str) -> int:
        """How often the last process did."""
        return self._orders.ledger.with_suffix(".steps").read_text().split().count(point)

    @property
    def status(self) -> str:
        return self._orders.ledger.with_suffix(".result").read_text()

    def unbalanced(self) -> list[Fact]:
        facts = FileLedger(self._orders.ledger).facts()
        ends = [fact for fact in facts if isinstance(fact, RunFinished)]
        waves = [fact for fact in facts if isinstance(fact, WaveAcknowledged)]
        wrong: list[Fact] = [fact for fact in ends if fact.counts.planned != fact.planned]
        return wrong + [fact for fact in (*ends, *waves) if not fact.counts.balanced]


@pytest.fixture
def scene(place: Place, tmp_path: Path) -> Scene:
    scene = Scene(place, tmp_path)
    assert scene.push() == 0
    assert place.rows() == FIRST
    scene.capture(SECOND)
    return scene


def kills() -> Iterator[Any]:
    """Every fault point of the code; those that repeat, at the first, middle and last wave or batch."""
    for point in FAULT_POINTS:
        for which in ("first", "middle", "last") if point.startswith(("wave.", "batch.")) else ("first",):
            yield pytest.param(point, which, id=f"{point}, {which}")


def occurrence(point: str, which: str, place: Place) -> int:
    times = (WAVES if place.transactional else len(KEYS)) if point.startswith("batch.") else WAVES
    return {"first": 1, "middle": (times + 1) // 2, "last": times}[which]


def lingers(point: str) -> dict[str, float]:
    return {"linger": 3.0} if point in ("lease.lost", "doubt.recorded") else {}


def follows_a_crash(point: str) -> bool:
    return point in ("claims.settled", "claims.recorded")


@pytest.mark.parametrize("reverts", [False, True], ids=["goes on", "goes back"])
@pytest.mark.parametrize(("point", "which"), [*kills()])
def test_a_push_killed_there_converges_with_the_next_one(
    scene: Scene, place: Place, point: str, which: str, *, reverts: bool
) -> None:
    if follows_a_crash(point):
        assert scene.push(kill=("batch.after", 1)) == -signal.SIGKILL
    sent_before = len(place.applied())
    ended = scene.push(kill=(point, occurrence(point, which, place)), **lingers(point))
    if point in NEVER[place.transactional]:
        assert (ended, scene.came_by(point)) == (0, 0)
    else:
        assert ended == -signal.SIGKILL
    sent = place.applied()[sent_before:]
    if reverts:
        scene.capture(FIRST)

    assert scene.push() == 0
    assert scene.status in ("succeeded", "idle")
    head = FIRST if reverts else SECOND
    assert place.rows() == head
    assert scene.unbalanced() == []
    sent_again = place.applied()[sent_before + len(sent) :]
    assert all(SECOND.get(key) == value for key, value in sent), "an older value"
    assert all(head.get(key) == value for key, value in sent_again), "an older value"
    assert reverts or len({*sent} & {*sent_again}) <= 2 * WAVE_ROWS


def test_a_wave_that_the_destination_has_on_record_is_not_sent_again(scene: Scene, place: Place) -> None:
    assert scene.push(kill=("wave.delivered", 1)) == -signal.SIGKILL
    assert scene.push() == 0
    assert scene.came_by("wave.delivered") == (WAVES - 1 if place.transactional else WAVES)
