"""Limits of a push, as profiles.yml and `meta.reverse_etl` say them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, field_validator
from pydantic_core import PydanticCustomError

from dbt_reverse_etl.sinks.base import Settings

_THRESHOLD = re.compile(r"([0-9]{1,18})|([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%")


@dataclass(frozen=True)
class Threshold:
    """A number of rows, or a share of them in percent."""

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
    """Limits of a push. A sync's own value, a null included, replaces its destination's.

    Attributes:
        max_deletes: most rows that a push may delete, as a number or a share of the rows that the sync sees. A larger push is
            blocked before it sends anything. Rows that the destination has refused before, unchanged since, do not count.
            None: no limit. A push that deletes while the sync sees no row is blocked all the same.
        max_changes: the same for inserts, updates and deletes together.
        max_undelivered: a run that leaves more undelivered rows ends with code 1, one that leaves fewer with a warning. None: any number.
    """

    max_deletes: Limit | None = None
    max_changes: Limit | None = None
    max_undelivered: Limit | None = Threshold(Decimal(0), percent=False)

    @field_validator("max_deletes")
    @classmethod
    def _reachable(cls, limit: Threshold | None) -> Threshold | None:
        if limit and limit.percent and limit.number > 100:
            raise PydanticCustomError("threshold", "at most 100%: more rows than there are cannot be deleted")
        return limit

    def over(self, defaults: Guards) -> Guards:
        """These guards, and the defaults where nothing is written."""
        return defaults.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
