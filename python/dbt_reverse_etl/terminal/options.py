"""What several commands have in common: their options, and the screen on which they write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from dbt_reverse_etl.app.place import Place
from dbt_reverse_etl.base.dbt_options import nearest_project, variables
from dbt_reverse_etl.base.errors import mistake
from dbt_reverse_etl.base.interrupts import apart
from dbt_reverse_etl.terminal.output import FORMATS, screen
from dbt_reverse_etl.terminal.screen import Screen

PROJECT_DIR = click.option(
    "--project-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=variables("PROJECT_DIR"),
    default=lambda: nearest_project(Path.cwd()),
    help="The dbt project; default: here, or the nearest folder above.",
)
PROFILES_DIR = click.option(
    "--profiles-dir", type=click.Path(path_type=Path, file_okay=False), help="Where profiles.yml stands."
)
TARGET_PATH = click.option(
    "--target-path",
    type=click.Path(path_type=Path),
    envvar=variables("TARGET_PATH"),
    help="Folder of dbt's artifacts; default: that of dbt_project.yml, or target.",
)


def log_format(default: str) -> Callable[..., Any]:
    """The option that says how lines are written."""
    return click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        default=default,
        show_default=True,
        help="Lines for people, the same with time and level, or one JSON object per line.",
    )


_SCREEN = "dbt_reverse_etl.terminal.screen"  # where the context keeps it


def screen_of(kept: Mapping[str, Any]) -> Screen:
    """Of a command whose context keeps this."""
    found: Screen | None = kept.get(_SCREEN)
    return found or screen("text", os.environ)


def shown() -> Screen:
    """The screen of the command that runs."""
    return screen_of(click.get_current_context().ensure_object(dict))


def say(text: str, level: str, **about: Any) -> None:
    """A line on it."""
    shown().say(text, level, **about)


def project_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that gets a `Place` and the selected syncs."""
    select = click.option(
        "--select", "selectors", multiple=True, help="A sync by name, or tag:NAME; * stands for any text. Repeatable."
    )
    return place_options(select(command))


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that gets a `Place`."""
    options = (
        PROJECT_DIR,
        PROFILES_DIR,
        click.option("--target", help="The dbt target; default: that of the last dbt command."),
        TARGET_PATH,
        click.option("--json", "as_json", is_flag=True, help="The result as one JSON document."),
        log_format("text"),
        click.option("-q", "--quiet", is_flag=True, help="Errors only."),
        click.option("-v", "--verbose", is_flag=True, help="Also each wave, repeated request and pause."),
    )
    for option in reversed(options):
        command = option(command)

    @wraps(command)
    def wrapped(*, log_format: str, quiet: bool, verbose: bool, **rest: Any) -> Any:
        kept = click.get_current_context().ensure_object(dict)
        document = rest["as_json"] or rest.get("markdown", False)
        kept[_SCREEN] = screen(log_format, os.environ, quiet=quiet, verbose=verbose, document=document)
        import_spark()
        place = Place(*(rest.pop(name) for name in ("project_dir", "profiles_dir", "target", "target_path")))
        return command(place=place, **rest)

    return wrapped


def service_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that runs for long: its lines are for a log."""

    @wraps(command)
    def wrapped(**given: Any) -> Any:
        kept = click.get_current_context().ensure_object(dict)
        kept[_SCREEN] = screen(given["log_format"], os.environ)
        return command(**given)

    for option in (log_format("timed"), PROFILES_DIR, PROJECT_DIR):
        wrapped = option(wrapped)
    return wrapped


@apart  # no signal shall cut it in two
def import_spark() -> None:
    """Import what pushes. Raises ConfigurationError: a package is missing."""
    try:
        import_module("dbt_reverse_etl.app.invocation")
    except ModuleNotFoundError as error:
        found, next_step = f"no package {error.name}", "pip install 'dbt-reverse-etl[spark]'"
        raise mistake("this environment", found, "it installed", next_step) from error
