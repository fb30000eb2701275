"""Calls of several threads as one: who waits while one is under way shares the next one, as in the group commit of a database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Waiting(Generic[T]):
    item: T
    is_done: bool = False
    error: BaseException | None = None


class Coalesced(Generic[T]):
    """Hands on the items of several threads, one call at a time.

    Args:
        work: takes all of the items, or none.
    """

    def __init__(self, work: Callable[[Sequence[T]], None]) -> None:
        self._work = work
        self._list, self._turn = threading.Lock(), threading.Lock()
        self._waiting: list[_Waiting[T]] = []

    def __call__(self, item: T) -> None:
        """Return once a call that began after this one took the item. Raises what that call raised."""
        mine = _Waiting(item)
        with self._list:
            self._waiting.append(mine)
        with self._turn:
            if not mine.is_done:
                self._work_off()
        if mine.error is not None:
            raise mine.error

    def _work_off(self) -> None:
        with self._list:
            group, self._waiting = self._waiting, []
        try:
            self._work([one.item for one in group])
        except BaseException as error:
            for one in group:
                one.error = error
        finally:
            for one in group:
                one.is_done = True
