"""Group commit, as databases do it: whoever waits while a commit is under way shares the next one."""

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


class GroupCommit(Generic[T]):
    """Commits items of several threads, one commit at a time.

    Args:
        commit: all of the items, or none.
    """

    def __init__(self, commit: Callable[[Sequence[T]], None]) -> None:
        self._commit = commit
        self._list, self._commits = threading.Lock(), threading.Lock()
        self._waiting: list[_Waiting[T]] = []

    def __call__(self, item: T) -> None:
        """Return once it is committed. Raises what the commit raised that it was in."""
        mine = _Waiting(item)
        with self._list:
            self._waiting.append(mine)
        with self._commits:
            if not mine.is_done:
                self._commit_all()
        if mine.error is not None:
            raise mine.error

    def _commit_all(self) -> None:
        with self._list:
            group, self._waiting = self._waiting, []
        try:
            self._commit([one.item for one in group])
        except BaseException as error:
            for one in group:
                one.error = error
        finally:
            for one in group:
                one.is_done = True
