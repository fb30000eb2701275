"""From rows to HTTP requests. Pure: calls and rows become requests; `plan` makes the calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.sinks.base import OPERATION, Mode
from dbt_reverse_etl.sinks.http.answer import Answer, Sent
from dbt_reverse_etl.sinks.http.body import BodyError
from dbt_reverse_etl.sinks.http.call import Call, Ready, ready
from dbt_reverse_etl.sinks.http.options import HttpOptions


@dataclass(frozen=True)
class Request:
    """One request, ready to send."""

    method: str
    path: str  # percent-encoded, relative to the base URL
    headers: dict[str, str]
    body: bytes | None = None
    event: str = ""  # id of the change, or of the changes together; stable over retries
    rows: tuple[int, ...] = ()  # indexes in the batch of those that it carries
    sent: Sent = field(default_factory=partial(Sent, 0))  # what its answer is judged by


_Numbered = tuple[int, Ready]  # a row by its number in the batch


@dataclass(frozen=True)
class Plan:
    """How one sync speaks to its endpoint: operation -> call."""

    calls: Mapping[str, Call]
    key: tuple[str, ...]
    mode: Mode
    options: HttpOptions

    @cached_property
    def _names(self) -> dict[str, str]:
        """Each operation -> the first one with the same call, with which it shares requests."""
        return {
            operation: next(first for first in self.calls if self.calls[first] == call)
            for operation, call in self.calls.items()
        }

    def prepare(self, rows: pa.Table) -> list[Ready | str]:
        """What each row becomes in a request of its operation, or as text the reason why it cannot be sent."""
        operations = rows.column(OPERATION)
        by_name: dict[str, list[str]] = {}
        for operation in operations.unique().to_pylist():
            by_name.setdefault(self._names.get(operation, operation), []).append(operation)
        if len(by_name) == 1:
            return self._ready(next(iter(by_name)), rows)
        found: list[Ready | str] = [""] * rows.num_rows
        for name, some in by_name.items():
            indexes = pc.indices_nonzero(pc.is_in(operations, pa.array(some, operations.type)))
            for index, entry in zip(indexes.to_pylist(), self._ready(name, rows.take(indexes)), strict=True):
                found[index] = entry
        return found

    def _ready(self, name: str, rows: pa.Table) -> list[Ready | str]:
        call = self.calls.get(name)
        if call is None:
            return [f"the mode of this sync has no {name}"] * rows.num_rows
        return ready(name, call, rows, self.key, self.options)

    def requests(self, prepared: Sequence[Ready | str]) -> tuple[list[Request], dict[int, str]]:
        """The requests of one batch, and the rows that cannot be sent with their reasons.

        Deletes go first: they may free a unique value that another row of the batch takes.
        """
        by_name: dict[str, list[_Numbered]] = {}
        refused: dict[int, str] = {}
        for index, entry in enumerate(prepared):
            if isinstance(entry, str):
                refused[index] = entry
            else:
                by_name.setdefault(entry.operation, []).append((index, entry))
        requests: list[Request] = []
        for name in sorted(by_name, key=lambda name: not self.calls[name].deletes):
            call, rows = self.calls[name], by_name[name]
            for start in range(0, len(rows), call.rows):
                requests += self._requests(call, rows[start : start + call.rows], refused)
        return requests, refused

    def instead(self, request: Request, answer: Answer, rows: pa.Table) -> Request | None:
        """The other request of an upsert, where the answer says that the row exists already, or that it does not."""
        if not request.sent.alone or request.sent.deletes or self.mode not in (Mode.UPSERT, Mode.MIRROR):
            return None
        (index,) = request.rows
        status = answer.status
        operation = rows.column(OPERATION)[index].as_py()
        if operation == "insert":
            other, says = "update", self.options.already_exists_at(request.path, answer.body)
        else:
            other, says = "insert", self.options.missing_at(request.path, answer.body)
        call = self.calls[other]
        if status not in says or status in self.options.retryable or call == self.calls[operation] or not call.alone:
            return None
        (entry,) = ready(other, call, rows.slice(index, 1), self.key, self.options)
        if isinstance(entry, str):
            return None
        # Another request needs another id: the destination may remember the first one together with its answer.
        event = hashlib.sha256(f"{entry.event}\n{other}".encode()).hexdigest()
        return next(self._requests(call, [(index, entry._replace(event=event))], {}), None)

    def _requests(self, call: Call, rows: list[_Numbered], refused: dict[int, str]) -> Iterator[Request]:
        """One request; or several, where the rows are too large together or one of them breaks the template."""
        try:
            body = self._body(call, [row.body for _, row in rows])
        except BodyError as problem:
            if len(rows) == 1:
                refused[rows[0][0]] = str(problem)
                return
            half = len(rows) // 2
            yield from self._requests(call, rows[:half], refused)
            yield from self._requests(call, rows[half:], refused)
        else:
            yield self._request(call, rows, body)

    def _body(self, call: Call, bodies: list[bytes]) -> bytes | None:
        if call.template is not None:
            body = call.template.render(bodies, alone=call.alone)
        elif call.body == "none":
            return None
        else:
            body = self._wrap(bodies, alone=call.alone)
        limit = self.options.batch.max_bytes
        if limit is not None and len(body) > limit:
            raise BodyError("a body larger than batch.max_bytes")
        return body

    def _request(self, call: Call, rows: list[_Numbered], body: bytes | None) -> Request:
        first = rows[0][1]
        event = first.event
        if not call.alone:
            event = hashlib.sha256("\n".join(row.event for _, row in rows).encode()).hexdigest()
        path, headers = first.address or call.fixed
        written = {name: value for (name, _), value in zip(call.headers, headers, strict=True)}
        ids = tuple(row.id for _, row in rows) if call.by_id else ()
        return Request(
            method=call.method,
            path=path,
            headers=self._own_headers(body, event, written),
            body=body,
            event=event,
            rows=tuple(index for index, _ in rows),
            sent=Sent(len(rows), ids, call.deletes, call.is_of_one_row, path, call.success, call.results),
        )

    def _wrap(self, bodies: list[bytes], *, alone: bool) -> bytes:
        wrap = self.options.batch.wrap or (None if alone else "array")
        if wrap is None:
            return bodies[0]
        if wrap == "ndjson":
            return b"\n".join([*bodies, b""])
        array = b"[%s]" % b",".join(bodies)
        return array if isinstance(wrap, str) else b"{%s:%s}" % (orjson.dumps(wrap["key"]), array)

    def _own_headers(self, body: bytes | None, event: str, written: Mapping[str, str]) -> dict[str, str]:
        """What each request says, unless the sync's own headers say it."""
        headers = {"Accept": "application/json"}
        if body is not None:
            lines = self.options.batch.wrap == "ndjson"
            headers["Content-Type"] = "application/x-ndjson" if lines else "application/json"
        if self.options.idempotency_header is not None:
            headers[self.options.idempotency_header] = event
        return headers | dict(written)  # the transport knows a header in any case, and takes the last
