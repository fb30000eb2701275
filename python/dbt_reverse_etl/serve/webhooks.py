"""The HTTP side of `serve`: /webhook, /report, /healthz and /metrics. Answers before anything is fetched, pushed or made."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from dbt_reverse_etl.delivery.fault_points import Step, no_step
from dbt_reverse_etl.serve.event import Event, ignored, is_stale, parse_event
from dbt_reverse_etl.serve.metrics import Metrics
from dbt_reverse_etl.serve.queue import Queue
from dbt_reverse_etl.serve.reports import Reports
from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.signature import is_signed

BODY_CAP = 64 * 1024  # an event takes about 1 KiB
_BODY_SECONDS = 3.0
_BEING_MADE = "<!doctype html><meta http-equiv=refresh content=5><title>Report</title><p>The report is being made."
_OF_THE_REPORT = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass
class Receiver:
    """Decides on webhooks, and keeps those that count.

    Attributes:
        secret: of the webhook.
        wake: called when a run was queued.
        is_alive: whether queued runs are worked on.
        step: called between any two steps, so that a test may kill the process there.
    """

    settings: ServeSettings
    secret: str
    queue: Queue
    metrics: Metrics
    reports: Reports
    say: Callable[[str, str], None]
    wake: Callable[[], None]
    is_alive: Callable[[], bool]
    step: Step = no_step

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/webhook", self._webhook, methods=["POST"]),
                Route("/healthz", self._healthz),
                Route("/metrics", self._metrics),
                Route("/report", self._report),
            ]
        )

    async def _webhook(self, request: Request) -> Response:
        try:
            body = await _body(request)
            event = self._checked(body, request.headers.get("authorization", ""))
            result = await run_in_threadpool(self._kept, event)
        except _Refused as refusal:
            self.metrics.webhook("refused")
            self.say(f"webhook refused: {refusal.reason}", "warn")
            return JSONResponse({"error": refusal.reason}, refusal.status)
        except sqlite3.Error as error:
            self.metrics.webhook("failed")
            self.say(f"webhook not kept: the queue raises {type(error).__name__}", "error")
            return JSONResponse({"error": "not kept, send it again"}, 503)
        self.metrics.webhook(result.partition(":")[0])
        return JSONResponse({"result": result})

    def _checked(self, body: bytes, header: str) -> Event:
        """Nothing of an unsigned body is read."""
        if not is_signed(body, header, self.secret):
            raise _Refused(401, "the signature is wrong")
        event = parse_event(body)
        if event is None:
            raise _Refused(400, "the body is no event of dbt Cloud")
        if is_stale(event, datetime.now(timezone.utc), timedelta(seconds=self.settings.replay_window)):
            raise _Refused(400, "the event is older than replay_window, or of the future")
        return event

    def _kept(self, event: Event) -> str:
        reason = ignored(event, self.settings.account_id, self.settings.targets)
        if reason:
            return f"ignored: {reason}"
        self.step("received")
        if not self.queue.add(event.event_id, event.run_id, event.job_id, time.time()):
            return "known"
        self.step("queued")
        self.say(f"run {event.run_id} of job {event.job_id}: queued", "info")
        self.wake()
        return "queued"

    async def _healthz(self, _request: Request) -> Response:
        try:
            counts = await run_in_threadpool(self.queue.counts)
        except sqlite3.Error as error:
            return JSONResponse({"status": f"the queue raises {type(error).__name__}"}, 503)
        alive = self.is_alive()
        body = {"status": "ok" if alive else "nothing works on the queue", "runs": counts}
        return JSONResponse(body, 200 if alive else 503)

    async def _metrics(self, _request: Request) -> Response:
        page = await run_in_threadpool(self.metrics.page)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    async def _report(self, request: Request) -> Response:
        """The newest page; while there is none yet, one that asks again by itself."""
        targets = sorted({*self.settings.targets.values()})
        target = request.query_params.get("target", targets[0] if len(targets) == 1 else "")
        if target not in targets:
            return JSONResponse(
                {"error": f"name a target: {', '.join(f'/report?target={one}' for one in targets)}"}, 404
            )
        if not self.reports.known(target):
            return JSONResponse({"error": f"there was no run for {target} yet"}, 404)
        page, failed = await run_in_threadpool(self.reports.ask, target)
        if page is not None:
            return HTMLResponse(page, headers=_OF_THE_REPORT)
        if failed is not None:
            return JSONResponse({"error": f"the report was not made: exit code {failed}, see the log"}, 503)
        return HTMLResponse(_BEING_MADE, 202, headers=_OF_THE_REPORT)


async def _body(request: Request) -> bytes:
    """The raw body, which is never larger than the cap in memory, and never slower than its time."""
    if int(request.headers.get("content-length", "0") or 0) > BODY_CAP:
        raise _Refused(413, "the body is too large")
    try:
        return await asyncio.wait_for(_read(request), _BODY_SECONDS)
    except (asyncio.TimeoutError, ClientDisconnect):
        raise _Refused(408, "the body did not come in time") from None


async def _read(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_CAP:
            raise _Refused(413, "the body is too large")
    return body
