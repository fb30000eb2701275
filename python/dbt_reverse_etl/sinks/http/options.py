"""What `meta.reverse_etl.options` may say to the http sink: the requests, and when their answers acknowledge rows."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from dbt_reverse_etl.sinks.base import Options, Settings
from dbt_reverse_etl.sinks.http.json_path import parse_path
from dbt_reverse_etl.sinks.http.settings import HeaderName
from dbt_reverse_etl.values.encoding import Nan

JsonPath = Annotated[str, AfterValidator(lambda text: (parse_path(text), text)[1])]
Status = Annotated[int, Field(ge=200, le=499)]


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error:
        raise ValueError(f"found {text!r}; expected a regular expression of Python; next: correct it") from None
    return text


def _unless(excepted: str | None, path: str, body: bytes | None, statuses: list[int]) -> list[int]:
    if excepted is None:
        return statuses
    if body is None:  # it may say what is excepted
        return []
    texts = (path, body.decode(errors="replace"))
    return [] if any(re.search(excepted, text) for text in texts) else statuses


Expression = Annotated[str, Field(min_length=1), AfterValidator(_expression)]


class JsonIs(Settings):
    """A value in the answer that means yes.

    Attributes:
        path: where the value is.
        equals: the value that means yes. Either this or `in`.
        any_of: several values that mean yes.
    """

    path: JsonPath
    equals: JsonValue = None
    any_of: list[JsonValue] | None = Field(None, alias="in", min_length=1)

    @model_validator(mode="after")
    def _has_one_form(self) -> JsonIs:
        if ("equals" in self.model_fields_set) == (self.any_of is not None):
            raise ValueError("found a path without one condition; expected equals or in; next: set one of them")
        return self

    @property
    def values(self) -> list[JsonValue]:
        """Each value that says yes."""
        return [self.equals] if self.any_of is None else self.any_of


class RefusedOptions(Settings):
    """A list of refusals, which may be absent.

    Attributes:
        path: the list.
        at: in an entry, the path of the row's index or id (see `by`), or of a list of them; empty if the entry itself is it.
        unnamed: an entry may name no row: then the rows are sent again in smaller requests until the refused ones are found. Only for requests that
            may be repeated.
        error: path of the error code in an entry; without one, the last word of `path` is the reason.
    """

    path: JsonPath
    at: JsonPath
    unnamed: bool = False
    error: JsonPath | None = None


class ResultsOptions(Settings):
    """Where the answer reports each row.

    Attributes:
        path: the list of entries; empty for the answer itself, null if the answer has only `refused`.
        by: how an entry finds its row: `index`, by the order of the rows or the index under `index`;
            `id`, by the value of the only key field under `id`.
        index: path of the row's index in an entry, counted from 0.
        id: path of the row's id in an entry.
        ok: what an entry of a delivered row says. Without it, an entry is enough only if `refused` is set.
        error: path of the error code in an entry; shown only if it looks like a code.
        refused: additional lists of refusals.
        refused_count: path of the number of refused rows. If it is greater than that of those found, the rows are sent again in smaller requests
            until the refused ones are found: only for requests that may be repeated.
        missing: outcome of a row that no entry mentions.
    """

    path: JsonPath | None = ""
    by: Literal["index", "id"] = "index"
    index: JsonPath | None = None
    id: JsonPath | None = None
    ok: JsonIs | None = None
    error: JsonPath | None = None
    refused: list[RefusedOptions] = Field(default_factory=list)
    refused_count: JsonPath | None = None
    missing: Literal["unknown", "delivered"] = "unknown"

    @model_validator(mode="after")
    def _is_addressed(self) -> ResultsOptions:
        if self.path is None:
            if not self.refused or self.missing == "unknown":
                raise ValueError("found path: null; expected refused and missing: delivered beside it; next: set both")
            return self
        if (self.by == "id") != (self.id is not None) or (self.by == "id" and self.index is not None):
            raise ValueError("found by and id apart; expected by: id with id: <path>, or by: index; next: set both")
        by_order = self.by == "index" and self.index is None
        if by_order and (self.missing == "delivered" or self.refused):
            raise ValueError(
                "found missing: delivered or refused with entries by order; expected each entry to name its row; next: set index: <path>, or by: id"
            )
        if self.ok is None and not self.refused:
            raise ValueError(
                "found no ok; expected what an entry of a delivered row says; next: set ok.path and ok.equals"
            )
        return self


class SuccessOptions(Settings):
    """When an answer acknowledges the rows: if all conditions hold.

    Attributes:
        status: status codes of success.
        content_type: the answer's content type, without parameters; empty: any, or none. Default: `application/json` with `json` or `results`.
        body: a value in the answer.
    """

    status: list[Status] = Field([200, 201, 202, 204], min_length=1)
    content_type: str | None = None
    body: JsonIs | None = Field(None, alias="json")

    @property
    def media_type(self) -> str | None:
        """The content type as `Answer` has it."""
        return None if self.content_type is None else self.content_type.partition(";")[0].strip().lower()


class OperationOptions(Settings):
    """The request of one operation.

    `path` and `headers` take `{field}`, `{_object}` (the sync's object), `{_key}` and `{_id}` (name and value of the only key field).

    Attributes:
        method: the HTTP method.
        path: relative to the base URL. It must contain the key for an update or delete.
        headers: additional headers.
        body: all fields, the key fields, or none. Default: `fields`, for a delete `none` (in batches `key`).
        body_template: a Jinja file of the dbt project that writes the body instead.
        rows, success, results: for this operation, instead of those of the sync; `results: null` for none.
    """

    method: Literal["POST", "PUT", "PATCH", "DELETE"] | None = None
    path: str | None = None
    headers: dict[HeaderName, str] = Field(default_factory=dict)
    body: Literal["fields", "key", "none"] | None = None
    body_template: str | None = None
    rows: int | None = Field(None, ge=1, le=100_000)
    success: SuccessOptions | None = None
    results: ResultsOptions | None = None


class BatchOptions(Settings):
    """How rows share a request.

    Attributes:
        rows: most rows of a request; 1 sends each row alone, as a bare object unless `wrap` is set.
        max_bytes: most bytes of a body.
        wrap: what holds the rows: an array, lines, or an object with the array under `key`.
    """

    rows: int = Field(1, ge=1, le=100_000)
    max_bytes: int | None = Field(None, ge=1)
    wrap: Literal["array", "ndjson"] | dict[Literal["key"], str] | None = None


class RetryAfterOptions(Settings):
    """When to come back.

    Attributes:
        header: read where an answer is about a limit (429, or 403 with a code that means `retryable`) and has no Retry-After.
        unit: seconds from now, or seconds since 1970.
    """

    header: HeaderName
    unit: Literal["seconds", "epoch"]


class HttpOptions(Options):
    """The requests of a sync, and when their answers acknowledge rows.

    Attributes:
        insert, update, delete: the request of this operation.
        upsert: the request of both inserts and updates.
        key: name of the only key field that the requests use, or `*` for one of any name; another key is refused.
        batch: how rows share a request.
        constants: fields added to each row.
        nan: NaN and Infinity: refuse the row, or write null. In a key the row is refused.
        idempotency_header: carries the stable id of each change; null sends none.
        success: when an answer acknowledges the rows.
        results: where the answer reports each row.
        error: path of the error code in an answer; shown only if it looks like a code.
        codes: error code -> outcome, for errors that the status alone does not explain; all but `no_match` win over `already_exists` and `missing`.
        retryable: with these, nothing was applied, and the rows are sent again; so are 408, 423, 425, 429, and 503 with Retry-After.
        retry_after: a header that says when to come back after a limit.
        already_exists: with these, an insert of `insert_only` counts as delivered; an upsert sends its update instead.
        missing: with these, a delete counts as delivered; an upsert sends its insert instead.
        already_exists_except: a regular expression; where it finds something in a request's path or its answer, a status of `already_exists` only
            rejects the row.
        missing_except: a regular expression; where it finds something in a request's path or its answer, a status of `missing` only rejects the row.
        web_pages: the API itself answers with HTML; else a web page comes from something before it, and stops the sync.
    """

    insert: OperationOptions | None = None
    update: OperationOptions | None = None
    upsert: OperationOptions | None = None
    delete: OperationOptions | None = None
    key: Annotated[str, Field(min_length=1)] | None = None
    batch: BatchOptions = Field(default_factory=lambda: BatchOptions.model_validate({}))
    constants: dict[str, JsonValue] = Field(default_factory=dict)
    nan: Nan = "reject"
    idempotency_header: HeaderName | None = "Idempotency-Key"
    success: SuccessOptions = Field(default_factory=lambda: SuccessOptions.model_validate({}))
    results: ResultsOptions | None = None
    error: JsonPath | None = None
    codes: dict[str, Literal["retryable", "rejected", "no_match", "fatal", "unknown"]] = Field(default_factory=dict)
    retryable: list[Annotated[int, Field(ge=400, le=599)]] = Field(default_factory=list)
    retry_after: RetryAfterOptions | None = None
    already_exists: list[Status] = Field([409])
    missing: list[Status] = Field([404, 410])
    already_exists_except: Expression | None = None
    missing_except: Expression | None = None
    web_pages: bool = False

    @property
    def operations(self) -> list[OperationOptions]:
        """Those with a request of their own."""
        return [one for one in (self.insert, self.update, self.upsert, self.delete) if one is not None]

    def missing_at(self, path: str, body: bytes | None) -> list[int]:
        """The statuses by which a row is missing, in an answer of this body to a request for this path."""
        return _unless(self.missing_except, path, body, self.missing)

    def already_exists_at(self, path: str, body: bytes | None) -> list[int]:
        """The statuses by which a row exists already, in such an answer."""
        return _unless(self.already_exists_except, path, body, self.already_exists)

    def results_of(self, operation: OperationOptions) -> ResultsOptions | None:
        """Those of the sync, unless the operation names its own, or none."""
        return operation.results if "results" in operation.model_fields_set else self.results

    @model_validator(mode="after")
    def _success_is_plausible(self) -> HttpOptions:
        own = [(one.success or self.success, self.results_of(one)) for one in self.operations]
        answers = [(self.success, self.results), *own]
        statuses = {status for success, _ in answers for status in success.status}
        if any(results is None and any(status >= 300 for status in success.status) for success, results in answers):
            raise ValueError(
                "found a success.status outside 2xx; expected it only with results, which judge each row; next: remove the status or describe results"
            )
        if any(300 <= status < 400 for status in statuses):
            raise ValueError("found a redirect in success.status; expected none: it is never followed; next: remove it")
        return self
