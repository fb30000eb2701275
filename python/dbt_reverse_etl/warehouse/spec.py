"""What one sync sends: its fields, filter and mode, resolved against the columns of its changelog."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa
from pydantic import TypeAdapter
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from dbt_reverse_etl.base.errors import mistake
from dbt_reverse_etl.base.sql import quoted, value_of
from dbt_reverse_etl.config.condition import OF_SESSION, calls_session, quoted_texts, says_day, without_texts
from dbt_reverse_etl.config.settings import OWN_FIELDS, Sync, SyncSettings
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.values.spark_types import arrow_type
from dbt_reverse_etl.warehouse.zone import depends, reads_time, zone_of

# A join takes a condition only where it is boolean and deterministic, and over rows alone: neither aggregates nor windows.
_REFUSED = {
    "JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE": "an expression that is no condition",
    "INVALID_NON_DETERMINISTIC_EXPRESSIONS": "an expression that changes by itself",
}
_SUB_QUERY = re.compile(r"(scalar-subquery|exists|list)#\d+ \[")
_OF_SESSION = re.compile(OF_SESSION + r"\(")  # as a plan shows a call


@dataclass(frozen=True)
class Spec:
    """What of a changelog a destination sees: the filter, the mapped columns, the mode.

    Attributes:
        fields: column, field and Spark type, in order.
        given: the settings that it was made from, before columns were filled in.
        zone: of the session, if the filter depends on it.
        key_form, key_place: see `Sink.key_form` and `Sink.key_place`; None: an older version did not keep it.
        stopped: fields that earlier specs sent: the destination holds values of them that are no longer kept up.
        turn: how many specs came before: one that comes again after another one needs ids of its own for the same changes.
    """

    fields: tuple[tuple[str, str, str], ...]
    where: str | None
    mode: Mode
    given: str = ""
    stopped: tuple[str, ...] = ()
    zone: str = ""
    turn: int = 0
    key_form: str | None = field(default=None, compare=False)
    key_place: str | None = field(default=None, compare=False)

    @staticmethod
    def of(text: str) -> Spec:
        """From the JSON that the ledger keeps."""
        return _SPEC.validate_json(text)

    @property
    def id(self) -> str:
        """The same for every spec that sends the same, in the same turn."""
        more = [one for one in (self.stopped, self.zone, self.turn) if one]
        said = [self.fields, self.where, self.mode.value, *more]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        always = ("fields", "where", "mode", "given")
        return json.dumps({name: value for name, value in vars(self).items() if value or name in always})

    @property
    def projection(self) -> dict[str, Any]:
        """As the text macros take it."""
        return {"fields": [{"column": c, "field": f, "type": t} for c, f, t in self.fields], "where": self.where}

    @property
    def names(self) -> set[str]:
        """The fields by their names at the destination."""
        return {name for _, name, _ in self.fields}

    def key(self, columns: Iterable[str]) -> tuple[str, ...]:
        """The key's columns by their names at the destination."""
        names = {column: name for column, name, _ in self.fields}
        return tuple(names.get(column, column) for column in columns)

    def after(self, earlier: Iterable[Spec]) -> Spec:
        """This spec in its turn, and what it stops: the fields of earlier ones that it does not send."""
        earlier = [*earlier]
        sent = {name for spec in earlier for name in (*spec.names, *spec.stopped)}
        turn = max((spec.turn for spec in earlier), default=0)
        mine = replace(self, stopped=tuple(sorted(sent - self.names)), turn=turn)
        goes_on = not earlier or any(spec.id == mine.id and not mine.moves_keys(spec) for spec in earlier)
        return mine if goes_on else replace(mine, turn=turn + 1)

    def seen_by(self, other: Spec) -> Spec:
        """This spec with the fields that another one sends, too: what differs in others is nothing that the other one would send."""
        return replace(self, fields=tuple(field for field in self.fields if field[1] in other.names))

    def sends_all_after(self, earlier: Spec) -> bool:
        """Whether the destination may hold something else than the rows of the earlier one: its mode sent only some operations, or events
        in place of rows, some of its fields paused, or its keys were in other places.
        """
        if self.mode is Mode.INSERT_ONLY:
            return False
        partial = {Mode.INSERT_ONLY, Mode.UPDATE_ONLY} - {self.mode}
        is_other_form = Mode.CHANGELOG in {self.mode} ^ {earlier.mode}
        return earlier.mode in partial or is_other_form or self.resumes(earlier) or self.moves_keys(earlier)

    def moves_keys(self, earlier: Spec) -> bool:
        """Whether keys have other places in the object than by the earlier spec, as far as it was kept."""
        return earlier.key_place is not None and self.key_place != earlier.key_place

    def resumes(self, earlier: Spec) -> bool:
        """Whether it sends a field that was stopped, has another type, or another case in its name: no image, and no hash, tells what the
        destination holds of it.
        """
        types = {name: kind for _, name, kind in earlier.fields}
        changed = (types.get(name, kind) != kind and not _is_same(kind, types[name]) for _, name, kind in self.fields)
        written = {name.casefold() for name in earlier.names - self.names}
        other_case = any(name.casefold() in written for name in self.names - earlier.names)
        return any(changed) or other_case or not self.names.isdisjoint(earlier.stopped)

    def struct(self) -> StructType:
        """The destination fields with their Spark types."""
        names = ", ".join(f"{quoted(name)} {kind}" for _, name, kind in self.fields)
        return cast(StructType, StructType.fromDDL(names))

    def arrow_schema(self) -> pa.Schema:
        """The destination fields with their Arrow types."""
        return pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in self.struct()])


_SPEC = TypeAdapter(Spec)


def _is_same(kind: str, than: str) -> bool:
    """Whether values of the narrower type arrive as they do in the wider one: 0.1 as a float is no 0.1 as a double."""
    return than != "float" and bool(value_of("_is_wider", kind, than))


def given_spec(settings: SyncSettings) -> str:
    """What the settings say of a spec, before columns are filled in; see `Spec.given`."""
    return json.dumps([settings.fields, settings.where, settings.mode.value])


def resolve(spark: SparkSession, sync: Sync, columns: Iterable[tuple[str, str]]) -> Spec:
    """The spec of a sync. `columns`: name and Spark type of the changelog's columns. Raises ConfigurationError: a field or the filter does not fit them."""
    types = dict(columns)
    mapping = sync.settings.fields or {name: name for name in types}
    unknown = [column for column in mapping if column not in types]
    if unknown:
        found, expected = ", ".join(map(repr, unknown)), f"columns of the changelog: {', '.join(types)}"
        next_step = "correct the name (case and blanks count), or add the column to the model"
        raise mistake(sync.place.at("fields"), found, expected, next_step)
    # Only an event has `_before` beside the fields; the other names are refused as columns of a model.
    own = [name for name in mapping.values() if name.casefold() in OWN_FIELDS and sync.settings.mode is Mode.CHANGELOG]
    if own:
        expected = "names that no event has beside its fields"
        next_step = "map it to another name under `fields`, or rename the column in the model"
        raise mistake(sync.place.at("fields"), ", ".join(own), expected, next_step)
    fields = tuple((column, name, types[column]) for column, name in mapping.items())
    zone = "" if sync.settings.where is None else _zone_of_filter(spark, sync, sync.settings.where, types)
    spec = Spec(fields, sync.settings.where, sync.settings.mode, given_spec(sync.settings), zone=zone)
    try:
        spec.arrow_schema()
    except TypeError as error:
        next_step = "cast the column in the model, or leave it out of `fields`"
        raise mistake(sync.place.at("fields"), str(error), "columns that can be sent", next_step) from None
    return spec


def _zone_of_filter(spark: SparkSession, sync: Sync, where: str, types: Mapping[str, str]) -> str:
    """The time zone on which it depends, or an empty text. Raises ConfigurationError: it is no condition over the row alone."""
    zone = zone_of(spark)
    place, expected = sync.place.at("where"), "a deterministic SQL condition over the columns of the changelog"
    analyzed = ""
    try:
        analyzed = _analyzed(spark, where, tuple(types.items()), zone)
        found = _changes_by_itself(where, analyzed, types)
    except PySparkException as error:
        found = _REFUSED.get(error.getCondition() or "", f"what Spark cannot resolve ({type(error).__name__})")
    if found:
        next_step = "correct the expression; leave out rand(), current_date(), sub-queries, and 'today' or 'now' beside a date or a time"
        raise mistake(place, found, expected, next_step) from None
    return zone if depends(where, analyzed, types) else ""


@lru_cache(maxsize=256)  # asked before the capture and before the push
def _analyzed(spark: SparkSession, where: str, types: tuple[tuple[str, str], ...], zone: str) -> str:  # noqa: ARG001  (it may change)
    """The filter as Spark understands it. Asked without a table, and without a JVM of this process.

    Raises:
        PySparkException: the filter is no condition of a join over these columns.
    """
    columns = ", ".join(f"cast(null as {kind}) as {quoted(name)}" for name, kind in types)
    query = f"select * from (select {columns}) join (select 1 as _one) on ({where})"  # noqa: S608
    _ = spark.sql(query).schema  # EXPLAIN would tell an error as its result
    plan = str(spark.sql(f"explain extended {query}").collect()[0][0])
    return plan.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]


def _changes_by_itself(where: str, analyzed: str, types: Mapping[str, str]) -> str:
    """What of the filter depends on more than the row; an empty text: nothing."""
    if _SUB_QUERY.search(analyzed):
        return "a sub-query"
    # A column may have the name `User(ID)`, and a text be `now()`: the plan shows both without quotes.
    shown = [part for name, kind in types.items() for part in (kind.replace("`", ""), f"{name}#", f"{name}: ")]
    for text in (part for part in shown if "(" in part):
        analyzed = analyzed.replace(text, "")
    reads_day = says_day(where) and reads_time(analyzed, types)
    for text in filter(_OF_SESSION.search, quoted_texts(where)):
        analyzed = analyzed.replace(text, "", 1)
    # Of a function with many arguments the plan shows the first 25; the filter shows all, but not that `current_date` is a function.
    is_called = calls_session(without_texts(where)) or _OF_SESSION.search(analyzed)
    return "an expression that depends on the time or on the session" if reads_day or is_called else ""
