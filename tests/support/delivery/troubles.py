"""Troubles that a destination makes, by a seed: answers of an API; lost connections, locks and constraints of a database."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import psycopg
import pymysql

from tests.support.delivery.scene import DatabasePlace, MysqlPlace, PostgresPlace
from tests.support.servers.http import Reply
from tests.support.servers.proxy import Proxy


class Trouble(Protocol):
    """What a destination makes until it is told to end it.

    Attributes:
        refuses: rows for their own fault: after a crash the other rows of their wave are in doubt, too.
    """

    refuses: bool

    @contextmanager
    def during_a_push(self) -> Iterator[None]: ...

    def end(self) -> None: ...


class ApiTrouble:
    """Answers of an API, by key and attempt: a history that is played again meets the same ones."""

    refuses = True

    def __init__(self, seed: int) -> None:
        self._is_over = False
        self._seed, self._asked = seed, Counter[str]()

    def __call__(self, key: str) -> Reply:
        self._asked[key] += 1
        share = 1 if self._is_over else random.Random(f"{self._seed} {key} {self._asked[key]}").random()
        refused, not_now, lost = Reply(422), Reply(503), Reply(204, reset="after")
        return refused if share < 0.1 else not_now if share < 0.2 else lost if share < 0.3 else Reply(204)

    @contextmanager
    def during_a_push(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        self._is_over = True


class DatabaseTrouble:
    """A table that may refuse some values, and sessions that lock rows for a moment."""

    def __init__(self, place: DatabasePlace, seed: int) -> None:
        self._place, self._is_over = place, False
        self._random = random.Random(f"trouble {seed}")
        self.refuses = self._random.random() < 0.5
        if self.refuses:
            self._run(place.refuse)

    @contextmanager
    def during_a_push(self) -> Iterator[None]:
        if self._is_over or self._random.random() < 0.5:
            yield
            return
        locks = self._random.sample(self._place.locks, k=self._random.randint(1, 3))
        pauses = [self._random.uniform(0, 0.7) for _ in locks]
        rival = threading.Thread(target=self._lock, args=(locks, pauses))
        rival.start()
        try:
            yield
        finally:
            rival.join()

    def end(self) -> None:
        self._is_over = True
        if self.refuses:
            self._run(self._place.allow)

    def _run(self, statements: Sequence[str]) -> None:
        with self._place.session() as run:
            for statement in statements:
                run(statement)

    def _lock(self, statements: Sequence[str], pauses: Sequence[float]) -> None:
        # The rival may come too early, wait too long, or be the one that ends a deadlock.
        with suppress(psycopg.Error, pymysql.Error, sqlite3.Error), self._place.session() as run:
            run("begin")
            for statement, pause in zip(statements, pauses, strict=True):
                run(statement)
                time.sleep(pause)
            run("rollback")


class ServerTrouble(DatabaseTrouble):
    """The same, and connections that are lost anywhere, above all around a COMMIT."""

    def __init__(self, place: PostgresPlace | MysqlPlace, proxy: Proxy, seed: int) -> None:
        super().__init__(place, seed)
        self._proxy, self._commit = proxy, place.commit
        place.behind(proxy.port)

    @contextmanager
    def during_a_push(self) -> Iterator[None]:
        self._proxy.calm()
        if not self._is_over and self._random.random() < 0.6:
            word, most = self._random.choice([(self._commit, 5), ("", 60)])
            after, ends = self._random.random() < 0.5, self._random.random() < 0.3
            self._proxy.cut_at(word, after=after, which=self._random.randint(1, most), ends=ends)
        with super().during_a_push():
            yield

    def end(self) -> None:
        super().end()
        self._proxy.calm()
