"""Settings that are paths of this machine. A relative one belongs to the dbt project, whichever folder a command runs in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ValidationInfo

PROJECT_DIR = "project_dir"  # of the context in which settings are validated
_P = TypeVar("_P", str, Path)


def in_project(path: _P, info: ValidationInfo) -> _P:
    """The path below a home (`~`) or, if the dbt project is known, below that; an absolute one stays as it is."""
    context: Any = info.context or {}
    folder = context.get(PROJECT_DIR)
    if str(path).startswith("~"):
        try:
            return type(path)(Path(path).expanduser())
        except RuntimeError:
            raise ValueError("found ~ without such a home; expected a user's; next: write an absolute path") from None
    if folder is None or not str(path):
        return path
    return type(path)(Path(folder).resolve() / path)


def _ca_in_project(path: str, info: ValidationInfo) -> str:
    return path if path in ("system", "probe") else in_project(path, info)  # words of libpq and librdkafka


ProjectFile = Annotated[str, AfterValidator(in_project)]
ProjectCa = Annotated[str, AfterValidator(_ca_in_project)]
