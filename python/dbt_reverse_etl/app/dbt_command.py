"""Runs dbt as a child process, as it is on PATH, for those whose dbt loads no plugin; the push comes after it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence

from dbt_reverse_etl.app.place import Place
from dbt_reverse_etl.base.errors import ConfigurationError, Problem, ReverseEtlError

_PLACES = ("--project-dir", "--profiles-dir", "--target-path", "--target", "-t", "--profile")


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


def _refuse_places(arguments: Sequence[str]) -> None:
    given = [name for name in (one.partition("=")[0] for one in arguments) if name in _PLACES]
    if given:
        expected, next_step = (
            "the place of both dbt and the push before --",
            "set DBT_PROFILE" if given[0] == "--profile" else f"dbt-reverse-etl run {given[0]} ... -- ...",
        )
        raise ConfigurationError(Problem("options after --", ", ".join(given), expected, next_step))
