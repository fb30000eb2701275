"""The HTTP side of `serve`: /webhook, /report, /healthz and /metrics. It answers before anything is fetched, pushed or made."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from urllib.parse import urlsplit

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from dbt_reverse_etl.base.errors import unexpected
from dbt_reverse_etl.serve.event import Event, ignored, is_signed, is_stale, parse_event
from dbt_reverse_etl.serve.metrics import counts
from dbt_reverse_etl.serve.settings import ServeSettings
from dbt_reverse_etl.serve.surroundings import Surroundings
from dbt_reverse_etl.serve.worker import Worker
from dbt_reverse_etl.sinks.hosts import is_loopback

BODY_CAP = 64 * 1024  # an event takes about 1 KiB
_BEING_MADE = "<!doctype html><meta http-equiv=refresh content=5><title>Report</title><p>The report is being made."
_OF_THE_REPORT = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass
class Receiver:
    """Verifies webhooks, and wakes the worker for those that count. The worker asks dbt Cloud itself what to push.

    Attributes:
        is_alive: whether the worker's thread lives.
    """

    settings: ServeSettings
    worker: Worker
    is_alive: Callable[[], bool]
    around: Surroundings
    _warned: set[str] = field(default_factory=set)

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/webhook", self._webhook, methods=["POST"]),
                Route("/healthz", self._not_rebound(self._healthz)),
                Route("/metrics", self._not_rebound(self._metrics)),
                Route("/report", self._not_rebound(self._report)),
            ],
            exception_handlers={HTTPException: _refused, Exception: self._failed},
        )

    def _not_rebound(
        self, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """On loopback, for requests to this machine alone: a web page elsewhere can lead its own name here, and would read the answer."""

        async def checked(request: Request) -> Response:
            host = request.headers.get("host", "")
            if host and is_loopback(self.settings.address[0]) and not _is_of_no_dns(host):
                raise HTTPException(
                    421, "the header Host has a name; ask by localhost or an IP address, or let the proxy set it to one"
                )
            return await answer(request)

        return checked

    async def _webhook(self, request: Request) -> Response:
        try:
            event = self._checked(await _body(request), request.headers.get("authorization", ""))
        except HTTPException as refusal:
            self.worker.metrics.webhooks.labels("refused").inc()
            self.around.say(f"webhook refused: {refusal.detail}", "warn")
            raise
        reason = ignored(event, self.settings.account_id, self.settings.targets)
        self.worker.metrics.webhooks.labels("ignored" if reason else "accepted").inc()
        if reason:
            self._warn_once(f"webhook ignored: {reason}", event)
            return JSONResponse({"result": f"ignored: {reason}"})
        # Such as `step`, with which the API chooses artifacts: a run that is found without its webhook has none.
        if request.query_params:
            self._warn_once("webhook accepted without what follows `?` in its URL: all steps of a run count", event)
        self.around.step("received")
        self.around.say(f"run {event.run_id} of job {event.job_id}: a webhook says that it has ended", "info")
        self.worker.hear(event.job_id, event.run_id)
        return JSONResponse({"result": "accepted"})

    def _warn_once(self, text: str, event: Event) -> None:
        """What is ignored may be a mistake of the settings."""
        if text not in self._warned:
            self._warned.add(text)
            about = f"run {event.run_id} of job {event.job_id} in account {event.account_id}"
            self.around.say(f"{text} ({about}); the next ones like it are not logged", "warn")

    async def _failed(self, _request: Request, error: Exception) -> Response:
        problem = unexpected(error, "serve")
        self.around.say(str(problem), "error")
        return JSONResponse({"error": problem.found}, 500)

    def _checked(self, body: bytes, header: str) -> Event:
        """Nothing of an unsigned body is read."""
        secret = self.settings.webhook_secret
        if secret is None or not is_signed(body, header, secret.get_secret_value()):
            raise HTTPException(401, "the signature is wrong")
        event = parse_event(body)
        if event is None:
            raise HTTPException(400, "the body is no event of dbt Cloud")
        if is_stale(event, datetime.now(timezone.utc), timedelta(seconds=self.settings.replay_window)):
            raise HTTPException(400, "the event is older than replay_window, or of the future")
        return event

    async def _healthz(self, _request: Request) -> Response:
        """That dbt Cloud does not answer is shown; to start this process again would not mend it."""
        worker = self.worker
        broken = worker.broken and f"the last turn ended with {worker.broken}: see the log"
        status = broken if self.is_alive() else "nothing works on the runs"
        body = {
            "status": status or "ok",
            "dbt_cloud": "; ".join(f"job {job}: {reason}" for job, reason in [*worker.looks.trouble.items()]) or "ok",
            "runs": counts(worker.position.value, [*self.settings.targets]),
        }
        return JSONResponse(body, 503 if status else 200)

    async def _metrics(self, _request: Request) -> Response:
        return Response(self.worker.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    async def _report(self, request: Request) -> Response:
        """The newest page; while there is none yet, one that asks again by itself."""
        targets = sorted({*self.settings.targets.values()})
        target = request.query_params.get("target", targets[0] if len(targets) == 1 else "")
        if target not in targets:
            raise HTTPException(404, f"name a target: {', '.join(f'/report?target={one}' for one in targets)}")
        if not self.worker.reports.known(target):
            raise HTTPException(404, f"there was no run for {target} yet")
        page, failed = await run_in_threadpool(self.worker.reports.ask, target)
        if page is None and failed is not None:
            raise HTTPException(503, f"the report was not made: exit code {failed}, see the log")
        return HTMLResponse(page or _BEING_MADE, 200 if page else 202, headers=_OF_THE_REPORT)


def _refused(_request: Request, refusal: Exception) -> Response:
    """As JSON, like every other answer."""
    if not isinstance(refusal, HTTPException):
        raise refusal
    return JSONResponse({"error": refusal.detail}, refusal.status_code)


def _is_of_no_dns(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


async def _body(request: Request) -> bytes:
    """The raw body, of which never more than the cap is in memory; its connection ends in time."""
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > BODY_CAP:
                raise HTTPException(413, "the body is too large")
    except ClientDisconnect:
        raise HTTPException(400, "the body did not end") from None
    return body
