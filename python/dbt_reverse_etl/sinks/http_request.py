"""From rows to HTTP requests. Pure: calls and rows become requests; `http_plan` makes the calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import quote, unquote

import orjson
import pyarrow as pa

from dbt_reverse_etl.encoding import encode_rows, json_array, ndjson, texts
from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Mode
from dbt_reverse_etl.sinks.http_options import HttpOptions, ResultsOptions
from dbt_reverse_etl.sinks.http_settings import HEADER_VALUE
from dbt_reverse_etl.sinks.http_template import BodyError, BodyTemplate

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Template:
    """Text with `{field}` placeholders: literals[0] fields[0] literals[1] ..."""

    literals: tuple[str, ...]
    fields: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> Template:
        parts = _PLACEHOLDER.split(text)
        return Template(tuple(parts[::2]), tuple(parts[1::2]))

    def fill(self, values: Mapping[str, str]) -> str:
        filled = [values[field] for field in self.fields]
        return self.literals[0] + "".join(
            value + literal for value, literal in zip(filled, self.literals[1:], strict=True)
        )


@dataclass(frozen=True)
class Call:
    """The request of one operation.

    Attributes:
        rows: most rows of one request; 1 sends each alone.
        template: writes the body instead of `body`.
        results: where the answer speaks of each row.
    """

    method: str
    path: Template
    headers: tuple[tuple[str, Template], ...]
    body: str
    deletes: bool
    rows: int = 1
    template: BodyTemplate | None = None
    results: ResultsOptions | None = None

    @property
    def alone(self) -> bool:
        """Single-row mode."""
        return self.rows == 1

    @property
    def by_id(self) -> bool:
        """The answer names rows by their only key field."""
        return self.results is not None and self.results.by == "id"

    @property
    def fields(self) -> set[str]:
        """The fields that its placeholders name."""
        return {field for template in (self.path, *(value for _, value in self.headers)) for field in template.fields}


@dataclass(frozen=True)
class Request:
    """One request, ready to send.

    Attributes:
        path: percent-encoded, relative to the base URL.
        event: id of the change, or of the changes together; stable over retries.
        rows: indexes in the batch of the rows that it carries.
        ids: their keys as text, where the answer speaks of rows by id.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None = None
    event: str = ""
    rows: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()
    deletes: bool = False
    alone: bool = True
    results: ResultsOptions | None = None


class _Row(NamedTuple):
    """One row of a batch on its way into a request."""

    at: int
    event: str
    body: bytes
    path: str
    headers: dict[str, str]
    id: str


@dataclass(frozen=True)
class Plan:
    """How one sync speaks to its endpoint: operation -> call."""

    calls: Mapping[str, Call]
    key: tuple[str, ...]
    mode: Mode
    options: HttpOptions

    @property
    def reads_answers(self) -> bool:
        """Whether the body of an answer matters."""
        results = any(call.results for call in self.calls.values())
        return results or self.options.success.body is not None or self.options.error is not None

    @cached_property
    def _names(self) -> dict[str, str]:
        """Each operation -> the first one with the same call, with which it shares requests."""
        return {
            operation: next(first for first in self.calls if self.calls[first] == call)
            for operation, call in self.calls.items()
        }

    def requests(self, rows: pa.Table) -> tuple[list[Request], dict[int, str]]:
        """The requests of one batch, and the rows that cannot be sent with their reasons.

        Deletes go first: they may free a unique value that another row of the batch takes.
        """
        by_call: dict[str, list[int]] = {}
        refused: dict[int, str] = {}
        for index, operation in enumerate(rows.column(OPERATION).to_pylist()):
            if operation in self._names:
                by_call.setdefault(self._names[operation], []).append(index)
            else:
                refused[index] = f"the mode of this sync has no {operation}"
        requests: list[Request] = []
        for name in sorted(by_call, key=lambda name: not self.calls[name].deletes):
            call = self.calls[name]
            good = self._rows(call, rows, by_call[name], refused)
            for start in range(0, len(good), call.rows):
                requests += self._requests(call, good[start : start + call.rows], refused)
        return requests, refused

    def instead(self, request: Request, status: int, rows: pa.Table) -> Request | None:
        """The other request of an upsert, where the answer says that the row exists already, or that it does not."""
        if not request.alone or request.deletes or self.mode not in (Mode.UPSERT, Mode.MIRROR):
            return None
        (index,) = request.rows
        operation = rows.column(OPERATION)[index].as_py()
        other, says = (
            ("update", self.options.already_exists) if operation == "insert" else ("insert", self.options.missing)
        )
        call = self.calls[other]
        if status not in says or call == self.calls[operation] or not call.alone:
            return None
        # Another request needs another id: the destination may remember the first one together with its answer.
        good = [
            row._replace(event=hashlib.sha256(f"{row.event}\n{other}".encode()).hexdigest())
            for row in self._rows(call, rows, [index], {})
        ]
        return next(self._requests(call, good, {}), None) if good else None

    def _rows(self, call: Call, rows: pa.Table, indexes: list[int], refused: dict[int, str]) -> list[_Row]:
        """The rows of one call that can be encoded and addressed; the reasons of the others go into `refused`."""
        part = rows.take(pa.array(indexes, pa.int64())) if len(indexes) < rows.num_rows else rows
        bodies = self._bodies(call, part)
        id_fields = self.key if call.by_id else ()
        named = {field: texts(part.column(field)) for field in {*call.fields, *id_fields}}
        events = part.column(EVENT_ID).to_pylist()
        same = None if call.fields else _addressed(call, {})
        good: list[_Row] = []
        for position, index in enumerate(indexes):
            body = bodies[position]
            if isinstance(body, str):
                refused[index] = body
                continue
            values = {field: column[position] for field, column in named.items()} if named else {}
            try:
                path, headers = same or _addressed(call, values)
            except _RowError as problem:
                refused[index] = str(problem)
            else:
                id_ = values[id_fields[0]] or "" if id_fields else ""
                good.append(_Row(index, events[position], body, path, headers, id_))
        return good

    def _requests(self, call: Call, rows: list[_Row], refused: dict[int, str]) -> Iterator[Request]:
        """One request; or several, where the rows are too large together or one of them breaks the template."""
        try:
            body = self._body(call, rows)
        except BodyError as problem:
            if len(rows) == 1:
                refused[rows[0].at] = str(problem)
                return
            half = len(rows) // 2
            yield from self._requests(call, rows[:half], refused)
            yield from self._requests(call, rows[half:], refused)
        else:
            yield self._request(call, rows, body)

    def _body(self, call: Call, rows: list[_Row]) -> bytes | None:
        if call.template is not None:
            body = call.template.render([row.body for row in rows], alone=call.alone)
        elif call.body == "none":
            return None
        else:
            body = self._wrap([row.body for row in rows], alone=call.alone)
        limit = self.options.batch.max_bytes
        if limit is not None and len(body) > limit:
            raise BodyError("a body larger than batch.max_bytes")
        return body

    def _request(self, call: Call, rows: list[_Row], body: bytes | None) -> Request:
        event = rows[0].event
        if not call.alone:
            event = hashlib.sha256("\n".join(row.event for row in rows).encode()).hexdigest()
        return Request(
            method=call.method,
            path=rows[0].path,
            headers=self._own_headers(body, event, rows[0].headers),
            body=body,
            event=event,
            rows=tuple(row.at for row in rows),
            ids=tuple(row.id for row in rows) if call.by_id else (),
            deletes=call.deletes,
            alone=call.alone,
            results=call.results,
        )

    def _bodies(self, call: Call, part: pa.Table) -> list[bytes | str]:
        """JSON of each row, or as text the reason why there is none."""
        if call.body == "none":
            return [b""] * part.num_rows
        own = {OPERATION, EVENT_ID}
        fields = self.key if call.body == "key" else [name for name in part.column_names if name not in own]
        encoded = encode_rows(part.select(list(fields)), nan=self.options.nan, constants=self.options.constants)
        return [encoded.rejected[row] if json is None else json for row, json in enumerate(encoded.rows)]

    def _wrap(self, bodies: list[bytes], *, alone: bool) -> bytes:
        wrap = self.options.batch.wrap or (None if alone else "array")
        if wrap is None:
            return bodies[0]
        if wrap == "ndjson":
            return ndjson(bodies)
        if isinstance(wrap, str):
            return json_array(bodies)
        return b"{%s:%s}" % (orjson.dumps(wrap["key"]), json_array(bodies))

    def _own_headers(self, body: bytes | None, event: str, written: Mapping[str, str]) -> dict[str, str]:
        """What each request says, unless the sync's own headers say it."""
        headers = {"Accept": "application/json"}
        if body is not None:
            lines = self.options.batch.wrap == "ndjson"
            headers["Content-Type"] = "application/x-ndjson" if lines else "application/json"
        if self.options.idempotency_header is not None:
            headers[self.options.idempotency_header] = event
        taken = {name.lower() for name in written}
        return {name: value for name, value in headers.items() if name.lower() not in taken} | dict(written)


class _RowError(Exception):
    """A row whose values cannot stand where the templates put them."""


def _addressed(call: Call, values: Mapping[str, str | None]) -> tuple[str, dict[str, str]]:
    return _path(call.path, values), _headers(call.headers, values)


def _path(template: Template, values: Mapping[str, str | None]) -> str:
    encoded: dict[str, str] = {}
    for field in template.fields:
        value = values[field]
        if not value:
            raise _RowError(f"field {field} is empty and cannot stand in a path")
        encoded[field] = quote(value, safe="")
    path = template.fill(encoded)
    if resolves_elsewhere(path):
        raise _RowError("a value that resolves to another path")
    return path


def resolves_elsewhere(path: str) -> bool:
    """Whether an encoded path has a dot segment, for a server that decodes before it normalises as for any other.

    DELETE contacts/..%2Faccounts%2F5 would there be DELETE of an account.
    """
    return not {".", ".."}.isdisjoint(re.split(r"[/\\]", unquote(path.partition("?")[0])))


def _headers(templates: tuple[tuple[str, Template], ...], values: Mapping[str, str | None]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, template in templates:
        empty = [field for field in template.fields if not values[field]]
        if empty:
            raise _RowError(f"field {empty[0]} is empty and cannot stand in a header")
        text = template.fill({field: values[field] or "" for field in template.fields})
        if not HEADER_VALUE.fullmatch(text):
            raise _RowError(f"a value that cannot stand in header {name}: printable ASCII only")
        headers[name] = text
    return headers
