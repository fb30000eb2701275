"""What the plugin asks of the dbt that has called it. dbt is imported where it is asked, for not all of it is here in every command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def say(text: str, level: str) -> None:
    """Through dbt's own logger: console, log file and --log-format json. Where dbt raises for a warning (--warn-error), as an info."""
    from dbt_common.events.base_types import EventLevel
    from dbt_common.events.functions import fire_event
    from dbt_common.events.types import Note
    from dbt_common.exceptions.events import EventCompilationError
    from dbt_common.ui import green, red, yellow

    colour = {"error": red, "warn": yellow}.get(level, green if "[" in text else str)
    if os.environ.get("NO_COLOR"):
        colour = str
    note = Note(msg=colour(text))
    try:
        fire_event(note, level=EventLevel(level))
    except EventCompilationError:
        fire_event(note, level=EventLevel.INFO)


def flag(name: str) -> Any:
    from dbt.flags import get_flags

    flags: Any = get_flags()  # type: ignore[no-untyped-call]
    return getattr(flags, name, None)


def say_in_jinja(name: str, value: str) -> None:
    """As an environment variable of this invocation alone."""
    from dbt_common.context import get_invocation_context

    get_invocation_context()._env = {**get_invocation_context().env, name: value}


def manifest() -> Any:
    """The one that dbt has read or was given; None: not yet, or dbt keeps it elsewhere, as `retry` does."""
    import click

    context = click.get_current_context(silent=True)
    return context.obj.get("manifest") if context and isinstance(context.obj, dict) else None


def adapter() -> Any:
    from dbt.adapters.factory import FACTORY

    return next(iter(FACTORY.adapters.values()))


def target_name() -> str:
    return str(adapter().config.target_name)


def profiles() -> list[Path]:
    return [Path(flag("PROFILES_DIR")).absolute()]


def project_root() -> Path:
    return Path(adapter().config.project_root)


def target_path() -> Path:
    return project_root() / str(adapter().config.target_path)


def method() -> Any:
    found = getattr(adapter().config.credentials, "method", None)
    return getattr(found, "value", found)


def runs_here() -> bool:
    """Whether dbt's Spark is a session of this process."""
    return bool(adapter().type() == "spark" and method() == "session")


def result_of_dbt() -> Any:
    """What dbt's command has returned, for callers of dbtRunner. dbt hands it to nobody, but fires the event of its end in the frame that holds it."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "dbt.cli.requires" and "result" in frame.f_locals:
            return frame.f_locals["result"]
    return None


def is_interrupted() -> bool:
    """Whether an interrupt has ended dbt, or a program that leaves. Where dbt has a result, the error is one that its caller handles."""
    error = sys.exc_info()[1]
    return result_of_dbt() is None and isinstance(getattr(error, "exception", error), (KeyboardInterrupt, SystemExit))


def interrupted() -> Exception:
    """What dbt raises for an interrupt, so that a caller of dbtRunner sees it, with the exit code of a push that did not end well."""
    from dbt.cli.exceptions import ExceptionExit
    from dbt.utils import ExitCodes

    error = ExceptionExit(KeyboardInterrupt())  # type: ignore[arg-type]  # as dbt does it
    error.exit_code = ExitCodes.ModelError.value  # type: ignore[misc]
    return error
