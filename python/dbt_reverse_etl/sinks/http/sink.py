"""The http sink: one request a row, or one a batch and operation, to an endpoint that the user describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import DestinationError, Problem, raise_if_any
from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import Batch, Limits, Mode, Rights, Sink, SinkTask, options_of
from dbt_reverse_etl.sinks.http.answer import Answer, Failure, is_web_page, judge, meaning, shows_page
from dbt_reverse_etl.sinks.http.auth import is_passing
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.plan import plan_of
from dbt_reverse_etl.sinks.http.preset import load_preset, merged
from dbt_reverse_etl.sinks.http.request import Plan, Request
from dbt_reverse_etl.sinks.http.settings import HttpSettings, PythonAuth
from dbt_reverse_etl.sinks.http.template import template_text

if TYPE_CHECKING:
    from dbt_reverse_etl.sinks.http.transport import Transport

_STOPS = "not sent: the sync stops"
_AFTER_A_FAILURE = "not sent, after the failure of another request of its batch"
_NO_CLIENT = Problem(
    "destination of type http", "no package requests", "it installed", "pip install 'dbt-reverse-etl[http]'"
)


class HttpSink(Sink):
    """Sends each change as an HTTP request with a stable idempotency key."""

    type = "http"
    settings_model = HttpSettings
    options_model = HttpOptions
    distributable = True
    modes = frozenset({Mode.UPSERT, Mode.MIRROR, Mode.INSERT_ONLY, Mode.UPDATE_ONLY})
    validates_early = True
    promise = "at least once; effectively once where a repeat with PUT or with the same idempotency key changes nothing"

    _plan: Plan
    _transport: Transport

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._closing = ExitStack()
        self._ids_fit = False

    @property
    def identity(self) -> str:
        place = self._settings.identity or self._settings.origin + self._settings.base.path.rstrip("/")
        return f"{place} of {self._settings.account}" if self._settings.account else place

    @property
    def address(self) -> str:
        """Without the path: that of a webhook is a secret."""
        return self._settings.origin

    def limits(self, task: SinkTask) -> Limits:
        """The largest request is the size of a batch, which is cut for the others."""
        try:
            options = self._options(task)
            rows = max([options.batch.rows, *(one.rows or 1 for one in options.operations)])
        except ValidationError:  # `validate` says so
            rows = 1
        settings = self._settings
        return Limits(rows, concurrency=settings.concurrency, requests_per_second=settings.requests_per_second)

    def texts(self, task: SinkTask) -> Mapping[str, str]:
        names = {one.body_template for one in self._options(task).operations}
        return {name: template_text(name, task.project_dir) for name in names if name is not None}

    def validate(self, task: SinkTask) -> None:
        """Refuse paths, headers, bodies and fields that could never work, and modes without a request."""
        _plan, problems = self._planned(task, tries=True)
        problems += self._auth_problems()
        raise_if_any(problems)

    def check(self) -> None:
        """Connect, with TLS where the URL says so; with `check.path`, send a GET that must be answered with 2xx."""
        transport = self._connected()
        try:
            if failure := transport.connect():
                expected, next_step = "a connection", "correct url, or start its server"
                if self._settings.base.scheme == "https":
                    expected, next_step = "a connection that can be trusted", "correct url, or name its CA in verify"
                raise self.problem(failure.reason, expected, next_step)
            if self._settings.check is not None:
                self._get(transport, self._settings.check.path)
        finally:
            transport.close()

    def rights(self, task: SinkTask) -> Rights:  # noqa: ARG002  (an API tells nothing of an object)
        """`check.path` has tried the credentials."""
        unproved = "whether the API takes rows: only a request that writes tells it"
        if self._settings.check is not None or self._settings.auth is None:
            return Rights(untried=(unproved,))
        return Rights(untried=("the credentials: name a GET that changes nothing as check: {path: ...}", unproved))

    def open(self, task: SinkTask) -> None:
        plan, problems = self._planned(task)
        raise_if_any(problems, DestinationError)
        self._plan, self._ids_fit = plan, False
        self._transport = self._connected()
        self._closing.callback(self._transport.close)

    def prepare(self, rows: pa.Table) -> Sequence[Any]:
        """Body, path and headers of each row: for many at once, Arrow takes a fifth of the time by the row."""
        return self._plan.prepare(rows)

    def deliver(self, batch: Batch) -> Delivery:
        """One request for each operation of the batch, or for each row; what follows a fatal or retryable one waits."""
        plan, transport = self._plan, self._transport
        requests, refused = plan.requests(plan.prepare(batch.rows) if batch.prepared is None else batch.prepared)
        results = [RowResult(row, Outcome.REJECTED, reason) for row, reason in refused.items()]
        maybe = list[int]()
        delivery = Delivery()
        for position, request in enumerate(requests):
            if position and not batch.go_on():
                results += _not_sent(requests[position:], _STOPS)
                break
            delivery, answered = _send(request, plan, transport, batch, ids_fit=self._ids_fit)
            self._ids_fit |= answered and _names_rows(request, delivery)
            if delivery.refused_whole and len(request.rows) > 1:
                maybe += [request.rows[index] for index in delivery.maybe_applied]
                if position == 0:
                    whole = Delivery.of_all(batch.rows.num_rows, Outcome.REJECTED, delivery.results[0].reason)
                    return replace(whole, maybe_applied=(*maybe,))
                delivery = _again(delivery)
            results += [RowResult(request.rows[r.index], r.outcome, r.reason) for r in delivery.results]
            if not answered or _ends_batch(delivery):
                results += _not_sent(requests[position + 1 :], _AFTER_A_FAILURE)
                break
        ordered = tuple(sorted(results, key=lambda result: result.index))
        return Delivery(ordered, retry_after=delivery.retry_after, stop=delivery.stop, maybe_applied=(*maybe,))

    def close(self) -> None:
        self._closing.close()

    def _planned(self, task: SinkTask, *, tries: bool = False) -> tuple[Plan, list[Problem]]:
        try:
            return plan_of(task, self._options(task), preset=self._settings.preset, tries=tries)
        except ValidationError as error:
            places = {".".join(map(str, detail["loc"])) for detail in error.errors(include_input=False)}
            where = f"sync {task.sync}: options.{', options.'.join(sorted(places))}"
            found = f"options that do not fit preset {self._settings.preset}"
            wrong = Problem(where, found, "options that join with those of the preset", "correct or remove them")
            return Plan({}, task.key, task.mode, HttpOptions.model_validate({})), [wrong]

    def _options(self, task: SinkTask) -> HttpOptions:
        """The sync's options, over those of the destination's preset."""
        own = options_of(task, HttpOptions)
        if self._settings.preset is None:
            return own
        written = own.model_dump(by_alias=True, exclude_unset=True)
        return HttpOptions.model_validate(merged(load_preset(self._settings.preset)["options"], written))

    def _auth_problems(self) -> list[Problem]:
        if find_spec("requests") is None:
            return [_NO_CLIENT]
        if isinstance(self._settings.auth, PythonAuth):
            from dbt_reverse_etl.sinks.http.python_auth import class_of

            try:
                class_of(self._settings.auth, self._settings.origin)
            except DestinationError as error:
                return [*error.problems]
        return []

    def _connected(self) -> Transport:
        """The transport, which connects when it is first used."""
        try:
            from dbt_reverse_etl.sinks.http.transport import Transport
        except ImportError:
            raise DestinationError(_NO_CLIENT) from None
        try:
            return Transport(self._settings)
        except OSError:
            found, expected = "a CA file or client certificate that cannot be read", "PEM files"
            raise self.problem(found, expected, "correct verify or client_certificate") from None

    def _get(self, transport: Transport, path: str) -> None:
        request = Request("GET", path.lstrip("/"), {"Accept": "application/json"}, event="check")
        answer = transport.exchange(request)
        next_step = "correct the credentials or check.path"
        if isinstance(answer, Failure):
            found = answer.reason
        elif 200 <= answer.status < 300:
            if not shows_page(answer):
                return
            found = "a web page (a login or a proxy?)"
        else:
            found = f"HTTP {answer.status}"
            next_step = "try again later" if is_passing(answer.status) else next_step
        raise self.problem(f"{found} for check.path", "2xx", next_step)


def _send(request: Request, plan: Plan, transport: Transport, batch: Batch, *, ids_fit: bool) -> tuple[Delivery, bool]:
    """What became of the rows, and whether an answer came at all."""
    answer = transport.exchange(request)
    other = None
    if isinstance(answer, Answer) and not is_web_page(answer, plan.options):
        is_explained = meaning(answer, request.sent, plan.options) not in (None, Outcome.NO_MATCH)
        other = None if is_explained else plan.instead(request, answer, batch.rows)
    if other is not None:
        if not batch.go_on():
            return Delivery.of_all(len(request.rows), Outcome.RETRYABLE, _STOPS), True
        request, answer = other, transport.exchange(other)
    if not isinstance(answer, Answer):
        unanswered = Delivery.of_all(len(request.rows), answer.outcome, answer.reason, retry_after=answer.retry_after)
        return unanswered, False
    sent = replace(request.sent, ids_fit=ids_fit)
    return judge(answer, sent, plan.options, plan.mode, datetime.now(timezone.utc)), True


def _names_rows(request: Request, delivery: Delivery) -> bool:
    """Whether the answer named a row by its id: rows that are sent again alone may all have one that the API spells in another way."""
    results = request.sent.results
    is_named = results is not None and results.by == "id" and results.missing == "unknown"
    return is_named and len(delivery.results) < len(request.rows)


def _ends_batch(delivery: Delivery) -> bool:
    """The next request would meet the same failure."""
    ends = (Outcome.FATAL, Outcome.RETRYABLE)
    return delivery.stop is not None or any(result.outcome in ends for result in delivery.results)


def _again(delivery: Delivery) -> Delivery:
    """Another operation of the batch was applied, so this refusal is not of the whole batch; alone it will be."""
    reason = f"{delivery.results[0].reason}, to be sent apart"
    return Delivery.of_all(len(delivery.results), Outcome.RETRYABLE, reason)


def _not_sent(requests: Sequence[Request], reason: str) -> list[RowResult]:
    return [RowResult(row, Outcome.RETRYABLE, reason) for request in requests for row in request.rows]
