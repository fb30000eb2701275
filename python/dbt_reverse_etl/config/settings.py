"""What a user may write under `meta.reverse_etl`, and a sync as it comes out of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dbt_reverse_etl.config.condition import unfit
from dbt_reverse_etl.config.guards import Guards, Limit, Threshold
from dbt_reverse_etl.config.validation import Place
from dbt_reverse_etl.sinks.base import Mode, Settings

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Name = Annotated[str, StringConstraints(min_length=1)]  # of a column or a field: `name ` is another one than `name`
Command = Literal["run", "build"]


def _condition(text: str) -> str:
    """A filter that no text around it can be mistaken for."""
    if found := unfit(text):
        raise ValueError(
            f"found {found}; expected one deterministic SQL condition over the columns of the changelog, without comments; "
            "next: correct the expression, or filter in the model"
        )
    return text


Condition = Annotated[Text, AfterValidator(_condition)]

# What a wave holds beside the fields.
OWN_FIELDS = {
    "_key", "_bucket", "_operation", "_event_id", "_before_hash", "_after_hash", "_maybe", "_doubt", "_changed", "_asked_by",
    "_captured_at", "_before",
}  # fmt: skip


# Spark puts the value of such a variable into SQL, also in a name in quotes.
VARIABLE = re.compile(r"\$\{[^ \t\n\x0b\f\r]+?\}")


def _mapping(fields: object) -> object:
    """A list names fields that are called as their columns."""
    if isinstance(fields, list) and all(isinstance(name, str) for name in fields):
        if len({name.casefold() for name in fields}) < len(fields):
            raise PydanticCustomError("fields", "each column once")
        return {name: name for name in fields}
    if fields is not None and not isinstance(fields, Mapping):
        raise PydanticCustomError("fields", "a list of columns, or a mapping of columns to fields")
    return fields


class SyncSettings(Settings):
    """One sync: an exposure's `meta.reverse_etl`.

    Attributes:
        destination: a name under the dbt target in `profiles.yml`.
        object: table, folder or endpoint there.
        mode: what a push may do there.
        fields: `column: field`, or a list of columns; the key must be included. Default: every column under its own name.
        where: a SQL condition over the columns that always gives the same result for the same row. Sub-queries, comments, `;`
            and functions such as `rand()` or `current_date()` are refused. After another body of a function of yours: `resync`.
        guards: limits of a push; a key that is not set is taken from the destination.
        on_unknown: a row is unknown if nobody can tell whether it arrived: send it again, or park it until `dbt-reverse-etl retry`.
        push_on: dbt commands that push; any other only plans. `dbt retry` counts as the command that it retries.
        owns_object: every row of the object belongs to this sync, so that the object may be replaced as a whole. Needs `mode: mirror`.
        full_load_above: with `owns_object`: replace the object if more rows changed than this number, or share of the model's rows.
        renamed_from: former name of the exposure, whose position is taken over; the first one after several renames; `project.name` if the project was renamed too.
        options: those of the type of destination.
    """

    destination: Text
    object: Text
    mode: Mode = Mode.UPSERT
    fields: Annotated[dict[Name, Name] | None, BeforeValidator(_mapping)] = None
    where: Condition | None = None
    guards: Guards = Guards()
    push_on: frozenset[Command] = frozenset({"run", "build"})
    on_unknown: Literal["send_again", "park"] = "send_again"
    owns_object: bool = False
    full_load_above: Limit = Threshold(Decimal(25), percent=True)
    renamed_from: Text | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _owns(self) -> SyncSettings:
        if self.owns_object and self.mode is not Mode.MIRROR:
            found = (
                f"found owns_object in mode {self.mode.value}; expected mode: mirror, as only a mirror owns every row"
            )
            raise PydanticCustomError("owns_object", f"{found}; next: set mode: mirror, or remove owns_object")
        return self

    @field_validator("fields")
    @classmethod
    def _unambiguous(cls, fields: dict[str, str] | None) -> dict[str, str] | None:
        if fields is None:
            return None
        for names in (fields.keys(), fields.values()):
            if not names or len({name.casefold() for name in names}) < len(names):
                raise PydanticCustomError("fields", "at least one column, and each column and each field once")
        if OWN_FIELDS & {name.casefold() for name in fields.values()}:
            raise PydanticCustomError("fields", f"fields with other names than {', '.join(sorted(OWN_FIELDS))}")
        if any(VARIABLE.search(name) for name in fields.values()):
            raise PydanticCustomError("fields", "fields without ${...} in their names, which Spark replaces")
        return fields


class Capture(Settings):
    """A full compare in each capture."""

    strategy: Literal["compare"] = "compare"


class Candidates(Settings):
    """For every strategy but `compare` and `feed`.

    Attributes:
        full_compare_every: every Nth capture is a full compare.
        on_drift: what happens if the full compare finds changes that the strategy missed.
        recapture_by: columns: if a row changed, all rows with the same values are compared.
        full_above: compare everything if the strategy proposes more than this share of the rows.
    """

    full_compare_every: Annotated[int, Field(ge=1)] | None = None
    on_drift: Literal["warn", "fail"] = "warn"
    recapture_by: Text | list[Text] | None = None
    full_above: Annotated[float, Field(gt=0, le=1)] = 0.25


class TimestampCapture(Candidates):
    """Rows that are at least as new as the newest row that was read.

    Attributes:
        updated_at: column that every change of a row sets.
        overlap: how far behind the newest value the next capture reads again: an interval, or a number if the column is a number.
        deleted: boolean column; true deletes the row. The changelog does not keep the column.
    """

    strategy: Literal["timestamp"]
    updated_at: Text
    overlap: Text | int | None = None
    deleted: Text | None = None


class ChangeTableCapture(Candidates):
    """Keys that triggers logged.

    Attributes:
        table: the log, one of the model's dependencies: a name, or `source.table`.
        sequence: column of the log that grows, of whole numbers.
        overlap: the last values of the sequence that are read again.
        key: column of `unique_key` -> column of the log, where the names differ.
    """

    strategy: Literal["change_table"]
    table: Text
    sequence: Text
    overlap: Annotated[int, Field(ge=0)] = 1000
    key: dict[Text, Text] | None = None


class CdfCapture(Candidates):
    """The change data feed of a Delta table.

    Attributes:
        table: the Delta table, one of the model's dependencies: a name, or `source.table`.
        key: column of `unique_key` -> column of the table, where the names differ.
    """

    strategy: Literal["cdf"]
    table: Text
    key: dict[Text, Text] | None = None


class AffectedKeysCapture(Candidates):
    """The keys of a wide table that the changed rows of its tables lead to.

    Attributes:
        recompute: `full`: always compare everything. `affected`: the model's own SQL around `wide_table()` still makes each
            row from the row with the same key alone.
    """

    strategy: Literal["affected_keys"]
    recompute: Literal["full", "affected"] | None = None


class FeedCapture(Settings):
    """The model returns changes, not rows.

    Attributes:
        operation: column with the operation.
        sequence: column that orders the changes of a key.
        operations: the words of `operation`, if they are not among the known ones.
        overlap: how far behind the newest value of the sequence the next capture reads again: an interval, or a number.
    """

    strategy: Literal["feed"]
    operation: Text
    sequence: Text
    operations: dict[Literal["upsert", "delete", "ignore"], list[Text]] | None = None
    overlap: Text | int | None = None


class OwnCapture(Candidates):
    """A macro `capture_<strategy>` of your project; its options are its own.

    Attributes:
        strategy: name of the macro, without `capture_`.
    """

    model_config = ConfigDict(extra="allow")

    strategy: Text


_STRATEGIES = ("compare", "timestamp", "change_table", "cdf", "affected_keys", "feed")


def _short_for(key: str) -> BeforeValidator:
    """`capture: compare` is short for `capture: {strategy: compare}`."""
    return BeforeValidator(lambda given: {key: given} if isinstance(given, str) else given)


def _strategy(capture: object) -> str:
    found = capture.get("strategy") if isinstance(capture, Mapping) else getattr(capture, "strategy", None)
    return found if found in _STRATEGIES else "own"


AnyCapture = Annotated[
    Annotated[Capture, Tag("compare")]
    | Annotated[TimestampCapture, Tag("timestamp")]
    | Annotated[ChangeTableCapture, Tag("change_table")]
    | Annotated[CdfCapture, Tag("cdf")]
    | Annotated[AffectedKeysCapture, Tag("affected_keys")]
    | Annotated[FeedCapture, Tag("feed")]
    | Annotated[OwnCapture, Tag("own")],
    Discriminator(_strategy),
    _short_for("strategy"),
]


class Label(Settings):
    """Business snapshots: to which one a changed row belongs.

    Attributes:
        by: SQL over the columns of the changelog; its values sort as text.
        grace: interval for which the rows of a later label wait, counted from the time of its first row.
        at: SQL for the time of a row; required with `grace`.
        late: a row of a closed label: fail the capture, or use the open label.
    """

    by: Text
    grace: Text | None = None
    at: Text | None = None
    late: Literal["fail", "open"] = "fail"

    @model_validator(mode="after")
    def _both_or_neither(self) -> Label:
        if (self.grace is None) != (self.at is None):
            raise PydanticCustomError("label", "grace and at, both or neither")
        return self


class ChangelogSettings(Settings):
    """A changelog model's `meta.reverse_etl`; the macros read the same keys with the same defaults.

    Attributes:
        compare: compare rows by a stored hash, or by SQL `EXCEPT`.
        capture: compare all keys, or only those that a strategy proposes.
        label: business snapshots: SQL over the columns, or a mapping.
        on_bad_key: NULL or duplicate keys: fail the model, or keep the rows out and list the keys in the header.
        on_column_change: added and dropped columns. Unless `fail`, wider types are adopted in place.
        wide_table: the tables that `wide_table()` joins.
        publish: name of a view that shows the newest snapshot that passed its tests.
    """

    compare: Literal["hash", "except"] = "hash"
    capture: AnyCapture = Capture()
    label: Annotated[Label | None, _short_for("by")] = None
    on_bad_key: Literal["fail", "quarantine"] = "fail"
    on_column_change: Literal["fail", "append_new_columns", "sync_all_columns"] = "append_new_columns"
    wide_table: dict[str, Any] | None = None  # read and checked by the macro _wide_plan
    publish: str | None = Field(None, min_length=1)


@dataclass(frozen=True)
class Changelog:
    """A model that is materialized as a changelog; `relation_name`: as dbt renders it into SQL; `key`: the columns of `unique_key`."""

    unique_id: str
    name: str
    relation_name: str
    key: tuple[str, ...]
    settings: ChangelogSettings


@dataclass(frozen=True)
class Sync:
    """An exposure that names a destination.

    Attributes:
        enabled: False for an exposure that is switched off; it is never pushed.
        file: where it is written, for messages.
    """

    unique_id: str
    name: str
    tags: tuple[str, ...]
    enabled: bool
    changelog: Changelog
    settings: SyncSettings
    file: str

    @property
    def position_of(self) -> str:
        """The unique id of the exposure under which the ledger keeps its position: its own, or its former one."""
        kind, project, name = self.unique_id.split(".")
        former_project, _, former = (self.settings.renamed_from or name).rpartition(".")
        return f"{kind}.{former_project or project}.{former}"

    @property
    def place(self) -> Place:
        """Where its settings are written."""
        return Place(self.file, (self.name, "config", "meta", "reverse_etl"))
