"""What a user may write under `meta.reverse_etl`, and a sync as it comes out of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, StringConstraints, field_validator
from pydantic_core import PydanticCustomError

from dbt_reverse_etl.sinks.base import Mode, Settings

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Command = Literal["run", "build"]

# What a wave holds beside the fields.
_OWN_FIELDS = {
    "_key", "_bucket", "_operation", "_event_id", "_before_hash", "_after_hash", "_maybe", "_doubt", "_changed",
}  # fmt: skip

_THRESHOLD = re.compile(r"([0-9]{1,18})|([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%")


@dataclass(frozen=True)
class Threshold:
    """A number of rows, or a share of them in percent.

    Attributes:
        number: rows, or percent.
        percent: which of the two.
    """

    number: Decimal
    percent: bool

    def rows_of(self, total: int) -> int:
        """The most rows that are allowed where `total` rows stand; a fraction of a row is not allowed."""
        return int(self.number * total / 100) if self.percent else int(self.number)

    def __str__(self) -> str:
        return f"{self.number}%" if self.percent else str(self.number)

    @staticmethod
    def parse(value: object) -> Threshold:
        """From `500` or `"10%"`. Raises a pydantic error for anything else: 0.1 could mean either."""
        if isinstance(value, Threshold):
            return value
        written = str(value).strip() if isinstance(value, str | int) else ""
        match = _THRESHOLD.fullmatch(written)
        if match is None:
            raise PydanticCustomError("threshold", "a number of rows such as 500, or a share such as 10%")
        return Threshold(Decimal(match[1] or match[2]), percent=match[2] is not None)


Limit = Annotated[Threshold, PlainValidator(Threshold.parse), PlainSerializer(str)]


class Guards(Settings):
    """What stops a push before its first send; None means no such guard.

    A sync's own value wins over its destination's, a null that is written there included.
    """

    max_deletes: Limit | None = None
    max_changes: Limit | None = None

    @field_validator("max_deletes")
    @classmethod
    def _reachable(cls, limit: Threshold | None) -> Threshold | None:
        if limit and limit.percent and limit.number > 100:
            raise PydanticCustomError("threshold", "at most 100%: more rows than there are cannot be deleted")
        return limit

    def over(self, defaults: Guards) -> Guards:
        """These guards, and the defaults where nothing is written."""
        return defaults.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


def _mapping(fields: object) -> object:
    """A list names fields that are called as their columns."""
    if isinstance(fields, list) and all(isinstance(name, str) for name in fields):
        if len({name.casefold() for name in fields}) < len(fields):
            raise PydanticCustomError("fields", "each column once")
        return {name: name for name in fields}
    return fields


class SyncSettings(Settings):
    """One sync, as an exposure's `meta.reverse_etl` says it.

    Attributes:
        destination: a name of profiles.yml.
        object: table, path or endpoint of that destination.
        mode: what may be done there.
        fields: column -> destination field, in order; None: every column under its own name.
        where: a deterministic filter in SQL, or None.
        guards: the sync's own; `Guards.over` joins the destination's.
        on_unknown: what becomes of a row when nobody knows whether the destination took it.
        push_on: the dbt commands after which it is pushed; any other only plans.
        renamed_from: the exposure's former name, whose position it takes over.
        options: what the sink's `options_model` allows.
    """

    destination: Text
    object: Text
    mode: Mode = Mode.UPSERT
    fields: Annotated[dict[Text, Text] | None, BeforeValidator(_mapping)] = None
    where: Text | None = None
    guards: Guards = Guards()
    push_on: frozenset[Command] = frozenset({"run", "build"})
    on_unknown: Literal["send_again", "park"] = "send_again"
    renamed_from: Text | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("fields")
    @classmethod
    def _unambiguous(cls, fields: dict[str, str] | None) -> dict[str, str] | None:
        if fields is None:
            return None
        for names in (fields.keys(), fields.values()):
            if not names or len({name.casefold() for name in names}) < len(names):
                raise PydanticCustomError("fields", "at least one column, and each column and each field once")
        if _OWN_FIELDS & {name.casefold() for name in fields.values()}:
            raise PydanticCustomError("fields", f"fields with other names than {', '.join(sorted(_OWN_FIELDS))}")
        return fields


def _strategy(capture: object) -> object:
    """`capture: compare` is short for `capture: {strategy: compare}`."""
    if isinstance(capture, Mapping) and set(capture) == {"strategy"}:
        return capture["strategy"]
    return capture


class ChangelogSettings(Settings):
    """What a changelog model's `meta.reverse_etl` says; the macros read the same keys with the same defaults."""

    compare: Literal["hash", "except"] = "hash"
    capture: Annotated[Literal["compare"], BeforeValidator(_strategy)] = "compare"
    on_bad_key: Literal["fail", "quarantine"] = "fail"
    on_column_change: Literal["fail", "append_new_columns", "sync_all_columns"] = "append_new_columns"


@dataclass(frozen=True)
class Changelog:
    """A model that is materialized as a changelog.

    Attributes:
        unique_id: dbt's.
        name: the model's name.
        alias: the name of its relation.
        relation_name: as dbt renders it into SQL.
        key: the columns of `unique_key`, in order.
        settings: its `meta.reverse_etl`.
    """

    unique_id: str
    name: str
    alias: str
    relation_name: str
    key: tuple[str, ...]
    settings: ChangelogSettings


@dataclass(frozen=True)
class Sync:
    """An exposure that names a destination.

    Attributes:
        unique_id: dbt's.
        name: the exposure's name.
        tags: dbt's.
        enabled: False for an exposure that is switched off; it is never pushed.
        changelog: the one model that it depends on.
        settings: its `meta.reverse_etl`.
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
    def keys(self) -> tuple[str, ...]:
        """The key path of its settings in that file."""
        return (self.name, "config", "meta", "reverse_etl")
