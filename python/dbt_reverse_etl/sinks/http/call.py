"""The request of one operation as it is written, and what the rows of it become: body, path, headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa

from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION
from dbt_reverse_etl.sinks.http.body import BodyTemplate
from dbt_reverse_etl.sinks.http.options import HttpOptions, ResultsOptions, SuccessOptions
from dbt_reverse_etl.sinks.http.settings import HEADER_VALUE
from dbt_reverse_etl.sinks.refusals import nan_keys
from dbt_reverse_etl.values.encoding import Encoded, encode_rows, texts

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


class RowError(Exception):
    """A row whose values cannot stand where the templates put them."""


@dataclass(frozen=True)
class Template:
    """Text with `{field}` placeholders: literals[0] fields[0] literals[1] ..."""

    literals: tuple[str, ...]
    fields: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> Template:
        parts = _PLACEHOLDER.split(text)
        return Template(tuple(parts[::2]), tuple(parts[1::2]))

    def fill(self, values: Mapping[str, str | None], place: str, write: Callable[[str], str] = str) -> str:
        """Raises RowError where a value is empty."""
        text = self.literals[0]
        for field, literal in zip(self.fields, self.literals[1:], strict=True):
            value = values[field]
            if not value:
                raise RowError(f"field {field} is empty and cannot stand in a {place}")
            text += write(value) + literal
        return text


@dataclass(frozen=True)
class Call:
    """The request of one operation."""

    method: str
    path: Template
    headers: tuple[tuple[str, Template], ...]
    body: str
    deletes: bool
    rows: int = 1  # most of one request; 1 sends each alone
    template: BodyTemplate | None = None  # writes the body instead of `body`
    success: SuccessOptions | None = None  # when an answer acknowledges; None: by that of the sync
    results: ResultsOptions | None = None  # where an answer speaks of each row

    @property
    def alone(self) -> bool:
        """Single-row mode."""
        return self.rows == 1

    @property
    def is_of_one_row(self) -> bool:
        """The request is about a single row, as is the status of its answer; not one to an endpoint of batches."""
        template = self.template
        names_it = template is None or not template.is_of_batches or {*template.key} <= {*self.path.fields}
        return self.alone and names_it

    @property
    def by_id(self) -> bool:
        """The answer names rows by their only key field."""
        return self.results is not None and self.results.by == "id"

    @cached_property
    def fields(self) -> frozenset[str]:
        """The fields that its placeholders name."""
        templates = (self.path, *(value for _, value in self.headers))
        return frozenset(field for template in templates for field in template.fields)

    @cached_property
    def fixed(self) -> tuple[str, list[str]]:
        """Path and header values where no row has a say in them."""
        return _path(self.path, {}), _headers(self.headers, {})


class Ready(NamedTuple):
    """One row, ready to go into a request."""

    operation: str  # names the call
    event: str
    body: bytes
    address: tuple[str, list[str]] | None  # path and header values; None: the call's own
    id: str  # its only key field as text, where the answer speaks of rows by id


def ready(operation: str, call: Call, rows: pa.Table, key: tuple[str, ...], options: HttpOptions) -> list[Ready | str]:
    """What each row becomes, or as text the reason why it cannot be sent; cheaper by the row for many at once."""
    bodies = _bodies(call, rows, key, options)
    addresses = _addresses(call, rows, bodies.rejected)
    ids = texts(rows.column(key[0])) if call.by_id else [""] * rows.num_rows
    events = rows.column(EVENT_ID).to_pylist()
    found: list[Ready | str] = [
        Ready(operation, event, body or b"", address, id_ or "")
        for event, body, address, id_ in zip(events, bodies.rows, addresses, ids, strict=True)
    ]
    for row, reason in bodies.rejected.items():
        found[row] = reason
    return found


def _addresses(call: Call, rows: pa.Table, refused: dict[int, str]) -> list[tuple[str, list[str]] | None]:
    """Path and header values of each row; the reasons of those that cannot be addressed go into `refused`."""
    found: list[tuple[str, list[str]] | None] = [None] * rows.num_rows
    named = {field: texts(rows.column(field)) for field in call.fields}
    for row in range(rows.num_rows) if named else ():
        values = {field: column[row] for field, column in named.items()}
        try:
            found[row] = _path(call.path, values), _headers(call.headers, values)
        except RowError as problem:
            refused.setdefault(row, str(problem))
    return found


def _bodies(call: Call, rows: pa.Table, key: Sequence[str], options: HttpOptions) -> Encoded:
    if call.body == "none":
        return Encoded([b""] * rows.num_rows, {})
    own = {OPERATION, EVENT_ID}
    fields = key if call.body == "key" else [name for name in rows.column_names if name not in own]
    encoded = encode_rows(rows.select(list(fields)), nan=options.nan, constants=options.constants)
    return Encoded(encoded.rows, encoded.rejected | nan_keys(rows, key, as_null=options.nan == "null"))


def _path(template: Template, values: Mapping[str, str | None]) -> str:
    path = template.fill(values, "path", partial(quote, safe=""))
    if resolves_elsewhere(path):
        raise RowError("a value that resolves to another path")
    return path


def resolves_elsewhere(path: str) -> bool:
    """Whether an encoded path has a dot segment, for a server that decodes before it normalises as for any other.

    DELETE contacts/..%2Faccounts%2F5 would there be DELETE of an account.
    """
    return not {".", ".."}.isdisjoint(re.split(r"[/\\]", unquote(path.partition("?")[0])))


def _headers(templates: tuple[tuple[str, Template], ...], values: Mapping[str, str | None]) -> list[str]:
    headers: list[str] = []
    for name, template in templates:
        text = template.fill(values, "header")
        if not HEADER_VALUE.fullmatch(text):
            wanted = "printable ASCII only, without spaces at its ends"
            raise RowError(f"a value that cannot stand in header {name}: {wanted}")
        headers.append(text)
    return headers
