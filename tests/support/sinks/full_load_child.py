"""A process that loads and swaps, to be killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from dbt_reverse_etl.testing import deliver, next_run, opened, person
from tests.support.sinks.people import a_task, people


class Child:
    """The process, and what it says."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process, self._pipe = process, pipe

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def heard(self) -> str | None:
        """Its next word; None if it is dead."""
        try:
            return str(self._pipe.recv())
        except EOFError:
            return None

    def go_on(self) -> None:
        """It waits for this before the swap, and before its end."""
        self._pipe.send("go on")


@contextmanager
def loading_child(type_name: str, settings: dict[str, Any]) -> Iterator[Child]:
    """Starts one; it is killed at the end."""
    context = get_context("forkserver")
    context.set_forkserver_preload(
        [__name__, "dbt_reverse_etl.sinks.sql.mysql.sink", "dbt_reverse_etl.sinks.sql.postgres.sink"]
    )
    ours, its = context.Pipe()
    process = context.Process(target=_load, args=(its, type_name, settings))
    process.start()
    its.close()
    try:
        yield Child(process, ours)
    finally:
        process.kill()
        process.join()


def _load(pipe: Connection, type_name: str, settings: dict[str, Any]) -> None:
    (entry,) = entry_points(group="dbt_reverse_etl.sinks", name=type_name)
    of_type = entry.load()
    task = replace(next_run(a_task()), full_load=True)
    with opened(of_type(of_type.settings_model.model_validate(settings)), task) as sink:
        deliver(sink, task, people(person(2, "new"), person(3, "new")), "whole", last=False)
        pipe.send("loaded")
        pipe.recv()
        sink.swap("whole")
        pipe.send("swapped")
        pipe.recv()
