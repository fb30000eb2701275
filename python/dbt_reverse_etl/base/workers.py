"""Threads that do not keep the process alive: an interpreter waits for those of a pool, and so for a request that hangs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def at_once(limit: int, work: Callable[[T], None], items: Sequence[T], name: str) -> None:
    """Call `work` with each item, so many at a time, in their order, and wait for all of them.

    Raises:
        BaseException: of the first item in their order that raised one; all others were tried.
    """
    todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    errors: dict[int, BaseException] = {}

    def go_on() -> None:
        for number in iter(todo.get, None):
            try:
                work(items[number])
            except BaseException as error:
                errors[number] = error

    threads = [threading.Thread(target=go_on, daemon=True, name=f"{name}-{n}") for n in range(min(limit, len(items)))]
    for number in (*range(len(items)), *[None] * len(threads)):
        todo.put(number)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
