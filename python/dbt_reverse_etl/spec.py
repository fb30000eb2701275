"""What one sync sends: its fields, filter and mode, resolved against the columns of its changelog."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dbt_reverse_etl.errors import ConfigurationError, Problem
from dbt_reverse_etl.settings import Sync, SyncSettings
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sql import quoted


@dataclass(frozen=True)
class Spec:
    """What of a changelog a destination sees: the filter, the mapped columns, the mode.

    Attributes:
        fields: column, field and Spark type, in order.
        given: the settings that it was made from, before columns were filled in.
    """

    fields: tuple[tuple[str, str, str], ...]
    where: str | None
    mode: Mode
    given: str = ""

    @staticmethod
    def of(text: str) -> Spec:
        """From the JSON that the ledger keeps."""
        read = json.loads(text)
        return Spec(tuple(map(tuple, read["fields"])), read["where"], Mode(read["mode"]), read["given"])

    @property
    def id(self) -> str:
        """The same for every spec that sends the same."""
        return hashlib.sha256(json.dumps([self.fields, self.where, self.mode.value]).encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        return json.dumps({"fields": self.fields, "where": self.where, "mode": self.mode.value, "given": self.given})

    @property
    def projection(self) -> dict[str, Any]:
        """As the text macros take it."""
        return {"fields": [{"column": c, "field": f, "type": t} for c, f, t in self.fields], "where": self.where}

    def struct(self) -> StructType:
        """The destination fields with their Spark types."""
        names = ", ".join(f"{quoted(name)} {kind}" for _, name, kind in self.fields)
        return cast(StructType, StructType.fromDDL(names))

    def arrow_schema(self) -> pa.Schema:
        """The destination fields with their Arrow types."""
        return to_arrow_schema(self.struct())


def given_spec(settings: SyncSettings) -> str:
    """What the settings say of a spec, before columns are filled in; see `Spec.given`."""
    return json.dumps([settings.fields, settings.where, settings.mode.value])


def resolve(spark: SparkSession, sync: Sync, columns: Iterable[tuple[str, str]]) -> Spec:
    """The spec of a sync.

    Args:
        columns: name and Spark type of the changelog's columns.

    Raises:
        ConfigurationError: a field or the filter does not fit them.
    """
    types = dict(columns)
    mapping = sync.settings.fields or {name: name for name in types}
    unknown = [column for column in mapping if column not in types]
    if unknown:
        raise ConfigurationError(
            Problem(
                _place(sync, "fields"),
                ", ".join(unknown),
                f"columns of the changelog: {', '.join(types)}",
                "correct the name (case counts), or add the column to the model",
            )
        )
    fields = tuple((column, name, types[column]) for column, name in mapping.items())
    if sync.settings.where is not None:
        _refuse_bad_filter(spark, sync, sync.settings.where)
    return Spec(fields, sync.settings.where, sync.settings.mode, given_spec(sync.settings))


def _place(sync: Sync, key: str) -> str:
    return f"{sync.file}: {'.'.join(sync.keys)}.{key}"


def _refuse_bad_filter(spark: SparkSession, sync: Sync, where: str) -> None:
    place, expected = _place(sync, "where"), "a deterministic SQL condition over the columns of the changelog"
    try:
        frame = spark.sql(f"select ({where}) as kept from {sync.changelog.relation_name}")  # noqa: S608
    except Exception as error:
        found = f"what Spark cannot resolve ({type(error).__name__})"
        raise ConfigurationError(Problem(place, found, expected, "correct the expression")) from None
    kind = frame.schema["kept"].dataType.simpleString()
    if kind != "boolean" or not _deterministic(frame):
        found = f"an expression of type {kind}, or one that changes by itself"
        raise ConfigurationError(Problem(place, found, expected, "leave out rand(), current_date() and sub-queries"))


def _deterministic(frame: DataFrame) -> bool:
    plan = frame._jdf.queryExecution().analyzed()
    return bool(plan.deterministic()) and "scalar-subquery" not in plan.toString() and "current_" not in plan.toString()
