"""The files of body templates, and rows to try them with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbt_reverse_etl.base.dbt_options import nearest_project, told
from dbt_reverse_etl.sinks.http.body import BodyError
from dbt_reverse_etl.sinks.http.preset import DIRECTORY as PRESETS
from dbt_reverse_etl.values.arrow import is_bytes
from dbt_reverse_etl.values.encoding import encode_rows

if TYPE_CHECKING:
    from importlib.abc import Traversable  # elsewhere from Python 3.14 on

PRESET = "preset:"


def template_text(name: str, project: Path | None) -> str:
    """The text of a file below the dbt project, or of one of a preset (`preset:NAME`). Raises BodyError where it is elsewhere or unreadable."""
    try:
        return _file(name, project).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise BodyError("a file that cannot be read") from None


def _file(name: str, project: Path | None) -> Traversable:
    if name.startswith(PRESET):
        return PRESETS / Path(name.removeprefix(PRESET)).name
    # Without one, as dbt looks for that of this process.
    root = project or nearest_project(Path(told("PROJECT_DIR", os.environ) or Path.cwd()).resolve())
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        raise BodyError("a path that leaves the dbt project")
    return path


def samples(schema: pa.Schema, count: int, constants: Mapping[str, Any]) -> list[bytes]:
    """So many rows with a value of its type in each field, as JSON objects."""
    columns = [pa.array([_sample(field.type)] * count, field.type) for field in schema]
    encoded = encode_rows(pa.table(columns, schema=schema), constants=constants)
    return [row for row in encoded.rows if row is not None]


def _sample(kind: pa.DataType) -> Any:
    """One value of a type."""
    if pa.types.is_map(kind):
        return [(_sample(kind.key_type), _sample(kind.item_type))]
    if pa.types.is_struct(kind):
        return {field.name: _sample(field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_sample(kind.value_type)]
    return next((value for is_type, value in _SCALARS if is_type(kind)), "text")


_SCALARS: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_boolean, True),
    (pa.types.is_integer, 1),
    (pa.types.is_floating, 1.5),
    (pa.types.is_decimal, Decimal(0)),
    (pa.types.is_date, date(2024, 1, 31)),
    (pa.types.is_timestamp, datetime(2024, 1, 31, 9, 30, tzinfo=timezone.utc)),
    (is_bytes, b"bytes"),
)
