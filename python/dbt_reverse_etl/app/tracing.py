"""OpenTelemetry spans: of each capture, and of each push with its plan, its waves, and each call of the sink. Ids and counts only.

Where and whether they go is the SDK's configuration (`opentelemetry-instrument dbt run`, `OTEL_*`); without it the API does nothing.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from dbt_reverse_etl import __version__
from dbt_reverse_etl.config.artifacts import ChangelogResult, Invocation
from dbt_reverse_etl.delivery.progress import Bound, Number, Progress, Watch

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


def tracers() -> tuple[Watch, ...]:
    """What makes spans of pushes; nothing where the API is not installed."""
    tracer = _tracer()
    return (Tracing(tracer),) if tracer else ()


def trace_captures(invocation: Invocation) -> None:
    """A span for each changelog that a dbt command executed, with the times that its artifacts tell. What it raises is its own affair: the
    push does not depend on it.
    """
    tracer = _tracer()
    with suppress(Exception):
        for unique_id, result in invocation.changelogs.items():
            if tracer and result.began and result.ended:
                _trace_capture(tracer, invocation.invocation_id, unique_id, result)


def _trace_capture(tracer: Tracer, invocation_id: str, unique_id: str, result: ChangelogResult) -> None:
    from opentelemetry.trace import StatusCode

    told = {"dbt.unique_id": unique_id, "dbt.invocation_id": invocation_id, "dbt.status": result.status}
    span = tracer.start_span("capture", attributes=told, start_time=_nanoseconds(result.began))
    if result.snapshot is not None:
        span.set_attribute("reverse_etl.snapshot", result.snapshot)
    span.set_status(StatusCode.OK if result.status == "success" else StatusCode.ERROR)
    span.end(_nanoseconds(result.ended))


def _tracer() -> Tracer | None:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("dbt_reverse_etl", __version__)


def _nanoseconds(text: str) -> int:
    """Since 1970."""
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1) * 1000


class Tracing:
    """`delivery.progress.Watch` that makes spans; thread-safe."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._runs: dict[str, _Run] = {}

    def begin(self, bound: Bound) -> Progress:
        """As `Watch.begin`."""
        run = self._runs[bound.sync] = _Run(self._tracer, bound)
        return run.tell

    def end(self, sync: str, status: str, *, well: bool) -> None:
        """As `Watch.end`."""
        run = self._runs.pop(sync, None)
        if run is not None:
            run.end(status, well=well)


class _Run:
    """The spans of one run. A request begins and ends in one thread; everything else is told by the run's own."""

    def __init__(self, tracer: Tracer, bound: Bound) -> None:
        self._tracer = tracer
        self._span = tracer.start_span(
            "push",
            attributes={
                "reverse_etl.sync": bound.sync,
                "reverse_etl.run_id": bound.run_id,
                "dbt.invocation_id": bound.invocation_id,
            },
        )
        self._part: Span | None = self._below(self._span, "plan")
        self._waves = self._counted = 0
        self._request = threading.local()

    def tell(self, number: Number, value: float) -> None:
        """As `Progress`."""
        if number is Number.FENCE:
            self._span.set_attribute("reverse_etl.fence", int(value))
        elif number is Number.PLANNED:
            self._span.set_attribute("reverse_etl.rows.planned", int(value))
            self._end_part()
        elif number is Number.WAVE:
            self._end_part()
            self._waves += 1
            self._part = self._below(self._span, "wave")
            self._part.set_attributes({"reverse_etl.wave": self._waves, "reverse_etl.rows.planned": int(value)})
        elif number is Number.COUNTED:
            self._counted = int(value)
            self._end_part()
        elif number is Number.SENT:
            self._request.span = self._below(self._part or self._span, "sink.deliver")
            self._request.span.set_attribute("reverse_etl.rows.sent", int(value))
        elif number is Number.ANSWERED:
            self._request.span.set_attribute("reverse_etl.rows.delivered", int(value))
            self._request.span.end()
        elif number is Number.REPEATED:
            self._span.add_event("rows sent again", {"reverse_etl.rows": int(value)})
        elif number is Number.PAUSED:
            self._span.add_event("pause", {"reverse_etl.seconds": value})

    def end(self, status: str, *, well: bool) -> None:
        """The run is over."""
        from opentelemetry.trace import StatusCode

        self._end_part()
        self._span.set_attributes({"reverse_etl.status": status, "reverse_etl.rows.counted": self._counted})
        self._span.set_status(StatusCode.OK if well else StatusCode.ERROR)
        self._span.end()

    def _below(self, parent: Span, name: str) -> Span:
        from opentelemetry.trace import set_span_in_context

        return self._tracer.start_span(name, context=set_span_in_context(parent))

    def _end_part(self) -> None:
        if self._part is not None:
            self._part.end()
            self._part = None
