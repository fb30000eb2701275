"""Tries the destinations of a push while Spark is still at work, so that a connection error shows in seconds and not after minutes."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable

from dbt_reverse_etl.base.redaction import message_of
from dbt_reverse_etl.config.destinations import Destination
from dbt_reverse_etl.sinks.base import SparkSink, close_quietly


def try_early(destinations: Iterable[Destination], warn: Callable[[str], None]) -> list[threading.Thread]:
    """Begin to reach each destination, read-only, and warn of each that does not answer. The push decides, for it comes later.

    Returns the threads, which keep no process alive.
    """
    threads = []
    for one in {one.name: one for one in destinations if not issubclass(one.sink, SparkSink)}.values():
        work = contextvars.copy_context().run
        threads.append(threading.Thread(target=work, args=(_try, one, warn), daemon=True, name=f"reach {one.name}"))
        threads[-1].start()
    return threads


def _try(destination: Destination, warn: Callable[[str], None]) -> None:
    try:
        sink = destination.sink(destination.settings)
        try:
            sink.check()
        finally:
            close_quietly(sink)
    except Exception as error:  # whatever it is: it is told, and the push finds out by itself
        why = message_of(error, destination.name)
        warn(f"dbt-reverse-etl: destination {destination.name} cannot be reached now, the push will try again. {why}")
