"""What a value of a model is in JSON, written down apart from the encoder."""

from __future__ import annotations

from base64 import b64encode
from datetime import timezone
from typing import Any

import pyarrow as pa


def as_json(field: pa.Field, value: Any) -> Any:
    """Binary as base64, timestamps as RFC 3339, decimals, dates and times as text; other values as they are."""
    if pa.types.is_map(field.type):
        return dict(value)
    if pa.types.is_binary(field.type):
        return b64encode(value).decode()
    if pa.types.is_timestamp(field.type):
        return as_text(field, value).replace(" ", "T") + ("Z" if field.type.tz else "")
    return as_text(field, value)


def as_text(field: pa.Field, value: Any) -> Any:
    """Decimals, dates and times as text; other values as they are."""
    if pa.types.is_decimal(field.type):
        return f"{value:.{field.type.scale}f}"
    if pa.types.is_timestamp(field.type):
        naive = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
        return naive.isoformat(" ", "microseconds")
    if pa.types.is_time(field.type):
        return value.isoformat("microseconds")
    return value.isoformat() if pa.types.is_date(field.type) else value
