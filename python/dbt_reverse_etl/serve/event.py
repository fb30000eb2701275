"""What a webhook of dbt Cloud says, who signed it, and whether it matters. Pure: the clock is an argument.

Source: https://docs.getdbt.com/docs/deploy/webhooks
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Annotated

from pydantic import AfterValidator, AliasPath, BaseModel, Field, ValidationError

COMPLETED = "job.run.completed"
SUCCESS = 10
_AHEAD = timedelta(minutes=5)  # of our clock

Id = Annotated[int, Field(gt=0, lt=2**63)]
# dbt Cloud writes nine digits of a second or six, `T` or a space, and not always a zone: then it is UTC.
Moment = Annotated[datetime, AfterValidator(lambda at: at if at.tzinfo else at.replace(tzinfo=timezone.utc))]


class Event(BaseModel, frozen=True):
    """One event, as far as it matters here; `status` is that of the run: 10 is success."""

    account_id: Id = Field(validation_alias="accountId")
    event_type: str = Field(validation_alias="eventType")
    at: Moment = Field(validation_alias="timestamp")
    job_id: Id = Field(validation_alias=AliasPath("data", "jobId"))
    run_id: Id = Field(validation_alias=AliasPath("data", "runId"))
    status: int | None = Field(None, validation_alias=AliasPath("data", "runStatusCode"))


def is_signed(body: bytes, header: str, secret: str) -> bool:
    """Whether the header is the hex HMAC-SHA256 of the raw body; takes as long for a wrong one as for a right one."""
    expected = hmac.new(secret.encode(), body, "sha256").hexdigest()
    return hmac.compare_digest(expected.encode(), header.strip().lower().encode("utf-8", "replace"))


def parse_event(body: bytes) -> Event | None:
    """The event; None for a body that is none."""
    try:
        return Event.model_validate_json(body)
    except ValidationError:
        return None


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
