"""A real MariaDB server for one pytest process, and a fresh database for each test, with the rights that docs/mysql.md gives."""

from __future__ import annotations

import atexit
import fcntl
import itertools
import os
import re
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pymysql
import trustme
from pymysql.connections import Connection

from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.sql.checks import create_table
from dbt_reverse_etl.sinks.sql.dialects.mysql.sink import MysqlDialect, MysqlSink
from dbt_reverse_etl.sinks.sql.settings import MysqlSettings
from dbt_reverse_etl.sinks.sql.table import Name, quoted
from tests.support import ROOT
from tests.support.servers.http import free_port
from tests.support.servers.unpacked import CACHE, unpacked

ROLE, PASSWORD = "crm_push", "canary-password-16180339"
DOCS = ROOT / "docs" / "mysql.md"
# What mariadb-server-core loads beyond the libraries that every Debian and Ubuntu has; the second names are Ubuntu's.
PACKAGES = (
    ("mariadb-server-core",),
    ("mariadb-client-core",),
    ("libaio1", "libaio1t64"),
    ("liburing2",),
    ("libnuma1",),
)
HINT = "install the package mariadb-server (mariadbd and mariadb-install-db must be on PATH or in /usr/sbin)"
_numbers = itertools.count()


@dataclass(frozen=True)
class Programs:
    """Where the server's programs are, and the environment that they need."""

    home: Path
    server: Path
    install: Path
    environment: dict[str, str] = field(default_factory=dict)


@cache
def programs() -> Programs:
    """Those of the machine, or of Debian's packages, unpacked once below the home directory."""
    folders = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    server, install = (shutil.which(name, path=folders) for name in ("mariadbd", "mariadb-install-db"))
    if server and install:
        return Programs(Path(server).resolve().parents[1], Path(server), Path(install))
    root = unpacked("mariadb", _download_all, HINT)
    libraries = os.pathsep.join(str(folder) for folder in root.glob("**/lib/*-linux-gnu*") if folder.is_dir())
    usr = root / "usr"
    programs = usr / "sbin" / "mariadbd", usr / "bin" / "mariadb-install-db"
    return Programs(usr, *programs, {"LD_LIBRARY_PATH": libraries})


def _download_all(place: Path) -> None:
    for names in PACKAGES:
        _download(names, place)


def _download(names: tuple[str, ...], place: Path) -> None:
    """The first of these packages that there is; where the machine's lists do not lead to it, by lists of our own."""
    lists = CACHE / "apt"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    own = ["apt-get", "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={lists}"]
    for attempt in [*(["apt-get", "download", name] for name in names), *([*own, "download", name] for name in names)]:
        if attempt[1] == "-o" and not any(lists.glob("*Packages*")):
            subprocess.run([*own, "update"], check=True, capture_output=True)
        if subprocess.run(attempt, cwd=place, check=False, capture_output=True).returncode == 0:
            return
    raise RuntimeError(f"There is no MariaDB server, and the package {names[0]} cannot be fetched: {HINT}")


@dataclass
class Server:
    """A server with its own data, that can be killed and started again."""

    folder: Path
    port: int
    authority: trustme.CA
    _process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return str(self.folder / "sock")

    def start(self) -> None:
        """Start it on its data, and wait until it answers."""
        found, log = programs(), self.folder / "log"
        data, pid = self.folder / "data", self.folder / "pid"
        options = {
            "basedir": found.home,
            "datadir": data,
            "lc-messages-dir": found.home / "share" / "mysql",
            "socket": self.socket,
            "pid-file": pid,
            "port": self.port,
            "bind-address": "127.0.0.1",
            "ssl-cert": self.folder / "cert.pem",
            "ssl-key": self.folder / "key.pem",
            "innodb-buffer-pool-size": "32M",
            "innodb-log-file-size": "16M",
            "innodb-flush-method": "nosync",
            "innodb-flush-log-at-trx-commit": 2,
            "innodb-doublewrite": 0,
            "innodb-deadlock-detect": 1,
            "key-buffer-size": "1M",
            "aria-pagecache-buffer-size": "8M",
            "performance-schema": 0,
            "sync-frm": 0,
            "character-set-server": "latin1",  # nothing may depend on it
            "sql-mode": "",
            "tls-version": "TLSv1.2,TLSv1.3",
        }
        given = [f"--{name}={value}" for name, value in options.items()]
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [found.server, "--no-defaults", *given, *_as_root(), "--skip-name-resolve"],
                env=os.environ | found.environment,
                stdout=said,
                stderr=said,
            )
        for _ in range(600):
            if self._process.poll() is not None:
                break
            with suppress(pymysql.Error), closing(self.root()):
                return
            time.sleep(0.05)
        raise RuntimeError(f"The MariaDB server did not start ({log}): {HINT}")

    def root(self, database: str | None = None) -> Connection[Any]:
        """The owner's connection, in autocommit mode."""
        return pymysql.connect(
            unix_socket=self.socket,
            user="root",
            database=database,
            autocommit=True,
            charset="utf8mb4",
            ssl_disabled=True,
        )

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process
        self._process.kill()
        self._process.wait()

    @contextmanager
    def always_started(self) -> Iterator[None]:
        """It runs at the end, also if it was killed meanwhile."""
        try:
            yield
        finally:
            if self._process is None or self._process.poll() is not None:
                self.start()

    def remove(self) -> None:
        """End it, with its data."""
        if self._process:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


@cache
def server() -> Server:
    """The server of this process; it ends with it."""
    folder, found = Path(tempfile.mkdtemp(prefix="my-")), programs()
    CACHE.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    command = [
        *(found.install, "--no-defaults", f"--basedir={found.home}", f"--datadir={folder / 'data'}"),
        *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", *_as_root()),
    ]
    with (CACHE / "install.lock").open("w") as lock:  # two at once may read each other's files
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, env=os.environ | found.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mariadb-install-db failed: {HINT}\n{done.stdout}{done.stderr}")
    started = Server(folder, free_port(), authority)
    atexit.register(_remove_by, os.getpid(), started)
    started.start()
    with closing(started.root()) as connection:
        connection.cursor().execute(grants()[0].replace("a long one", PASSWORD))
    return started


def _remove_by(owner: int, started: Server) -> None:
    if os.getpid() == owner:  # not a forked process
        started.remove()


@dataclass(frozen=True)
class Database:
    """One database; its objects belong to the owner, the sink logs in as the role of the documentation."""

    kind: ClassVar[str] = "mysql"
    COMMIT: ClassVar[str] = "\3COMMIT"  # as a command, unlike that of SET AUTOCOMMIT
    MOMENT: ClassVar[str] = "datetime(6)"

    server: Server
    name: str

    @property
    def socket_file(self) -> str:
        """What a proxy stands before."""
        return self.server.socket

    def owner(self) -> Connection[Any]:
        """The owner's connection, in autocommit mode."""
        return self.server.root(self.name)

    @contextmanager
    def session(self) -> Iterator[Callable[[str], object]]:
        """Of the owner: it runs statements, and a transaction only if one says so."""
        with closing(self.owner()) as connection:
            yield connection.query

    def run(self, text: str) -> None:
        """Run statements as the owner, one in a line."""
        self.rows(text)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query of the owner gives."""
        with closing(self.owner()) as connection, connection.cursor() as cursor:
            for statement in filter(str.strip, query.split("\n")):
                cursor.execute(statement)
            return list(cursor.fetchall())

    def settings(self, **more: Any) -> dict[str, Any]:
        """What profiles.yml would say."""
        return {"host": self.server.socket, "database": self.name, "user": ROLE, "password": PASSWORD, **more}

    def sink(self, **more: Any) -> MysqlSink:
        """A sink that logs in as the role."""
        return MysqlSink(MysqlSettings.model_validate(self.settings(**more)))

    def behind(self, port: int, **more: Any) -> MysqlSink:
        """The same through a proxy, without TLS, so that it can read along."""
        return self.sink(host="127.0.0.1", port=port, ssl_mode="disabled", **more)

    def may_create(self) -> None:
        """Rights to make tables."""
        self.run(f"GRANT CREATE, ALTER, INSERT, SELECT, UPDATE, DELETE ON {self.name}.* TO crm_push")

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Nobody can write the row 1, so that a batch with it stays in the middle of its transaction."""
        with closing(self.owner()) as other, other.cursor() as cursor:
            cursor.execute("START TRANSACTION")
            cursor.execute("INSERT INTO people (id) VALUES (1)")
            yield
            cursor.execute("ROLLBACK")

    def wait_for_waiters(self, number: int = 1) -> None:
        """Until so many transactions wait for a row."""
        query = "SELECT count(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
        for _ in range(100):
            time.sleep(0.12)  # who asks again within 0.1 s gets the same answer
            if self.rows(query) == [(number,)]:
                return
        raise AssertionError(f"{number} transactions should wait")

    def make(self, task: SinkTask) -> None:
        """The task's table, made by the owner."""
        name = self.object_name(task)
        self.table(create_table(self.dialect, name, task), name.name)

    @property
    def dialect(self) -> MysqlDialect:
        """Of this database."""
        return MysqlDialect(MysqlSettings(host="/nowhere", database=self.name, user=ROLE))

    def object_name(self, task: SinkTask) -> Name:
        """Of the task's table."""
        name = self.dialect.object_name(task.object)
        assert name
        return name

    def table(self, ddl: str, name: str = "people") -> None:
        """A table of the owner, with the rights on it."""
        statement = grants()[-1]
        assert "crm.contacts" in statement
        self.run(f"{ddl}\n{statement.replace('crm.contacts', Name(self.name, name, '`').sql)}")


@cache
def grants(script: int = 0) -> list[str]:
    """The statements of a documented script: those that every sync needs, full loads need, and faster ones need."""
    block = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)[script]
    lines = [line for line in block.splitlines() if not line.startswith("--")]
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


def new_database() -> Database:
    """An empty database with the documented rights."""
    database = Database(server(), f"crm_{next(_numbers)}")
    with closing(database.server.root()) as connection:
        connection.cursor().execute(f"CREATE DATABASE {quoted(database.name, '`')}")
    for statement in grants()[1:-1]:
        database.run(statement.replace(" crm.", f" {database.name}.").replace("\n", " "))
    return database


def error_answer(number: int, sqlstate: str) -> bytes:
    """An error as the server would answer a statement."""
    body = b"\xff" + struct.pack("<H", number) + b"#" + sqlstate.encode() + b"said by a pooler"
    return struct.pack("<I", len(body))[:3] + b"\1" + body
