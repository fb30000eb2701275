"""What instrumentations of OpenTelemetry see of a sink's calls and of alerts: nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from opentelemetry import context
from pydantic import SecretStr

from dbt_reverse_etl.alerts.channels import Webhook
from dbt_reverse_etl.base.outcome import Delivery
from dbt_reverse_etl.sinks.base import Batch, Mode, Settings, Sink, SinkTask
from dbt_reverse_etl.sinks.http.answer import Answer
from dbt_reverse_etl.sinks.http.transport import Client

NOBODY: Any = None


def traced() -> bool:
    """Whether an instrumentation of HTTP or of a database, of any version, would make a span here."""
    keys = "suppress_instrumentation", context._SUPPRESS_INSTRUMENTATION_KEY, context._SUPPRESS_HTTP_INSTRUMENTATION_KEY
    found = {bool(context.get_value(key)) for key in keys}
    assert len(found) == 1, "some instrumentations are off and some are not"
    return not found.pop()


class _Watched(Sink):
    """Remembers which of its calls were traced."""

    type, modes, promise = "watched", frozenset({Mode.UPSERT}), "none"

    def __init__(self, settings: Settings) -> None:
        self.seen: dict[str, bool] = {}

    @property
    def identity(self) -> str:
        return "here"

    def check(self) -> None:
        self.seen["check"] = traced()

    def open(self, task: SinkTask) -> None:
        self.seen["open"] = traced()

    def deliver(self, batch: Batch) -> Delivery:
        self.seen["deliver"] = traced()
        raise OSError

    def read(self, task: SinkTask) -> Iterator[pa.Table]:
        try:
            self.seen["read"] = traced()
            yield pa.table({})
            self.seen["read further"] = traced()
            yield pa.table({})
        finally:
            self.seen["read ends"] = traced()

    def close(self) -> None:
        self.seen["close"] = traced()


def test_no_call_of_a_sink_is_traced_and_its_caller_is() -> None:
    sink = _Watched(Settings())
    sink.check()
    sink.open(NOBODY)
    with pytest.raises(OSError):
        sink.deliver(NOBODY)
    for _ in sink.read(NOBODY):
        assert traced()
    sink.close()
    assert sink.seen == dict.fromkeys(("check", "open", "deliver", "read", "read further", "read ends", "close"), False)
    assert traced()


def test_a_reading_that_is_given_up_ends_untraced() -> None:
    sink = _Watched(Settings())
    rows = cast("Any", sink.read(NOBODY))
    next(rows)
    rows.close()
    assert sink.seen == {"read": False, "read ends": False}


def test_no_request_of_an_alert_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def send(*_: object, **__: object) -> Answer:
        seen.append(traced())
        return Answer(200, "", None, "", False, {})

    monkeypatch.setattr(Client, "send", send)
    Webhook(type="webhook", url=SecretStr("https://chat.example.com/T0/secret")).send("", "", {})
    assert seen == [False]


def test_kafka_is_spoken_to_without_the_classes_that_opentelemetry_puts_in_the_place_of_its_own() -> None:
    program = (
        "import confluent_kafka as package; package.Producer = package.Consumer = None\n"
        "from dbt_reverse_etl.sinks.kafka import reading, sink\n"
        "assert sink.Producer and reading.Consumer"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_opentelemetry_nothing_changes_and_what_fails_does_not_seem_to_follow_from_its_absence() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from dbt_reverse_etl.base.untraced import untraced
with untraced():
    pass
try:
    with untraced():
        raise OSError("the destination")
except OSError as error:
    print(error, error.__context__)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "the destination None\n"
