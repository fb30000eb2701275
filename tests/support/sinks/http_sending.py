"""Tasks and rows for the http sink, sent to a server, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from typing import Any

from hypothesis import strategies as st

from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.settings import HttpSettings
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.testing import PEOPLE, batch_of, outcomes, person

CANARY = "canary-5772156649"
NOW = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))

BATCH: dict[str, Any] = {
    "batch": {"rows": 100},
    "upsert": {"method": "POST", "path": "contacts/batch"},
    "delete": {"method": "POST", "path": "contacts/delete"},
}


def task_of(options: dict[str, Any] | None = None, **changes: Any) -> SinkTask:
    values: dict[str, Any] = {"sync_id": "a1", "sync": "people", "fence": 1, "object": "contacts", "mode": Mode.MIRROR}
    model = HttpOptions.model_validate(options or {})
    return SinkTask(**{**values, "key": ("id",), "schema": PEOPLE, "options": model, **changes})


def settings_of(url: str, **more: Any) -> HttpSettings:
    return HttpSettings.model_validate({"url": url, **more})


@contextmanager
def sending(url: str, task: SinkTask, **more: Any) -> Iterator[HttpSink]:
    """An open sink."""
    with closing(HttpSink(settings_of(url, **more))) as sink:
        sink.open(task)
        yield sink


def send(url: str, task: SinkTask, *changes: Any, **more: Any) -> Delivery:
    with sending(url, task, **more) as sink:
        return sink.deliver(batch_of(task, changes))


def one(url: str, task: SinkTask | None = None, **more: Any) -> tuple[Outcome, str]:
    delivery = send(url, task or task_of(), ("insert", person(1)), **more)
    (outcome,) = outcomes(delivery, 1)
    return outcome, delivery.results[0].reason if delivery.results else ""


def inserts(*numbers: int) -> list[Any]:
    return [("insert", person(number)) for number in numbers]
