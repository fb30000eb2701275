"""What `meta.reverse_etl.options` may say to the http sink: the requests, and when their answers acknowledge rows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from dbt_reverse_etl.sinks.base import Options
from dbt_reverse_etl.sinks.http.answer import parse_path
from dbt_reverse_etl.sinks.http.settings import HeaderName, Strict

JsonPath = Annotated[str, AfterValidator(lambda text: (parse_path(text), text)[1])]
Status = Annotated[int, Field(ge=200, le=499)]


class JsonIs(Strict):
    """A value in the answer that says yes: it `equals` one value, or is one of those in `in`."""

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


class RefusedOptions(Strict):
    """A list of refusals of its own, which may be absent.

    Attributes:
        path: the list.
        at: in an entry, the path of the row's index or id (see `by`); empty if the entry is that itself.
        error: path of the error code in an entry; without one, the last word of `path` is the reason.
    """

    path: JsonPath
    at: JsonPath
    error: JsonPath | None = None


class ResultsOptions(Strict):
    """Where the answer speaks of each row.

    Attributes:
        path: the list of entries; empty for the answer itself, null if there is none beside `refused`.
        by: `index`: entries stand in the order of the rows, or carry their index under `index`;
            `id`: an entry carries the row's only key field under `id`.
        ok: what an entry of a delivered row says; only with `refused` an entry alone may be enough.
        error: path of the error code in an entry; shown only if it looks like a code.
        refused: lists of refusals beside it.
        missing: outcome of a row that no entry mentions.
    """

    path: JsonPath | None = ""
    by: Literal["index", "id"] = "index"
    index: JsonPath | None = None
    id: JsonPath | None = None
    ok: JsonIs | None = None
    error: JsonPath | None = None
    refused: list[RefusedOptions] = Field(default_factory=list)
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
                "found missing: delivered or refused with entries by order; expected each entry to name its row; "
                "next: set index: <path>, or by: id"
            )
        if self.ok is None and not self.refused:
            raise ValueError(
                "found no ok; expected what an entry of a delivered row says; next: set ok: {path, equals}"
            )
        return self


class OperationOptions(Strict):
    """The request of one operation. `path` and `headers` take `{field}`, and:

    `{_object}`, the object of the sync; with one key field `{_key}`, its name, and `{_id}`, its value.

    Attributes:
        path: relative to the base URL.
        body: all fields, the key fields, or none. Default: `fields`, for a delete `none` (in batches `key`).
        body_template: a Jinja file of the dbt project that writes the body instead.
        rows, results: for this operation alone, over those of the sync.
    """

    method: Literal["POST", "PUT", "PATCH", "DELETE"] | None = None
    path: str | None = None
    headers: dict[HeaderName, str] = Field(default_factory=dict)
    body: Literal["fields", "key", "none"] | None = None
    body_template: str | None = None
    rows: int | None = Field(None, ge=1, le=100_000)
    results: ResultsOptions | None = None


class BatchOptions(Strict):
    """How rows share a request: `rows` 1 sends each alone, as a bare object unless `wrap` is set."""

    rows: int = Field(1, ge=1, le=100_000)
    max_bytes: int | None = Field(None, ge=1)
    wrap: Literal["array", "ndjson"] | dict[Literal["key"], str] | None = None


class RetryAfterOptions(Strict):
    """A header beside Retry-After that says when to come back: `seconds` from now, or seconds since 1970."""

    header: HeaderName
    unit: Literal["seconds", "epoch"]


class SuccessOptions(Strict):
    """When an answer acknowledges the rows: all conditions together."""

    status: list[Status] = Field([200, 201, 202, 204], min_length=1)
    content_type: str | None = None
    body: JsonIs | None = Field(None, alias="json")


class HttpOptions(Options):
    """What one sync may say: the requests, and when their answers acknowledge rows.

    `key` is the only key field of which the requests speak, `*` one of any name; None: they speak of whichever there are.
    `codes` tells what an error code means where the status or the entry alone does not say it.
    """

    model_config = Strict.model_config

    insert: OperationOptions | None = None
    update: OperationOptions | None = None
    upsert: OperationOptions | None = None
    delete: OperationOptions | None = None
    key: Annotated[str, Field(min_length=1)] | None = None
    batch: BatchOptions = Field(default_factory=lambda: BatchOptions.model_validate({}))
    constants: dict[str, JsonValue] = Field(default_factory=dict)
    nan: Literal["reject", "null"] = "reject"
    idempotency_header: HeaderName | None = "Idempotency-Key"
    success: SuccessOptions = Field(default_factory=lambda: SuccessOptions.model_validate({}))
    results: ResultsOptions | None = None
    error: JsonPath | None = None
    codes: dict[str, Literal["retryable", "rejected", "no_match", "fatal"]] = Field(default_factory=dict)
    retry_after: RetryAfterOptions | None = None
    already_exists: list[Status] = Field([409])
    missing: list[Status] = Field([404, 410])

    @model_validator(mode="after")
    def _success_is_plausible(self) -> HttpOptions:
        if self.results is None and any(status >= 300 for status in self.success.status):
            raise ValueError(
                "found a success.status outside 2xx; expected it only with results, which judge each row; "
                "next: remove the status or describe results"
            )
        if any(300 <= status < 400 for status in self.success.status):
            raise ValueError(
                "found a redirect in success.status; expected none, for they are never followed; next: remove it"
            )
        return self
