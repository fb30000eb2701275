"""The command `dbt-reverse-etl`: each module of `commands/` has some of its commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from dbt_reverse_etl.base.errors import ExitCode, ReverseEtlError, unexpected
from dbt_reverse_etl.base.interrupts import interrupts
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.base.version import VERSION
from dbt_reverse_etl.commands import looking, pushing, service, setup, wide_tables
from dbt_reverse_etl.terminal.options import screen_of

_COMMANDS = (
    setup.init,
    setup.check,
    pushing.push,
    pushing.run,
    pushing.retry,
    pushing.send_one,
    looking.plan,
    looking.status,
    looking.undelivered,
    looking.reconcile,
    looking.report,
    service.serve,
    service.poll,
    wide_tables.wide_table,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION)
def cli() -> None:
    """Push what changed in dbt models to the tools that need the rows.

    Plain `dbt run` pushes by itself; these commands are for the rest.
    """


def main() -> int:
    """The command, and its exit code: errors of the user without a traceback."""
    with interrupts() as signals:
        kept: dict[str, Any] = {}
        try:
            code = int(cli(standalone_mode=False, obj=kept) or 0)
        except BaseException as error:
            code = _said(error, kept, interrupted=signals.received)
        return ExitCode.INTERRUPTED if signals.received else code


def _said(error: BaseException, kept: Mapping[str, Any], *, interrupted: bool) -> int:
    """The exit code of a command that ended with an error, which is shown. What a signal cut short fails in any way."""
    if interrupted or isinstance(error, (click.Abort, KeyboardInterrupt)):
        screen_of(kept).say("interrupted: the next run goes on", "error")
        return ExitCode.INTERRUPTED
    if isinstance(error, ReverseEtlError):
        screen_of(kept).say(redact(str(error)), "error")
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    screen_of(kept).say(str(unexpected(error, "dbt-reverse-etl")), "error")
    return ExitCode.FAILED


for _command in _COMMANDS:
    cli.add_command(_command)
