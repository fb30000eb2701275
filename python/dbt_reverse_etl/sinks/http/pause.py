"""When an HTTP answer asks to come back. Pure: no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from dbt_reverse_etl.sinks.http.options import HttpOptions

_LIMITS = frozenset({403, 429})


def pause_of(status: int, headers: Mapping[str, str], options: HttpOptions, now: datetime) -> float | None:
    """When to come back. Vendors send the header that the options name with every answer, and it tells that only of a limit."""
    pause = retry_after(headers, now)
    if pause is not None or options.retry_after is None or status not in _LIMITS:
        return pause
    value = _number(headers.get(options.retry_after.header, "").strip())
    if value is None or options.retry_after.unit == "seconds":
        return value
    return max(0.0, value - _sent_at(headers, now).timestamp())


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait, from seconds or an HTTP date; None for what is neither. Not capped: that is the engine's."""
    # Of several, as where a gateway adds its own, the longest. A date has a comma behind the day of the week, and is one without it.
    text = headers.get("Retry-After", "").strip()
    several = (text, *map(str.strip, text.split(",")))
    return max((found for one in several if (found := _pause(one, headers, now)) is not None), default=None)


def _pause(text: str, headers: Mapping[str, str], now: datetime) -> float | None:
    seconds, date = _number(text), _date(text)
    if seconds is not None or date is None:
        return seconds
    return max(0.0, (date - _sent_at(headers, now)).total_seconds())


def _sent_at(headers: Mapping[str, str], now: datetime) -> datetime:
    """When the answer was sent, by the clock of the destination: that of this machine may differ."""
    return _date(headers.get("Date", "")) or now


def _number(text: str) -> float | None:
    return min(float(text), 1e15) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else None


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=timezone.utc)
