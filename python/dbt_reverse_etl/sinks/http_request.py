"""From rows to HTTP requests. Pure: a task and its options become calls, calls and rows become requests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

import orjson
import pyarrow as pa

from dbt_reverse_etl.encoding import encode_rows, is_scalar, json_array, ndjson, texts, unsupported
from dbt_reverse_etl.errors import Problem
from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Mode, SinkTask
from dbt_reverse_etl.sinks.http_settings import HEADER_VALUE, HttpOptions, OperationOptions

_USED = {
    Mode.UPSERT: {"insert": "insert", "update": "update"},
    Mode.MIRROR: {"insert": "insert", "update": "update", "delete": "delete"},
    # A repeat of either operation is the one that the mode allows.
    Mode.INSERT_ONLY: {"insert": "insert", "update": "insert"},
    Mode.UPDATE_ONLY: {"insert": "update", "update": "update"},
}
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PATH = re.compile(r"[A-Za-z0-9\-._~/?&=:@!$'()*+,;%]*")


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
    """The request of one operation."""

    method: str
    path: Template
    headers: tuple[tuple[str, Template], ...]
    body: str
    deletes: bool

    @property
    def fields(self) -> set[str]:
        """The fields that its placeholders name."""
        return {field for template in (self.path, *(value for _, value in self.headers)) for field in template.fields}


@dataclass(frozen=True)
class Request:
    """One request, ready to send.

    Attributes:
        path: percent-encoded, relative to the base URL.
        rows: indexes in the batch of the rows that it carries.
        ids: their keys as text, where the answer speaks of rows by id.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    rows: tuple[int, ...]
    ids: tuple[str, ...]
    deletes: bool


@dataclass(frozen=True)
class Plan:
    """How one sync speaks to its endpoint: operation -> call."""

    calls: Mapping[str, Call]
    key: tuple[str, ...]
    mode: Mode
    options: HttpOptions

    @property
    def alone(self) -> bool:
        """Single-row mode."""
        return self.options.batch.rows == 1

    @property
    def reads_answers(self) -> bool:
        """Whether the body of an answer matters."""
        return any((self.options.success.body, self.options.results, self.options.error))

    @property
    def _id_fields(self) -> tuple[str, ...]:
        by_id = self.options.results is not None and self.options.results.by == "id"
        return self.key if by_id else ()

    def requests(self, rows: pa.Table) -> tuple[list[Request], dict[int, str]]:
        """The requests of one batch, and the rows that cannot be sent with their reasons.

        Deletes go first: they may free a unique value that another row of the batch takes.
        """
        operations = rows.column(OPERATION).to_pylist()
        by_call: dict[Call, list[int]] = {}
        refused: dict[int, str] = {}
        for index, operation in enumerate(operations):
            if operation in self.calls:
                by_call.setdefault(self.calls[operation], []).append(index)
            else:
                refused[index] = f"the mode of this sync has no {operation}"
        requests: list[Request] = []
        for call in sorted(by_call, key=lambda call: not call.deletes):
            for indexes in self._together(by_call[call]):
                request = self._request(call, rows, indexes, refused)
                requests += [] if request is None else [request]
        return requests, refused

    def _together(self, indexes: list[int]) -> Iterator[list[int]]:
        size = 1 if self.alone else len(indexes)
        return (indexes[start : start + size] for start in range(0, len(indexes), size))

    def _request(self, call: Call, rows: pa.Table, indexes: list[int], refused: dict[int, str]) -> Request | None:
        part = rows.take(pa.array(indexes, pa.int64())) if len(indexes) < rows.num_rows else rows
        bodies = self._bodies(call, part)
        named = {field: texts(part.column(field)) for field in {*call.fields, *self._id_fields}}
        path, headers, kept = "", dict[str, str](), list[int]()
        for position, index in enumerate(indexes):
            values = {field: column[position] for field, column in named.items()}
            try:
                path, headers = _addressed(call, bodies[position], values)
            except _RowError as problem:
                refused[index] = str(problem)
            else:
                kept.append(position)
        if not kept:
            return None
        events = rows.column(EVENT_ID).take(pa.array([indexes[position] for position in kept])).to_pylist()
        sent = [body for position in kept if isinstance(body := bodies[position], bytes)]
        return Request(
            method=call.method,
            path=path,
            headers=self._own_headers(call, events) | headers,
            body=None if call.body == "none" else self._wrap(sent),
            rows=tuple(indexes[position] for position in kept),
            ids=tuple(named[field][position] or "" for field in self._id_fields for position in kept),
            deletes=call.deletes,
        )

    def _bodies(self, call: Call, part: pa.Table) -> list[bytes | str]:
        """JSON of each row, or as text the reason why there is none."""
        if call.body == "none":
            return [b""] * part.num_rows
        own = {OPERATION, EVENT_ID}
        fields = self.key if call.body == "key" else [name for name in part.column_names if name not in own]
        encoded = encode_rows(part.select(list(fields)), nan=self.options.nan, constants=self.options.constants)
        return [encoded.rejected[row] if json is None else json for row, json in enumerate(encoded.rows)]

    def _wrap(self, bodies: list[bytes]) -> bytes:
        wrap = self.options.batch.wrap or (None if self.alone else "array")
        if wrap is None:
            return bodies[0]
        if wrap == "ndjson":
            return ndjson(bodies)
        if isinstance(wrap, str):
            return json_array(bodies)
        return b"{%s:%s}" % (orjson.dumps(wrap["key"]), json_array(bodies))

    def _own_headers(self, call: Call, events: list[str]) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if call.body != "none":
            lines = self.options.batch.wrap == "ndjson"
            headers["Content-Type"] = "application/x-ndjson" if lines else "application/json"
        if self.options.idempotency_header is not None:
            together = hashlib.sha256("\n".join(events).encode()).hexdigest()
            headers[self.options.idempotency_header] = events[0] if self.alone else together
        return headers


class _RowError(Exception):
    """A row whose values cannot stand where the templates put them."""


def _addressed(call: Call, body: bytes | str, values: Mapping[str, str | None]) -> tuple[str, dict[str, str]]:
    if isinstance(body, str):
        raise _RowError(body)
    return _path(call.path, values), _headers(call.headers, values)


def _path(template: Template, values: Mapping[str, str | None]) -> str:
    encoded: dict[str, str] = {}
    for field in template.fields:
        value = values[field]
        if not value:
            raise _RowError(f"field {field} is empty and cannot stand in a path")
        encoded[field] = quote(value, safe="")
    path = template.fill(encoded)
    # Clients and servers resolve dot segments, escaped or not: DELETE contacts/.. would be DELETE of the parent.
    if any(unquote(segment) in (".", "..") for segment in path.partition("?")[0].split("/")):
        raise _RowError("a value that resolves to another path")
    return path


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


def plan_of(task: SinkTask, options: HttpOptions) -> tuple[Plan, list[Problem]]:
    """The plan of a task, and everything that is wrong with it; the plan may be used only if nothing is."""
    problems = [*_field_problems(task, options)]
    used = _USED.get(task.mode, {})
    calls: dict[str, Call] = {}
    for operation, name in used.items():
        where = f"sync {task.sync}: options.{name}"
        written = _written(name, task.mode, options)
        if written is None and (options.batch.rows > 1 or task.mode not in (Mode.UPSERT, Mode.MIRROR)):
            expected = "a request that is named, because no default is safe in this mode"
            problems.append(Problem(where, "nothing", expected, f"set options.{name}.method and options.{name}.path"))
            continue
        call = _call(written or _default(name, task), name, options)
        problems += _call_problems(call, name, where, task, alone=options.batch.rows == 1)
        calls[operation] = call
    problems += _unused_problems(task, options, set(used.values()))
    return Plan(calls, task.key, task.mode, options), list(dict.fromkeys(problems))


def _written(name: str, mode: Mode, options: HttpOptions) -> OperationOptions | None:
    own: OperationOptions | None = getattr(options, name)
    shared = options.upsert if name != "delete" and mode in (Mode.UPSERT, Mode.MIRROR) else None
    return own or shared


def _default(name: str, task: SinkTask) -> OperationOptions:
    path = "/".join([task.object, *(f"{{{field}}}" for field in task.key)])
    return OperationOptions(method="DELETE" if name == "delete" else "PUT", path=path)


def _call(written: OperationOptions, name: str, options: HttpOptions) -> Call:
    without = "none" if options.batch.rows == 1 else "key"
    return Call(
        method=written.method,
        path=Template.parse(written.path.lstrip("/")),
        headers=tuple((header, Template.parse(value)) for header, value in written.headers.items()),
        body=written.body or (without if name == "delete" else "fields"),
        deletes=name == "delete",
    )


def _field_problems(task: SinkTask, options: HttpOptions) -> Iterator[Problem]:
    where = f"sync {task.sync}"
    for name in unsupported(task.schema):
        kind = task.schema.field(name).type
        yield Problem(where, f"field {name} of type {kind}", "a type with a JSON form", "cast the column in the model")
    for name in sorted(options.constants.keys() & set(task.schema.names)):
        place = f"{where}: options.constants"
        yield Problem(place, f"{name}, which is a field too", "a name of its own", f"rename or remove {name}")
    if options.results is not None and options.results.by == "id" and len(task.key) != 1:
        found = f"by: id with {len(task.key)} key fields"
        yield Problem(f"{where}: options.results", found, "one key field", "use by: index")


def _call_problems(call: Call, name: str, where: str, task: SinkTask, *, alone: bool) -> Iterator[Problem]:
    yield from _text_problems(call, where)
    known = set(task.key) if name == "delete" else set(task.schema.names)
    for field in sorted(call.fields - known):
        expected = f"one of {', '.join(sorted(known))}"
        yield Problem(where, f"placeholder {{{field}}}", expected, "use the destination field's name")
    for field in sorted(call.fields & known):
        if not is_scalar(task.schema.field(field).type):
            yield Problem(where, f"placeholder {{{field}}}", "a field with one value", "take another field")
    if not alone and call.fields:
        yield Problem(where, "placeholders", "none with batch.rows above 1", "set batch.rows to 1, or remove them")
    if not alone and call.body == "none":
        yield Problem(where, "body: none", "a body that names the rows of a batch", "set body to key or fields")
    missing = [field for field in task.key if field not in call.path.fields]
    addresses_one_row = name in ("update", "delete") or call.method != "POST"
    if alone and addresses_one_row and missing:
        found = f"{call.method} with a path that does not name {', '.join(missing)}"
        expected = "a path with a placeholder for each key field"
        yield Problem(where, found, expected, f"write path: .../{'/'.join(f'{{{field}}}' for field in task.key)}")


def _text_problems(call: Call, where: str) -> Iterator[Problem]:
    path = "".join(call.path.literals)
    segments = "x".join(call.path.literals).partition("?")[0].split("/")
    if not _PATH.fullmatch(path) or "://" in path or any(unquote(segment) in (".", "..") for segment in segments):
        expected = "a relative path, percent-encoded, with {field} placeholders"
        yield Problem(where, "a path that cannot be sent as it is", expected, "correct path")
    for header, template in call.headers:
        if not HEADER_VALUE.fullmatch("x".join(template.literals)) or re.search(r"[{}]", "".join(template.literals)):
            yield Problem(where, f"a value of header {header} that cannot be sent", "printable ASCII", "correct it")


def _unused_problems(task: SinkTask, options: HttpOptions, used: set[str]) -> Iterator[Problem]:
    if options.upsert is not None and used >= {"insert", "update"} and not (options.insert and options.update):
        used = used | {"upsert"}
    for name in ("insert", "update", "upsert", "delete"):
        if getattr(options, name) is not None and name not in used:
            where = f"sync {task.sync}: options.{name}"
            expected = f"only what mode {task.mode.value} sends"
            yield Problem(where, "a request that would never be sent", expected, f"remove options.{name}")
