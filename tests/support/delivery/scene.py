"""Destinations, and a scene with a changelog, a ledger and processes that push into one of them."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Protocol

from dbt_reverse_etl.delivery.facts import Fact, RunFinished, WaveAcknowledged
from dbt_reverse_etl.sinks.base import Settings, Sink
from dbt_reverse_etl.sinks.files.sink import FilesSink
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.sinks.sql.dialects.mysql.sink import MysqlSink
from dbt_reverse_etl.sinks.sql.dialects.postgres.sink import PostgresSink
from dbt_reverse_etl.sinks.sql.dialects.sqlite import SqliteSink
from dbt_reverse_etl.sinks.sql.record import FENCES
from tests.support.delivery.victim import KEYS, FileLedger, Orders, push
from tests.support.processes import PROCESSES
from tests.support.servers import mysql
from tests.support.servers.http import HttpServer, Received, Reply
from tests.support.servers.postgres import new_database
from tests.support.sinks.files_consumer import in_folder, listed, state

FIRST = {key: n for n, key in enumerate(KEYS) if n < 6}
# Every key changes: inserts, updates and deletes.
SECOND = {key: n + 10 for n, key in enumerate(KEYS) if n not in (1, 4)}
# A constraint that a table has for a while.
REFUSE = "alter table people add constraint refused check (value % 10 <> 7)"
ALLOW = "alter table people drop constraint refused"
# What the triggers of a table keep; the log is rolled back with the rows.
NOTED = {"insert": "new.`key`, new.value", "update": "new.`key`, new.value", "delete": "old.`key`, null"}


def state_of(pid: int) -> str:
    """R, S, T (stopped), Z ...; as Linux says it, or X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Until it holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.01)


class Place(Protocol):
    """A destination: how to reach it, what it holds, and what was applied to it in what order (None: a delete)."""

    sink: type[Sink]
    settings: Settings
    transactional: bool

    def rows(self) -> dict[str, int]: ...

    def applied(self) -> Sequence[tuple[str, int | None]]: ...


class DatabasePlace(Place, Protocol):
    """One whose rows other sessions may lock; `refuse` and `allow` are statements, too."""

    locks: Sequence[str]
    refuse: Sequence[str]
    allow: Sequence[str]

    def session(self) -> AbstractContextManager[Callable[[str], object]]:
        """Of somebody else: it runs statements, and a transaction only if one says so."""
        ...


class SqlitePlace:
    """A table of somebody else, who notes in another one what is written."""

    sink, transactional = SqliteSink, True
    locks = ("select count(*) from people", "insert into people values ('other', 0)", "delete from people")
    refuse = tuple(
        f"create trigger refused_{event} before {event} on people when new.value % 10 = 7 "
        "begin select raise(abort, 'refused'); end"
        for event in ("insert", "update")
    )
    allow = ("drop trigger refused_insert", "drop trigger refused_update")

    def __init__(self, folder: Path, timeout: float = 30) -> None:
        self._file = folder / "crm.sqlite"
        self.settings = SqliteSink.settings_model(path=str(self._file), timeout=timeout)
        noted = "".join(
            f"create trigger noted_{event} after {event} on people begin "
            f"insert into applied (key, value) values ({written}); end;"
            for event, written in NOTED.items()
        )
        with closing(sqlite3.connect(self._file)) as connection:
            connection.executescript(
                "create table people (key text primary key, value integer);"
                f"create table applied (id integer primary key autoincrement, key text, value integer); {noted}"
            )

    def rows(self) -> dict[str, int]:
        return dict(self._read("select key, value from people"))

    def applied(self) -> Sequence[tuple[str, int | None]]:
        return self._read("select key, value from applied order by id")

    @contextmanager
    def session(self) -> Iterator[Callable[[str], object]]:
        """As `DatabasePlace.session`."""
        with closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            yield connection.execute

    def _read(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self._file)) as connection:
            return connection.execute(query).fetchall()


def _row_locks(key: str) -> Sequence[str]:
    rows = [f"select 1 from people where {key} = '{one}' for update" for one in KEYS]
    return (*rows, f"select 1 from {FENCES} for update")


class PostgresPlace:
    """As the role of the documentation, on a table of somebody else, who notes in another one what is written."""

    sink, transactional = PostgresSink, True
    locks = _row_locks("key")
    refuse, allow = (REFUSE,), (ALLOW,)

    def __init__(self) -> None:
        self._database = new_database()
        self._database.table("create table people (key text primary key, value bigint)")
        self._database.run(
            "create table applied (id bigint generated always as identity, key text, value bigint);"
            "create function note() returns trigger language plpgsql security definer set search_path = public as $$"
            " begin if tg_op = 'DELETE' then insert into applied (key) values (old.key);"
            " else insert into applied (key, value) values (new.key, new.value); end if; return null; end $$;"
            "create trigger noted after insert or update or delete on people for each row execute function note()"
        )
        self.settings = PostgresSink.settings_model(**self._database.settings())
        self.server, self.commit = self._database.socket_file, self._database.COMMIT

    def behind(self, port: int) -> None:
        """A proxy, and waiting for nobody for long."""
        place = {"host": "127.0.0.1", "port": port, "lock_timeout": 0.3}
        self.settings = PostgresSink.settings_model(**self._database.settings(**place))

    @contextmanager
    def session(self) -> Iterator[Callable[[str], object]]:
        """As `DatabasePlace.session`."""
        with self._database.owner() as connection:
            yield lambda statement: connection.execute(statement.encode())

    def rows(self) -> dict[str, int]:
        return dict(self._database.rows("select key, value from people"))

    def applied(self) -> Sequence[tuple[str, int | None]]:
        sessions = "select from pg_stat_activity where datname = current_database() and usename = 'crm_push'"
        wait_for(lambda: not self._database.rows(sessions))  # of killed processes: a commit may be under way
        return self._database.rows("select key, value from applied order by id")


class MysqlPlace:
    """As the role of the documentation, on a table of somebody else, who notes in another one what is written."""

    sink, transactional = MysqlSink, True
    locks = _row_locks("`key`")
    refuse, allow = (REFUSE,), (ALLOW,)

    def __init__(self) -> None:
        self._database = mysql.new_database()
        self._database.table("create table people (`key` varchar(50) primary key, value bigint) character set utf8mb4")
        self._database.run(
            "create table applied (id serial, `key` varchar(50), value bigint) character set utf8mb4\n"
            + "\n".join(
                f"create trigger noted_{event} after {event} on people for each row "
                f"insert into applied (`key`, value) values ({written})"
                for event, written in NOTED.items()
            )
        )
        self.settings = MysqlSink.settings_model(**self._database.settings())
        self.server, self.commit = self._database.socket_file, self._database.COMMIT

    def behind(self, port: int) -> None:
        """A proxy, and waiting for nobody for long."""
        place = {"host": "127.0.0.1", "port": port, "ssl_mode": "disabled", "lock_timeout": 1}
        self.settings = MysqlSink.settings_model(**self._database.settings(**place))

    @contextmanager
    def session(self) -> Iterator[Callable[[str], object]]:
        """As `DatabasePlace.session`."""
        with closing(self._database.owner()) as connection:
            yield connection.query

    def rows(self) -> dict[str, int]:
        return dict(self._database.rows("select `key`, value from people"))

    def applied(self) -> Sequence[tuple[str, int | None]]:
        sessions = "select 1 from information_schema.processlist where db = database() and user = 'crm_push'"
        wait_for(lambda: not self._database.rows(sessions))  # of killed processes: a commit may be under way
        return self._database.rows("select `key`, value from applied order by id")


class FilesPlace:
    """A folder, as a consumer of its manifest sees it."""

    sink, transactional = FilesSink, True

    def __init__(self, folder: Path) -> None:
        self._object = folder / "out" / "people"
        self.settings = FilesSink.settings_model(path=str(folder / "out"))

    def rows(self) -> dict[str, int]:
        return {row["key"]: row["value"] for row in state(listed(in_folder(self._object)), ["key"])}

    def applied(self) -> Sequence[tuple[str, int | None]]:
        return [(row["key"], row.get("value")) for row in listed(in_folder(self._object))]


class HttpPlace:
    """An API that keeps the order in which requests came, and applies each but those that it answers with an error.

    Args:
        reply: its answer to a request for this key.
    """

    sink, transactional = HttpSink, False

    def __init__(self, server: HttpServer, reply: Callable[[str], Reply] = lambda key: Reply(204)) -> None:
        self.settings = HttpSink.settings_model(url=server.url)
        self._reply = reply
        self._rows: dict[str, int] = {}
        self._applied: list[tuple[str, int | None]] = []
        self._lock = threading.Lock()
        self._server = server
        server.default = self._answer

    def _answer(self, request: Received) -> Reply:
        key = request.path.rsplit("/", 1)[1]
        with self._lock:
            reply = self._reply(key)
            if reply.status >= 400:
                return reply
            value = None if request.method == "DELETE" else int(request.json["value"])
            self._applied.append((key, value))
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value
        return reply

    def rows(self) -> dict[str, int]:
        return dict(self._rows)

    def applied(self) -> Sequence[tuple[str, int | None]]:
        self._server.wait_until_left()
        return list(self._applied)


class Scene:
    """A changelog, a ledger, a destination, and processes that push."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._orders = Orders(folder / "ledger.jsonl", place.sink, place.settings, {}, "people", [])

    def push(self, **changes: Any) -> int | None:
        """Exit code of the process; below zero: the signal that killed it."""
        process = self.start(**changes)
        process.join(60)
        return process.exitcode

    def start(self, **changes: Any) -> ForkServerProcess:
        """A push that goes on beside the test."""
        for suffix in (".steps", ".result", ".worker"):
            self._orders.ledger.with_suffix(suffix).unlink(missing_ok=True)
        process = PROCESSES.Process(target=push, args=(replace(self._orders, **changes),))
        process.start()
        return process

    def worker(self) -> int:
        """The process that the last push started to send its rows, once it has stopped itself before its first request."""
        file = self._orders.ledger.with_suffix(".worker")
        wait_for(lambda: file.exists() and bool(file.read_text()))
        wait_for(lambda: state_of(int(file.read_text())) == "T")
        return int(file.read_text())

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
