"""What a webhook says, and what is to be done about it. Pure: the clock is an argument."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

COMPLETED = "job.run.completed"
SUCCESS = 10
_AHEAD = timedelta(minutes=5)  # of our clock
_FRACTION = re.compile(r"(\.\d{1,6})\d*")

Id = Annotated[int, Field(gt=0, lt=2**63)]


class _Data(BaseModel):
    job_id: Id = Field(alias="jobId")
    run_id: Id = Field(alias="runId")
    status: int | None = Field(None, alias="runStatusCode")


class _Body(BaseModel):
    account_id: Id = Field(alias="accountId")
    event_id: str = Field(alias="eventId", min_length=1, max_length=200)
    event_type: str = Field(alias="eventType")
    timestamp: str = Field(max_length=64)
    data: _Data


@dataclass(frozen=True)
class Event:
    """One event of dbt Cloud, as far as it matters here; `status` is that of the run: 10 is success."""

    event_id: str
    event_type: str
    account_id: int
    job_id: int
    run_id: int
    status: int | None
    at: datetime


def parse_event(body: bytes) -> Event | None:
    """The event; None for a body that is none."""
    try:
        read = _Body.model_validate_json(body)
        data = read.data
        return Event(
            read.event_id,
            read.event_type,
            read.account_id,
            data.job_id,
            data.run_id,
            data.status,
            parse_time(read.timestamp),
        )
    except (ValidationError, ValueError):
        return None


def parse_time(text: str) -> datetime:
    """A time as dbt Cloud writes it: `2023-01-31T19:29:35.789265936Z`, or `2023-01-31 19:29:35.789265+00:00`.

    Raises:
        ValueError: it is none.
    """
    shortened = _FRACTION.sub(lambda found: found[1].ljust(7, "0"), text.strip())
    time = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", shortened))
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def is_stale(event: Event, now: datetime, window: timedelta) -> bool:
    """Whether the event is too old, or of the future: then somebody may have kept it, or the clocks differ."""
    return not now - window <= event.at <= now + _AHEAD


def ignored(event: Event, account_id: int, targets: Mapping[int, str]) -> str:
    """Why there is nothing to do, or an empty text. dbt Cloud stops sending after a few refusals, so these are none."""
    if event.account_id != account_id:
        return "another account"
    if event.event_type != COMPLETED:
        return "another event"
    if event.job_id not in targets:
        return "a job that is not listed"
    if event.status not in (None, SUCCESS):
        return "a run without success"
    return ""
