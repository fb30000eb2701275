"""Several pushes at once, because most of their time is waiting, and one way to end them early."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from dbt_reverse_etl.base.interrupts import interrupts

GRACE = 5.0  # seconds for requests that are under way when the process is to end; its last words and its end take four more, and schedulers wait ten
_GLANCE = 0.2  # seconds between two looks at a signal
T = TypeVar("T")


class Overlap(Generic[T]):
    """Runs tasks in threads; SIGINT and SIGTERM set `interrupt`, and cut the wait for them short.

    Args:
        limit: tasks at once.
        interrupt: the tasks look at it and end early.
        cancel: ends what a task is waiting for elsewhere.
        glance: called several times a second by the thread that waits.
    """

    def __init__(
        self,
        limit: int,
        interrupt: threading.Event,
        cancel: Callable[[], None],
        glance: Callable[[], None] = lambda: None,
    ) -> None:
        self._limit, self._interrupt, self._cancel, self._glance = limit, interrupt, cancel, glance
        self._answers: queue.SimpleQueue[tuple[int, T | BaseException]] = queue.SimpleQueue()

    def run(self, tasks: Sequence[Callable[[], T]], ended: Callable[[T], None]) -> dict[int, bool]:
        """Call `ended` in this thread with each result as it comes. Raises BaseException: of a task.

        Returns:
            Number of each task without a result, and whether it had begun; empty unless the process was interrupted.
        """
        todo = queue.SimpleQueue[int]()
        for number in range(len(tasks)):
            todo.put(number)
        self._begun: set[int] = set()
        self._left = set(range(len(tasks)))
        # Daemons: a request that hangs must not keep an interrupted process alive.
        workers = [
            threading.Thread(target=self._work, args=(tasks, todo), daemon=True, name=f"sync-{n}")
            for n in range(min(self._limit, len(tasks)))
        ]
        with interrupts() as signals:
            try:
                for worker in workers:
                    worker.start()
                while self._left:
                    signals.look()
                    self._hear(ended)
            except KeyboardInterrupt:
                self._end(workers, ended)
            except BaseException:
                self._stop(workers)
                raise
        return {number: number in self._begun for number in sorted(self._left)}

    def _work(self, tasks: Sequence[Callable[[], T]], todo: queue.SimpleQueue[int]) -> None:
        while not self._interrupt.is_set():
            try:
                number = todo.get_nowait()
            except queue.Empty:
                return
            self._begun.add(number)
            try:
                self._answers.put((number, tasks[number]()))
            except BaseException as error:
                self._answers.put((number, error))

    def _hear(self, ended: Callable[[T], None]) -> None:
        self._glance()
        try:
            number, answer = self._answers.get(timeout=_GLANCE)
        except queue.Empty:
            return
        self._left.discard(number)
        if isinstance(answer, BaseException):
            raise answer
        ended(answer)

    def _stop(self, workers: Sequence[threading.Thread]) -> None:
        """Let what is under way end in order, for the process is about to end."""
        until = self._ended_early()
        for worker in filter(threading.Thread.is_alive, workers):
            worker.join(max(0.0, until - time.monotonic()))

    def _end(self, workers: Sequence[threading.Thread], ended: Callable[[T], None]) -> None:
        until = self._ended_early()
        while time.monotonic() < until and (any(w.is_alive() for w in workers) or not self._answers.empty()):
            self._hear(ended)

    def _ended_early(self) -> float:
        """Until when the tasks have grace: they are to end."""
        self._interrupt.set()
        with suppress(Exception):  # a Spark that is gone has nothing to cancel
            self._cancel()
        return time.monotonic() + GRACE
