"""OpenTelemetry spans: one of each invocation, below it one of each capture and of each push, with its plan, its waves, and each call of the sink.

They hold ids and counts, and of an error why: a reason that has no row value and no secret. Where and whether they go is the SDK's configuration
(`opentelemetry-instrument dbt run`, `OTEL_*`); without it the API does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from dbt_reverse_etl.base.version import VERSION
from dbt_reverse_etl.config.artifacts import ChangelogResult
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.delivery.progress import Bound, Number, Progress, Watch

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_FOLLOWED = "followed"  # status of a run after which the same push began another one


@contextmanager
def traced(invocation_id: str, captures: Mapping[str, ChangelogResult] | None = None) -> Iterator[tuple[Watch, ...]]:
    """What makes the spans of one invocation, its `captures` included; nothing where the API is not installed. What goes wrong here keeps no push back."""
    tracer = _tracer()
    if tracer is None:
        yield ()
        return
    tracing = Tracing(tracer, invocation_id)
    with suppress(Exception):
        tracing.captured(captures or {})
    try:
        yield (tracing,)
    finally:
        with suppress(Exception):
            tracing.close()


def _tracer() -> Tracer | None:
    try:
        from opentelemetry import trace

        return trace.get_tracer("dbt_reverse_etl", VERSION)
    except Exception:  # not installed, or `OTEL_*` names a provider that cannot be loaded: the API logs it
        return None


def _nanoseconds(text: str) -> int:
    """Since 1970."""
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1) * 1000


def _below(tracer: Tracer, parent: Span, name: str, about: dict[str, Any] | None = None, at: int | None = None) -> Span:
    from opentelemetry.trace import set_span_in_context

    return tracer.start_span(name, context=set_span_in_context(parent), attributes=about, start_time=at)


def _end(span: Span, wrong: str, at: int | None = None) -> None:
    """`wrong`: why it is an error; empty: it is none."""
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR if wrong else StatusCode.OK, wrong or None)
    span.end(at)


class Tracing:
    """`delivery.progress.Watch` that makes spans; thread-safe. The span of the invocation begins with the first one below it."""

    def __init__(self, tracer: Tracer, invocation_id: str) -> None:
        self._tracer, self._invocation_id = tracer, invocation_id
        self._runs: dict[str, _Run] = {}
        self._whole: Span | None = None
        self._wrong: dict[str, str] = {}  # how it ended, by sync or changelog
        self._lock = threading.Lock()

    def captured(self, results: Mapping[str, ChangelogResult]) -> None:
        """A span of each changelog that has times."""
        known = {unique_id: result for unique_id, result in results.items() if result.began and result.ended}
        begins = {unique_id: _nanoseconds(result.began) for unique_id, result in known.items()}
        for unique_id, result in known.items():
            about: dict[str, Any] = {"dbt.unique_id": unique_id, "dbt.status": result.status}
            about["dbt.invocation_id"] = self._invocation_id
            about |= {} if result.snapshot is None else {"reverse_etl.snapshot": result.snapshot}
            span = _below(self._tracer, self._root(min(begins.values())), "capture", about, begins[unique_id])
            if result.status != "success":
                self._wrong[unique_id.split(".", 2)[2]] = result.status  # people.v2
            wrong = "" if result.status == "success" else f"dbt ended it with {result.status}: its own log says why"
            _end(span, wrong, _nanoseconds(result.ended))

    def begin(self, bound: Bound) -> Progress:
        """As `Watch.begin`. A push may make two runs: a full load that was given up and then the changes, or a replay before the newest ones."""
        earlier = self._runs.pop(bound.sync, None)
        if earlier is not None:
            earlier.end(_FOLLOWED, "")
        run = self._runs[bound.sync] = _Run(self._tracer, self._root(), bound)
        return run.tell

    def end(self, sync: str, status: str, *, wrong: str = "") -> None:
        """As `Watch.end`."""
        if wrong:
            self._wrong[sync] = status
        run = self._runs.pop(sync, None)
        if run is not None:
            run.end(status, wrong)

    def close(self) -> None:
        """The invocation is over, and whatever is still open was interrupted."""
        for sync in list(self._runs):
            self.end(sync, Status.INTERRUPTED, wrong="it did not end in time: the next push settles what it sent")
        if self._whole is not None:
            _end(self._whole, ", ".join(f"{name}: {status}" for name, status in self._wrong.items()))

    def _root(self, begins: int | None = None) -> Span:
        with self._lock:
            if self._whole is None:
                told = {"dbt.invocation_id": self._invocation_id}
                self._whole = self._tracer.start_span("invocation", attributes=told, start_time=begins)
            return self._whole


class _Run:
    """The spans of one run. A request begins and ends in one thread; everything else is told by the run's own."""

    def __init__(self, tracer: Tracer, whole: Span, bound: Bound) -> None:
        self._tracer = tracer
        ids = {"reverse_etl.sync": bound.sync, "reverse_etl.run_id": bound.run_id}
        self._span = _below(tracer, whole, "push", {**ids, "dbt.invocation_id": bound.invocation_id})
        self._part: Span | None = _below(tracer, self._span, "plan")
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
            about: dict[str, Any] = {"reverse_etl.wave": self._waves, "reverse_etl.rows.planned": int(value)}
            self._part = _below(self._tracer, self._span, "wave", about)
        elif number is Number.COUNTED:
            self._counted = int(value)
            self._end_part()
        elif number is Number.SENT:
            self._request.rows, self._request.missed = int(value), 0
            about = {"reverse_etl.rows.sent": int(value)}
            self._request.span = _below(self._tracer, self._part or self._span, "sink.deliver", about)
        elif number is Number.NO_MATCH:
            self._request.missed = int(value)
        elif number is Number.ANSWERED:
            self._end_request(int(value))
        elif number is Number.REPEATED:
            self._span.add_event("rows sent again", {"reverse_etl.rows": int(value)})
        elif number is Number.PAUSED:
            self._span.add_event("pause", {"reverse_etl.seconds": value})

    def end(self, status: str, wrong: str) -> None:
        """The run is over."""
        self._end_part()
        self._span.set_attributes({"reverse_etl.status": status, "reverse_etl.rows.counted": self._counted})
        _end(self._span, wrong)

    def _end_request(self, delivered: int) -> None:
        sent, missed, span = self._request.rows, self._request.missed, self._request.span
        span.set_attributes({"reverse_etl.rows.delivered": delivered, "reverse_etl.rows.no_match": missed})
        failed = sent - delivered - missed
        _end(span, f"{failed} of {sent} rows were not delivered" if failed else "")

    def _end_part(self) -> None:
        if self._part is not None:
            self._part.end()
            self._part = None
