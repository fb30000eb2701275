"""What an HTTP answer says about the rows of its request. Pure: no I/O, no clock.

A row is delivered only by a positive statement: the status is listed, and every configured condition on content type,
body and the row's own entry holds. Reasons name the status and a code that the options point at, never a body's text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from dbt_reverse_etl.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import Mode

if TYPE_CHECKING:
    from dbt_reverse_etl.sinks.http_settings import HttpOptions, JsonEquals, ResultsOptions

_FATAL = frozenset({401, 403, 405, 407, 501})
_SURELY_NOT_APPLIED = frozenset({408, 425, 429, 503})
_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[(\d{1,9})\]")
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}|\d{1,6}")
_ABSENT = object()
_HTML = ("text/html", "application/xhtml+xml")


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: the HTTP status.
        content_type: media type in lower case, without parameters; empty if there was none.
        body: the decoded body, or None if it could not be read.
        body_problem: why `body` is None.
        cut: the connection ended before the body did.
        retry_after: the header as it came.
    """

    status: int
    content_type: str = ""
    body: bytes | None = b""
    body_problem: str = ""
    cut: bool = False
    retry_after: str | None = None


@dataclass(frozen=True)
class Sent:
    """What was asked.

    Attributes:
        rows: how many rows the request carried.
        ids: the key of each as text, where the answer speaks of rows by id.
        deletes: the request deletes.
        alone: single-row mode, in which a status speaks of the row and not of the batch.
    """

    rows: int
    ids: Sequence[str] = ()
    deletes: bool = False
    alone: bool = True


def judge(answer: Answer, sent: Sent, options: HttpOptions, mode: Mode, now: datetime) -> Delivery:
    """The outcome of each row, by its index in the request; `now` is for a Retry-After that is a date."""
    status = answer.status
    if status in options.success.status:
        return _success(answer, sent, options)
    if status in _SURELY_NOT_APPLIED:
        pause = retry_after(answer.retry_after, now)
        return Delivery.of_all(sent.rows, Outcome.RETRYABLE, f"HTTP {status}", retry_after=pause)
    if status in _FATAL:
        return Delivery.of_all(sent.rows, Outcome.FATAL, _reason(answer, options))
    if 400 <= status < 500:
        return _refused(answer, sent, options, mode)
    return _other(answer, sent, options)


def _other(answer: Answer, sent: Sent, options: HttpOptions) -> Delivery:
    status = answer.status
    if 200 <= status < 300:
        return _not_understood(sent, f"HTTP {status} is not listed in success.status")
    if 500 <= status < 600:
        return Delivery.of_all(sent.rows, Outcome.UNKNOWN, _reason(answer, options))
    return Delivery.of_all(sent.rows, Outcome.FATAL, f"HTTP {status}, a redirect or an unknown status: not followed")


def _not_understood(sent: Sent, reason: str) -> Delivery:
    """The destination said neither yes nor no, and will not say it for the next row either: stop, and stay in doubt."""
    return replace(Delivery.of_all(sent.rows, Outcome.UNKNOWN, reason), stop=reason)


def _refused(answer: Answer, sent: Sent, options: HttpOptions, mode: Mode) -> Delivery:
    reason = _reason(answer, options)
    if sent.alone:
        if sent.deletes and answer.status in options.missing:
            return Delivery()
        if not sent.deletes and mode is Mode.INSERT_ONLY and answer.status in options.already_exists:
            return Delivery()
        if not sent.deletes and mode is Mode.UPDATE_ONLY and answer.status == 404:
            reason = "HTTP 404: no match"
    return Delivery.of_all(sent.rows, Outcome.REJECTED, reason)


def _success(answer: Answer, sent: Sent, options: HttpOptions) -> Delivery:
    status = f"HTTP {answer.status}"
    needs_json = options.success.body is not None or options.results is not None
    try:
        if answer.content_type in _HTML and (options.success.content_type or "").lower() not in _HTML:
            return Delivery.of_all(sent.rows, Outcome.FATAL, f"{status}, but a web page (a login or a proxy?)")
        _check_content_type(answer, options.success.content_type or ("application/json" if needs_json else None))
        if not needs_json:
            return Delivery()
        if answer.cut:
            return Delivery.of_all(sent.rows, Outcome.UNKNOWN, f"{status}, but {answer.body_problem}")
        document = _document(answer)
        _check_body(document, options)
        return Delivery() if options.results is None else _Results(options.results, sent, status).judge(document)
    except _FormError as problem:
        return _not_understood(sent, f"{status}, but {problem}")


class _FormError(Exception):
    """The answer does not have the form that the options describe; the text holds nothing of its body."""


def _check_content_type(answer: Answer, wanted: str | None) -> None:
    if wanted is not None and answer.content_type != wanted.lower():
        raise _FormError(f"the content type is not {wanted}")


def _document(answer: Answer) -> Any:
    if answer.body is None:
        raise _FormError(answer.body_problem)
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        raise _FormError("the body is no JSON") from None


def _check_body(document: Any, options: HttpOptions) -> None:
    if options.success.body is not None and not _holds(document, options.success.body):
        raise _FormError(f"success.json does not hold{_code(document, options.error)}")


@dataclass(frozen=True)
class _Results:
    options: ResultsOptions
    sent: Sent
    status: str

    def judge(self, document: Any) -> Delivery:
        entries = self._entries(document)
        results = [self._result(index, entries.get(index, _ABSENT)) for index in range(self.sent.rows)]
        return Delivery(tuple(result for result in results if result is not None))

    def _entries(self, document: Any) -> dict[int, Any]:
        entries = find(document, self.options.path)
        if self.sent.alone and isinstance(entries, dict):
            entries = [entries]  # the answer to a single row need not be a list
        if not isinstance(entries, list):
            raise _FormError(f"results.path {self.options.path!r} is no list")
        by_order = self.options.by == "index" and self.options.index is None
        if by_order and len(entries) != self.sent.rows:
            raise _FormError(f"it has {len(entries)} results for {self.sent.rows} rows")
        found: dict[int, Any] = {}
        rows_by_id = {text: index for index, text in enumerate(self.sent.ids)}
        for position, entry in enumerate(entries):
            index = position if by_order else self._index(entry, rows_by_id)
            if index in found:
                raise _FormError("it speaks of one row twice")
            found[index] = entry
        return found

    def _index(self, entry: Any, rows_by_id: dict[str, int]) -> int:
        if self.options.id is not None:
            value = find(entry, self.options.id)
            if isinstance(value, bool) or not isinstance(value, (str, int)):
                raise _FormError("a result carries no id")
            index = rows_by_id.get(str(value), -1)
        else:
            value = find(entry, self.options.index or "")
            if isinstance(value, bool) or not isinstance(value, int):
                raise _FormError("a result carries no index")
            index = value
        if not 0 <= index < self.sent.rows:
            raise _FormError("it speaks of a row that was not sent")
        return index

    def _result(self, index: int, entry: Any) -> RowResult | None:
        if entry is _ABSENT:
            if self.options.missing == "delivered":
                return None
            return RowResult(index, Outcome.UNKNOWN, f"{self.status}, but no result for the row")
        if _holds(entry, self.options.ok):
            return None
        return RowResult(
            index, Outcome.REJECTED, f"{self.status}, refused in results{_code(entry, self.options.error)}"
        )


def _reason(answer: Answer, options: HttpOptions) -> str:
    if options.error is None or not answer.body:
        return f"HTTP {answer.status}"
    try:
        document = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return f"HTTP {answer.status}"
    return f"HTTP {answer.status}{_code(document, options.error)}"


def _code(document: Any, path: str | None) -> str:
    """An error code, and only if it has the form of one: a message may quote the row."""
    value = _ABSENT if path is None else find(document, path)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not _CODE.fullmatch(str(value)):
        return ""
    return f", code {value}"


def _holds(document: Any, condition: JsonEquals) -> bool:
    value = find(document, condition.path)
    # In Python True equals 1; in JSON it does not.
    return isinstance(value, bool) == isinstance(condition.equals, bool) and bool(value == condition.equals)


@lru_cache
def parse_path(path: str) -> tuple[str | int, ...]:
    """Steps of a JSON path such as `data.results[0].status`; empty or `$` is the document.

    Raises:
        ValueError: in three parts, if it is no such path.
    """
    text = path[2:] if path.startswith("$.") else path.removeprefix("$")
    steps: list[str | int] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise ValueError(f"found {path!r}; expected a path such as data.results[0].status; next: correct the path")
        name, index = match.groups()
        steps.append(name if name is not None else int(index))
        position = match.end()
    return tuple(steps)


def find(document: Any, path: str) -> Any:
    """The value at a path, or a value that equals nothing."""
    value = document
    for step in parse_path(path):
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step, _ABSENT)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return _ABSENT
    return value


def retry_after(header: str | None, now: datetime) -> float | None:
    """Seconds to wait, from seconds or an HTTP date; None for what is neither. Not capped: that is the engine's."""
    text = (header or "").strip()
    if re.fullmatch(r"[0-9]+", text):
        return float(text) if len(text) <= 15 else 1e15
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    aware = date if date.tzinfo is not None else date.replace(tzinfo=timezone.utc)
    return max(0.0, (aware - now).total_seconds())
