"""One preset of the http sink, sent to a local server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.settings import HttpSettings
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.testing import batch_of, outcomes
from tests.support.servers.http import HttpServer, Received, Reply

TOKEN = "canary-token"
Answers = Callable[[Received], Reply] | Reply


def task_of(object_: str, key: str, mode: Mode = Mode.MIRROR, options: dict[str, Any] | None = None) -> SinkTask:
    schema = pa.schema([(key, pa.string()), ("name", pa.string()), ("score", pa.int64())])
    model = HttpOptions.model_validate(options or {})
    return SinkTask("a1", "people", 1, object_, mode, (key,), schema, options=model)


class Preset:
    """One preset, sent to a local server."""

    def __init__(self, name: str, server: HttpServer, task: SinkTask, auth: dict[str, Any]) -> None:
        self.server = server
        self.task = task
        settings = {"preset": name, "url": server.url, "auth": auth}
        self.sink = HttpSink(HttpSettings.model_validate(settings))

    def row(self, number: int) -> dict[str, Any]:
        return {self.task.key[0]: f"k{number}", "name": f"n{number}" if number else None, "score": number}

    def send(self, answer: Answers, *numbers: int, operation: str = "insert") -> tuple[list[Outcome], Delivery]:
        self.server.default = answer
        rows = [self.row(number) for number in numbers]
        if operation == "delete":
            rows = [{self.task.key[0]: row[self.task.key[0]]} for row in rows]
        self.sink.validate(self.task)
        self.sink.open(self.task)
        try:
            delivery = self.sink.deliver(batch_of(self.task, [(operation, row) for row in rows]))
        finally:
            self.sink.close()
        assert not any(f"n{number}" in repr(delivery) for number in numbers)
        return outcomes(delivery, len(numbers)), delivery


BEARER = {"type": "bearer", "token": TOKEN}
