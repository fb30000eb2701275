"""The commands that send rows: `push`, `run`, `retry` and `test`."""

from __future__ import annotations

from typing import Any

import click

from dbt_reverse_etl.app.place import Opened, Place
from dbt_reverse_etl.base.errors import mistake, worst
from dbt_reverse_etl.terminal.options import place_options, project_options, say, shown
from dbt_reverse_etl.terminal.output import put_json


@click.command()
@project_options
@click.option(
    "--override", "overrides", multiple=True, help="Let one blocked push pass, as its message says. Repeatable."
)
@click.option(
    "--if-due",
    is_flag=True,
    help="Push only what the last dbt run made due, and of it what was neither pushed nor overtaken by a later run; 6 if something was overtaken.",
)
def push(place: Place, selectors: tuple[str, ...], as_json: bool, overrides: tuple[str, ...], if_due: bool) -> int:
    """Push each sync that is behind, whichever dbt command ran last."""
    from dbt_reverse_etl.app.project import OVERRIDE, Ask

    project = place.project()
    project.env[OVERRIDE] = " ".join((*overrides, project.env.get(OVERRIDE, "")))
    ask = Ask.IF_DUE if if_due else Ask.PUSH
    return _pushed(project, place, as_json, selectors=selectors, ask=ask)


# Without `--`, too, what follows a command of dbt is dbt's: its --select would else be ours, and dbt run everything.
@click.command("run", context_settings={"allow_interspersed_args": False})
@project_options
@click.argument("dbt_arguments", metavar="-- DBT_ARGUMENTS...", nargs=-1, required=True)
def run(place: Place, selectors: tuple[str, ...], as_json: bool, dbt_arguments: tuple[str, ...]) -> int:
    """Run `dbt` as it is on PATH, then push what it made due: for a dbt that loads no plugin.

    For example: dbt-reverse-etl run -- build --select orders
    """
    from dbt_reverse_etl.app import dbt_command
    from dbt_reverse_etl.app.project import OFF, SWITCH, Ask, refuse_unknown_words
    from dbt_reverse_etl.base.dbt_options import command_of

    project = place.project("")
    refuse_unknown_words(None, project.env)  # before dbt runs for minutes
    if selectors:
        dbt_command.refuse_unknown_syncs(selectors, dbt_arguments, place)
    before = project.newest_results()
    code = dbt_command.run_dbt([*dbt_arguments], place, {**project.env, SWITCH: OFF})
    if project.newest_results() in (None, before):
        if code == 0:
            dbt_command.refuse_missing_results(dbt_arguments, project.switch)
        return code  # dbt has run nothing
    ask = Ask.DBT_RETRY if command_of(dbt_arguments) == "retry" else Ask.RUN
    return worst((code, _pushed(place.project(), place, as_json, selectors=selectors, ask=ask)))


@click.command()
@project_options
def retry(place: Place, selectors: tuple[str, ...], as_json: bool) -> int:
    """Push what the last dbt run made due and each sync that left rows behind, rows that wait or are parked included."""
    from dbt_reverse_etl.app.project import Ask

    return _pushed(place.project(), place, as_json, selectors=selectors, ask=Ask.RETRY)


def _pushed(project: Any, place: Place, as_json: bool, **how: Any) -> int:
    from dbt_reverse_etl.app import invocation
    from dbt_reverse_etl.app.project import OFF, ON, SWITCH
    from dbt_reverse_etl.app.reach import try_early
    from dbt_reverse_etl.config.artifacts import select
    from dbt_reverse_etl.config.destinations import resolved_of
    from dbt_reverse_etl.terminal import console

    configuration = project.configuration(project.manifest())
    chosen = select(configuration.syncs, how["selectors"])
    pushed = chosen if project.switch == ON else []
    configuration.refuse_unset(pushed=pushed)
    of_these = [one.destination for one in resolved_of(configuration.resolved, pushed)]
    display = shown()
    try_early(of_these, lambda text: display.say(text, "warn"))
    reports = invocation.after_dbt(project, place.session(project.target), display, configuration=configuration, **how)
    if project.switch == OFF:
        say(f"Nothing is pushed: {SWITCH} is {OFF}. Unset it to push", "warn")
    if as_json:
        put_json([console.as_json(report) for report in reports])
    elif project.switch != OFF:
        say(console.summary(reports) if reports else "Nothing to push.", "info")
    return worst(report.exit_code for report in reports)


@click.command("test")
@place_options
@click.argument("sync")
@click.option("--key", required=True, help="""The key of the row, as '{"customer_id": 1}'.""")
def send_one(place: Place, as_json: bool, sync: str, key: str) -> int:
    """Send one pending row of a sync, recorded like any delivery; the next push sends the others."""
    from dbt_reverse_etl.app.keys import fitting
    from dbt_reverse_etl.terminal import console

    found = Opened(place, (sync,), reaches=True, sends=True)
    if len(found.chosen) != 1:
        names = ", ".join(one.sync.name for one in found.chosen)
        what, next_step = (names, "name one of them") if names else ("none that is switched on", "enable it")
        raise mistake("SYNC", f"{sync!r}, which names {what}", "one sync", next_step)
    fitting(key, [one.sync.changelog for one in found.chosen])
    with found as opened:
        report = opened.pusher.push(opened.chosen[0], opened.overview, key)
    if as_json:
        put_json([console.as_json(report)])
    else:
        shown().tell(report, 1, 1)
    return report.exit_code
