"""Runs dbt as a child process, as it is on PATH, for those whose dbt loads no plugin; the push comes after it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from dbt_reverse_etl.app.check import parsed
from dbt_reverse_etl.app.place import Place
from dbt_reverse_etl.app.project import ON
from dbt_reverse_etl.base.dbt_options import command_of
from dbt_reverse_etl.base.errors import Problem, ReverseEtlError, mistake
from dbt_reverse_etl.config.artifacts import select
from dbt_reverse_etl.config.manifest import syncs
from dbt_reverse_etl.config.settings import Sync

_PUSHING = frozenset({"run", "build", "retry"})
_WITHOUT_ROWS = frozenset({"--help", "-h", "--version", "--empty", "--sample"})
_PLACES = ("--project-dir", "--profiles-dir", "--target-path", "--target", "-t", "--profile")


def refuse_unknown_syncs(selectors: Sequence[str], arguments: Sequence[str], place: Place) -> None:
    """Before dbt works for an hour. A sync may be newer than the manifest that is there; what cannot be parsed here, dbt reports.

    Raises:
        ConfigurationError: a selector names no sync.
    """
    with suppress(ReverseEtlError):
        select(syncs(place.project("").manifest()), selectors)
        return
    at = [number for number, one in enumerate(arguments) if one.partition("=")[0] == "--vars"]
    variables = [one for number in at for one in arguments[number : number + (1 if "=" in arguments[number] else 2)]]
    found: list[Sync] | None = None
    with suppress(ReverseEtlError):
        manifest = parsed(place, place.asked_target(), variables)
        found = None if manifest is None else syncs(manifest)
    if found is not None:
        select(found, selectors)


def run_dbt(arguments: Sequence[str], place: Place, env: Mapping[str, str]) -> int:
    """The exit code of `dbt` with these arguments; what it writes stays as it is.

    Raises:
        ReverseEtlError: there is no dbt, or it would run at another place than the push.
    """
    _refuse_places(arguments)
    command = ["dbt", *arguments, *place.dbt_options()]
    try:
        child = subprocess.Popen(command, env=dict(env))  # noqa: S603  (what the user asks for)
    except FileNotFoundError:
        next_step = "install it, or activate its environment"
        raise ReverseEtlError(Problem("dbt", "no such command", "dbt on PATH", next_step)) from None
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)  # a terminal has told it already, a scheduler has not
        child.wait()
        raise
    return code if code >= 0 else 128 - code


def refuse_missing_results(arguments: Sequence[str], switch: str) -> None:
    """For a dbt that ended well and wrote no run_results.json, by which alone its models can be pushed.

    Raises:
        ReverseEtlError: it ran models, and they are to be pushed.
    """
    command = command_of(arguments)
    is_asked = not _WITHOUT_ROWS.intersection(one.partition("=")[0] for one in arguments)
    if command in _PUSHING and is_asked and switch == ON:
        found = "no new run_results.json, so nothing was pushed"
        expected = "the artifacts of this command in the folder of --target-path"
        next_step = (
            "run dbt without --no-write-json and DBT_WRITE_JSON=false; dbt-reverse-etl push sends what is behind"
        )
        raise ReverseEtlError(Problem(f"dbt {command}", found, expected, next_step))


def _refuse_places(arguments: Sequence[str]) -> None:
    given = [name for name in (one.partition("=")[0] for one in arguments) if name in _PLACES]
    if given:
        expected = "the place of both dbt and the push before --"
        next_step = "set DBT_PROFILE" if given[0] == "--profile" else f"dbt-reverse-etl run {given[0]} ... -- ..."
        raise mistake("options after --", ", ".join(given), expected, next_step)
