"""What an HTTP answer says about the rows of its request. Pure: no I/O, no clock.

A row is delivered only by a positive statement: the status is listed, and every configured condition on content type,
body and the row's own entry holds. Reasons name the status and a code that the options point at, never a body's text.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import orjson

from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.http.json_path import ABSENT, find, parse_path
from dbt_reverse_etl.sinks.http.options import HttpOptions, JsonIs, RefusedOptions, ResultsOptions, SuccessOptions
from dbt_reverse_etl.sinks.http.pause import pause_of

_FATAL = frozenset({401, 403, 405, 407, 501})
_SURELY_NOT_APPLIED = frozenset({408, 423, 425, 429})
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}|\d{1,6}")
_HTML = ("text/html", "application/xhtml+xml")
_NO_BODY = frozenset({204, 205})
_NOT_SENT = -1  # the index of an entry whose id is that of no row


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    content_type: str = ""  # of `media_type`
    body: bytes | None = b""  # decoded; None: it could not be read, for `body_problem`
    body_problem: str = ""
    cut: bool = False  # the connection ended before the body did
    headers: Mapping[str, str] = field(default_factory=dict)  # finds a name in any case


@dataclass(frozen=True)
class Failure:
    """No answer came: what that says about every row of the request."""

    outcome: Outcome
    reason: str
    retry_after: float | None = None


@dataclass(frozen=True)
class Sent:
    """What was asked, as of the request and its call."""

    rows: int
    ids: Sequence[str] = ()  # the key of each row as text, where the answer speaks of rows by id
    deletes: bool = False
    alone: bool = True  # single-row mode, in which a status speaks of the row and not of the batch
    path: str = ""
    success: SuccessOptions | None = None
    results: ResultsOptions | None = None
    ids_fit: bool = False  # an earlier answer of the run named rows by these ids


def media_type(header: str) -> str:
    """A content type in lower case, without parameters; of several, as where a gateway adds its own, HTML, or else each once."""
    types = [one.partition(";")[0].strip() for one in re.sub('"[^"]*"', "", header).lower().split(",")]
    return next((one for one in types if one in _HTML), ", ".join(dict.fromkeys(filter(None, types))))


def judge(answer: Answer, sent: Sent, options: HttpOptions, mode: Mode, now: datetime) -> Delivery:
    """The outcome of each row, by its index in the request; `now` is for a date at which to come back."""
    status = answer.status
    if sent.success is not None:
        options = options.model_copy(update={"success": sent.success})
    if status in options.success.status:
        return _success(answer, sent, options, now)
    if not 400 <= status < 600:
        return _other(answer, sent)
    if (by_code := _by_code(answer, sent, options, now)) is not None:
        return by_code
    if status not in options.retryable and _is_as_listed(answer, sent, options, mode):
        return Delivery()
    return _failed(answer, sent, options, mode, now)


def meaning(answer: Answer, sent: Sent, options: HttpOptions) -> Outcome | None:
    """What the configured error codes say of the whole answer."""
    code = options.codes.get(_code_of(loaded(answer), options.error, options.codes)) if options.codes else None
    if code is None or (
        code == "no_match" and sent.deletes and answer.status in options.missing_at(sent.path, answer.body)
    ):
        return None
    # Of several rows one is missing: the engine looks for it.
    return Outcome.REJECTED if code == "no_match" and sent.rows > 1 else Outcome(code)


def _by_code(answer: Answer, sent: Sent, options: HttpOptions, now: datetime) -> Delivery | None:
    outcome = meaning(answer, sent, options)
    if outcome is None:
        return None
    pause = pause_of(answer.status, answer.headers, options, now) if outcome is Outcome.RETRYABLE else None
    return Delivery.of_all(sent.rows, outcome, _reason(answer, options), retry_after=pause)


def _is_as_listed(answer: Answer, sent: Sent, options: HttpOptions, mode: Mode) -> bool:
    """Whether what a single row asked for is so already, by a status that the options list."""
    missing, exists = (at(sent.path, answer.body) for at in (options.missing_at, options.already_exists_at))
    listed = missing if sent.deletes else exists if mode is Mode.INSERT_ONLY else ()
    return sent.alone and answer.status in listed and not is_web_page(answer, options)


def _failed(answer: Answer, sent: Sent, options: HttpOptions, mode: Mode, now: datetime) -> Delivery:
    status = answer.status
    pause = pause_of(answer.status, answer.headers, options, now)
    # A gateway's own 503 may come after the API was asked; who says when to come back speaks of a request not begun.
    surely_not_applied = status in _SURELY_NOT_APPLIED or (status == 503 and pause is not None)
    if surely_not_applied or status in options.retryable:
        return Delivery.of_all(sent.rows, Outcome.RETRYABLE, _reason(answer, options), retry_after=pause)
    if status in _FATAL:
        return Delivery.of_all(sent.rows, Outcome.FATAL, _reason(answer, options))
    if status < 500:
        return _refused(answer, sent, options, mode)
    return Delivery.of_all(sent.rows, Outcome.UNKNOWN, _reason(answer, options))


def _other(answer: Answer, sent: Sent) -> Delivery:
    status = answer.status
    if status == 300 and sent.alone:
        return Delivery.of_all(sent.rows, Outcome.REJECTED, "HTTP 300: several records match the key")
    if 200 <= status < 300:
        return _not_understood(sent, f"HTTP {status} is not listed in success.status")
    # A redirect may follow the write: a 303 to a POST names its result (RFC 9110, 15.4.4).
    return _not_understood(sent, f"HTTP {status}, a redirect or an unknown status: not followed")


def _not_understood(sent: Sent, reason: str) -> Delivery:
    """The destination said neither yes nor no, and will not say it for the next row either: stop, and stay in doubt."""
    return replace(Delivery.of_all(sent.rows, Outcome.UNKNOWN, reason), stop=reason)


def _refused(answer: Answer, sent: Sent, options: HttpOptions, mode: Mode) -> Delivery:
    reason = _reason(answer, options)
    if sent.alone and answer.status in {*options.missing} - {*options.missing_at(sent.path, answer.body)}:
        # A web page, too: it is this path that the API does not serve, so that the other rows go on.
        no_proof = f"{reason}: no proof that the row is missing, by missing_except"
        return Delivery.of_all(sent.rows, Outcome.REJECTED, no_proof)
    if is_web_page(answer, options) and answer.status in {*options.missing, *options.already_exists, 404}:
        page = f"HTTP {answer.status}, but a web page (a wrong path or a proxy?)"
        return Delivery.of_all(sent.rows, Outcome.FATAL, page)
    if sent.alone and not sent.deletes and mode is Mode.UPDATE_ONLY and answer.status == 404:
        return Delivery.of_all(sent.rows, Outcome.NO_MATCH, "HTTP 404: no match")
    is_insert = sent.alone and not sent.deletes and mode is Mode.INSERT_ONLY
    if is_insert and answer.status in {*options.already_exists} - {*options.already_exists_at(sent.path, answer.body)}:
        reason += ": no proof that the row exists, by already_exists_except"
    return Delivery.of_all(sent.rows, Outcome.REJECTED, reason)


def is_web_page(answer: Answer, options: HttpOptions) -> bool:
    """Whether it comes from something before the API, which tells nothing of a row.

    Some frameworks name HTML where a success has no body.
    """
    no_length = answer.status < 300 and answer.headers.get("Content-Length", "").strip() == "0"
    is_empty = answer.status in _NO_BODY or no_length
    expected = options.web_pages or options.success.media_type in _HTML
    return answer.content_type in _HTML and not (expected or is_empty)


def shows_page(answer: Answer) -> bool:
    """Whether an answer is a web page by its body, too: a text such as `ok` often has the type of one."""
    is_html = is_web_page(answer, HttpOptions.model_validate({}))
    return is_html and (answer.body or b"").removeprefix(BOM_UTF8).lstrip().startswith(b"<")


def _success(answer: Answer, sent: Sent, options: HttpOptions, now: datetime) -> Delivery:
    status = f"HTTP {answer.status}"
    needs_json = options.success.body is not None or sent.results is not None
    if is_web_page(answer, options):  # maybe of the API itself, after the write
        return _not_understood(sent, f"{status}, but a web page (a login or a proxy?)")
    wanted = options.success.media_type
    wanted = "application/json" if wanted is None and needs_json else wanted
    if wanted and answer.content_type != wanted:
        return _not_understood(sent, f"{status}, but the content type is not {wanted}")
    if answer.cut:
        return Delivery.of_all(sent.rows, Outcome.UNKNOWN, f"{status}, but {answer.body_problem}")
    try:
        delivery = _acknowledged(answer, sent, options, status) if needs_json else Delivery()
    except _SaysNo as problem:
        return _by_code(answer, sent, options, now) or _not_understood(sent, f"{status}, but {problem}")
    except _FormError as problem:
        return _not_understood(sent, f"{status}, but {problem}")
    is_limited = any(result.outcome is Outcome.RETRYABLE for result in delivery.results)
    return replace(delivery, retry_after=pause_of(answer.status, answer.headers, options, now) if is_limited else None)


def _acknowledged(answer: Answer, sent: Sent, options: HttpOptions, status: str) -> Delivery:
    document = loaded(answer)
    if document is ABSENT:
        raise _FormError(answer.body_problem or "the body is no JSON")
    if options.success.body is not None and not _holds(document, options.success.body):
        raise _SaysNo(f"success.json does not hold{error_code(document, options.error, options.codes)}")
    return _Results(sent.results, sent, status, options.codes).judge(document) if sent.results else Delivery()


class _FormError(Exception):
    """The answer does not have the form that the options describe; the text holds nothing of its body."""


class _SaysNo(_FormError):
    """The answer as a whole is no success; a code in it may say why."""


@dataclass(frozen=True)
class _Results:
    options: ResultsOptions
    sent: Sent
    status: str
    codes: Mapping[str, str]

    def judge(self, document: Any) -> Delivery:
        verdicts: dict[int, RowResult | None] = {}
        unnamed = not_sent = False
        for index, verdict in self._entries(document):
            not_sent |= index == _NOT_SENT
            if index in verdicts:
                raise _FormError("it speaks of one row twice")
            if index != _NOT_SENT:
                verdicts[index] = verdict
        for row, refusal in self._refusals(document):
            unnamed |= row is None
            not_sent |= row == _NOT_SENT
            if row is not None and row != _NOT_SENT and verdicts.setdefault(row, refusal) is None:
                raise _FormError("it says yes and no of one row")
        if not_sent:
            verdicts = self._with_unknown(verdicts)
        elif self._names_too_few(document, sum(verdict is not None for verdict in verdicts.values())) or unnamed:
            reason = f"{self.status}, more rows refused than are named"
            whole = Delivery.of_all(self.sent.rows, Outcome.REJECTED, reason)
            return replace(whole, maybe_applied=tuple(range(self.sent.rows)))
        results = [verdicts[index] if index in verdicts else self._absent(index) for index in range(self.sent.rows)]
        return Delivery(tuple(result for result in results if result is not None))

    def _with_unknown(self, verdicts: dict[int, RowResult | None]) -> dict[int, RowResult | None]:
        """An id that was not sent is that of a row without an entry: the API may spell it in another way."""
        left = set(range(self.sent.rows)) - verdicts.keys()
        problem = "it names an id that was not sent: is the key spelled as the API keeps it?"
        if not left or not (verdicts or self.sent.ids_fit or self.sent.rows == 1):
            raise _FormError(problem)
        reason = f"{self.status}, but {problem}"
        return verdicts | {index: RowResult(index, Outcome.UNKNOWN, reason) for index in left}

    def _entries(self, document: Any) -> Iterator[tuple[int, RowResult | None]]:
        if self.options.path is None:
            return
        entries = find(document, self.options.path)
        if self.sent.alone and isinstance(entries, dict):
            entries = [entries]  # the answer to a single row need not be a list
        if not isinstance(entries, list):
            raise _SaysNo(f"results.path {self.options.path!r} is no list")
        at = self.options.id if self.options.by == "id" else self.options.index
        if at is None and len(entries) != self.sent.rows:
            raise _FormError(f"it has {len(entries)} results for {self.sent.rows} rows")
        for position, entry in enumerate(entries):
            index = position if at is None else self._index(find(entry, at))
            yield index, self._verdict(index, entry)

    def _refusals(self, document: Any) -> Iterator[tuple[int | None, RowResult]]:
        """By the index of the row; None: the entry names no row, and need not."""
        for refused in self.options.refused:
            entries = find(document, refused.path)
            if entries is ABSENT or entries is None:
                continue
            if not isinstance(entries, list):
                raise _FormError(f"results.refused {refused.path!r} is no list")
            for entry in entries:
                for index in self._named(entry, refused):
                    yield index, self._refusal(index or 0, _refusal_code(entry, refused, self.codes))

    def _named(self, entry: Any, refused: RefusedOptions) -> list[int | None]:
        value = find(entry, refused.at)
        if refused.unnamed and (value is ABSENT or value in (None, [])):
            return [0 if self.sent.rows == 1 else None]
        return [self._index(one) for one in (value if isinstance(value, list) and value else [value])]

    def _names_too_few(self, document: Any, found: int) -> bool:
        """Whether more rows were refused than the answer names."""
        if self.options.refused_count is None:
            return False
        count = find(document, self.options.refused_count)
        if count is ABSENT or count is None:
            raise _SaysNo(f"results.refused_count {self.options.refused_count!r} is absent")
        if isinstance(count, bool) or not isinstance(count, int) or count < found:
            raise _FormError(f"results.refused_count is less than {found}, the number of rows that it names")
        return bool(count > found)

    @cached_property
    def _rows_by_id(self) -> dict[str, int]:
        return {text: index for index, text in enumerate(self.sent.ids)}

    def _index(self, value: Any) -> int:
        if self.options.by == "id":
            if isinstance(value, bool) or not isinstance(value, (str, int)):
                raise _FormError("a result carries no id")
            return self._rows_by_id.get(str(value), _NOT_SENT)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _FormError("a result carries no index")
        if not 0 <= value < self.sent.rows:
            raise _FormError("it speaks of a row that was not sent")
        return int(value)

    def _verdict(self, index: int, entry: Any) -> RowResult | None:
        if self.options.ok is None or _holds(entry, self.options.ok):
            return None
        return self._refusal(index, _code_of(entry, self.options.error, self.codes))

    def _refusal(self, index: int, code: str) -> RowResult:
        reason = f"{self.status}, refused in results{_shown(code)}"
        return RowResult(index, Outcome(self.codes.get(code, "rejected")), reason)

    def _absent(self, index: int) -> RowResult | None:
        if self.options.missing == "delivered":
            return None
        return RowResult(index, Outcome.UNKNOWN, f"{self.status}, but no result for the row")


def _refusal_code(entry: Any, refused: RefusedOptions, known: Container[str]) -> str:
    if refused.error is not None:
        return _code_of(entry, refused.error, known)
    return str((parse_path(refused.path) or ("entry",))[-1])


def _reason(answer: Answer, options: HttpOptions) -> str:
    return f"HTTP {answer.status}{error_code(loaded(answer), options.error, options.codes)}"


def loaded(answer: Answer) -> Any:
    """The document that the body is, or a value that equals nothing."""
    try:
        return orjson.loads((answer.body or b"").removeprefix(BOM_UTF8))
    except orjson.JSONDecodeError:
        return ABSENT


def error_code(document: Any, path: str | None, known: Container[str] = ()) -> str:
    """An error code for a reason, or nothing."""
    return _shown(_code_of(document, path, known))


def _shown(code: str) -> str:
    return f", code {code}" if code else ""


def _code_of(document: Any, path: str | None, known: Container[str]) -> str:
    """An error code, if the options name it or it has the form of one: a message may quote the row."""
    value = ABSENT if path is None else find(document, path)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    return str(value) if str(value) in known or _CODE.fullmatch(str(value)) else ""


def _holds(document: Any, condition: JsonIs) -> bool:
    value = find(document, condition.path)
    # In Python True equals 1; in JSON it does not.
    return any(isinstance(value, bool) == isinstance(yes, bool) and bool(value == yes) for yes in condition.values)
