"""Times as they are kept and shown: in UTC."""

from __future__ import annotations

from datetime import datetime, timezone


def utc(at: datetime) -> datetime:
    """The same time in UTC; Spark gives local ones without a zone."""
    return at.astimezone(timezone.utc)


def minute(at: datetime) -> str:
    """A time for people."""
    return f"{utc(at):%Y-%m-%d %H:%M}"
