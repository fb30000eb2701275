"""The command `dbt-reverse-etl`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from dbt_reverse_etl.app.place import Opened, Place
from dbt_reverse_etl.base.errors import ConfigurationError, ExitCode, Problem, ReverseEtlError, unexpected, worst
from dbt_reverse_etl.base.interrupts import interrupts
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.base.version import VERSION
from dbt_reverse_etl.config.destinations import PlanOnly
from dbt_reverse_etl.terminal.options import (
    PROJECT_DIR,
    project_options,
    say,
    screen_of,
    service_options,
    shown,
)
from dbt_reverse_etl.wide.commands import wide_table


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


@cli.command()
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


@cli.command("run")
@project_options
@click.argument("dbt_arguments", metavar="-- DBT_ARGUMENTS...", nargs=-1, required=True)
def run(place: Place, selectors: tuple[str, ...], as_json: bool, dbt_arguments: tuple[str, ...]) -> int:
    """Run `dbt` as it is on PATH, then push what it made due: for a dbt that loads no plugin.

    For example: dbt-reverse-etl run -- build --select orders
    """
    from dbt_reverse_etl.app import dbt_command
    from dbt_reverse_etl.app.project import OFF, SWITCH, Ask
    from dbt_reverse_etl.base.dbt_options import command_of

    project = place.project("")
    before = project.newest_results()
    code = dbt_command.run_dbt([*dbt_arguments], place, {**project.env, SWITCH: OFF})
    if project.newest_results() in (None, before):
        if code == 0:
            dbt_command.refuse_missing_results(dbt_arguments, project.switch)
        return code  # dbt has run nothing
    ask = Ask.DBT_RETRY if command_of(dbt_arguments) == "retry" else Ask.RUN
    return max(code, _pushed(place.project(), place, as_json, selectors=selectors, ask=ask))


@cli.command()
@project_options
def retry(place: Place, selectors: tuple[str, ...], as_json: bool) -> int:
    """Push the syncs whose last push left rows behind, rows that wait or are parked included."""
    from dbt_reverse_etl.app.project import Ask

    return _pushed(place.project(), place, as_json, selectors=selectors, ask=Ask.RETRY)


def _pushed(project: Any, place: Place, as_json: bool, **how: Any) -> int:
    from dbt_reverse_etl.app import invocation
    from dbt_reverse_etl.app.project import ON
    from dbt_reverse_etl.app.reach import try_early
    from dbt_reverse_etl.config.artifacts import select
    from dbt_reverse_etl.terminal import console

    configuration = project.configuration(project.manifest())
    chosen = select(configuration.syncs, how["selectors"])
    pushed = {sync.unique_id for sync in chosen} if project.switch == ON else set()
    configuration.refuse_unset(pushed=[sync for sync in chosen if sync.unique_id in pushed])
    of_these = [one.destination for one in configuration.resolved if one.sync.unique_id in pushed]
    display = shown()
    try_early(of_these, lambda text: display.say(text, "warn"))
    reports = invocation.after_dbt(project, place.session(project.target), display, configuration=configuration, **how)
    if as_json:
        _print_json(map(console.as_json, reports))
    else:
        say(console.summary(reports) if reports else "Nothing to push.", "info")
    return worst(report.exit_code for report in reports)


@cli.command()
@project_options
@click.option("--sample", default=5, show_default=True, help="Show so many pending rows by key.")
@click.option("--markdown", is_flag=True, help="For a review: sentences and a table, without keys.")
def plan(place: Place, selectors: tuple[str, ...], as_json: bool, sample: int, markdown: bool) -> int:
    """Show what a push would send. Sends nothing, moves nothing."""
    from dbt_reverse_etl.terminal import console

    with Opened(place, selectors) as opened:
        reports = [opened.pusher.plan(one, opened.overview, 0 if markdown else sample) for one in opened.chosen]
    if as_json:
        _print_json(map(console.as_json, reports))
    elif markdown:
        from dbt_reverse_etl.terminal.review import as_markdown

        click.echo(as_markdown(reports))
    elif reports:
        say(console.plan(reports), "info", plan=list(map(console.as_json, reports)))
        for report in reports:
            if report.message:
                say(f"{report.sync}: {report.message}", console.level(report), sync=report.sync)
    return max((report.exit_code for report in reports), default=ExitCode.OK)


@cli.command()
@project_options
@click.option("--repair", "repaired", is_flag=True, help="Push the rows that differ; foreign ones are left alone.")
@click.option(
    "--leftovers",
    type=click.Choice(["delete", "keep"]),
    help="With --repair: what becomes of rows that may be left from a changelog or ledger that is gone.",
)
@click.option("--sample", default=5, show_default=True, help="Show so many keys that differ.")
def reconcile(place: Place, selectors: tuple[str, ...], as_json: bool, sample: int, **how: Any) -> int:
    """Compare each destination with what was delivered to it, key by key."""
    from dbt_reverse_etl.app import invocation
    from dbt_reverse_etl.terminal import console

    if how["leftovers"] and not how["repaired"]:
        raise click.UsageError("--leftovers goes with --repair")
    with Opened(place, selectors, reaches=True, sends=how["repaired"]) as opened:
        results = [opened.pusher.reconcile(one, opened.overview, **how) for one in opened.chosen]
        due = [one for one, found in zip(opened.chosen, results, strict=True) if found.repaired]
        reports: list[Any] = []
        if due:
            screen = shown()
            with invocation.watched(opened.pusher, screen):
                invocation.push_all(opened.pusher, due, opened.overview_now(), reports.append, screen.glance)
    if as_json:
        _print_json([console.reconciled_as_json(found, sample) for found in results])
    else:
        for number, found in enumerate(results, 1):
            level = console.reconciled_level(found)
            say(console.reconciled_line(number, len(results), found), level)
            if found.message:
                say(f"  {found.message}", level)
            for one in found.differences.first[:sample] if found.differences else ():
                say(f"    {one.kind:9} {one.key}", "info")
    for number, report in enumerate(reports, 1):
        shown().tell(report, number, len(reports))
    codes = [one.exit_code for one in [*results, *reports]]
    waiting = ExitCode.FAILED if any(report.counts.skipped.total for report in reports) else ExitCode.OK
    return int(max([waiting, *codes]))


@cli.command()
@project_options
@click.option("--fail", is_flag=True, help="End with 1 if a sync is neither ok nor behind.")
def status(place: Place, selectors: tuple[str, ...], as_json: bool, fail: bool) -> int:
    """Show how each sync stands and why: health, position, lag, undelivered rows and last run."""
    from dbt_reverse_etl.delivery.health import Health
    from dbt_reverse_etl.terminal import console, output

    with Opened(place, selectors) as opened:
        rows = [opened.pusher.status(one, opened.overview) for one in opened.chosen]
    if as_json:
        _print_json(rows)
    else:
        columns = (
            "sync", "destination", "health", "position", "head", "lag", "undelivered", "no_match", "last_run", "last_run_at",
        )  # fmt: skip
        output.put(console.table(columns, rows))
        for text in console.status_details(rows):
            output.put(text)
    well = all(Health(row["health"]).is_well for row in rows)
    return ExitCode.OK if well or not fail else ExitCode.FAILED


@cli.command()
@project_options
@click.argument("syncs", metavar="[SYNC]...", nargs=-1)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1), help="Show so many rows of each.")
def undelivered(place: Place, selectors: tuple[str, ...], as_json: bool, syncs: tuple[str, ...], limit: int) -> int:
    """List the rows that a destination does not have: by key, with the reason, attempts and when each is tried again."""
    from dbt_reverse_etl.delivery.health import Health
    from dbt_reverse_etl.terminal import console, output

    with Opened(place, (*selectors, *syncs)) as opened:
        found = {one.sync.name: console.undelivered(one, opened.overview) for one in opened.chosen}
        stand = [opened.pusher.status(one, opened.overview) for one in opened.chosen]
    rows = [row for some in found.values() for row in some[:limit]]
    if as_json:
        _print_json(rows)
        return ExitCode.OK
    if rows:
        columns = ("sync", "key", "operation", "outcome", "attempts", "next_attempt", "reason")
        output.put(console.table(columns, rows))
    for name, some in found.items():
        if len(some) > limit:
            say(f"{name}: {limit} of {console.number_of(len(some), 'row')} shown: --limit", "info")
    others = [one for one in stand if one["health"] != Health.OK]
    for one in others:  # what a sync has still to plan, or has planned and not reached, no list has
        say(f"{one['sync']}: {one['health']}: {one['reason']}", "warn")
    if not rows:
        say("No row is listed." if others else "Every row is delivered.", "info")
    return ExitCode.OK


@cli.command("test")
@project_options
@click.argument("sync")
@click.option("--key", required=True, help="""The key of the row, as '{"customer_id": 1}'.""")
def send_one(place: Place, selectors: tuple[str, ...], as_json: bool, sync: str, key: str) -> int:
    """Send one pending row of a sync, recorded like any delivery; the next push sends the others."""
    from dbt_reverse_etl.app.keys import fitting
    from dbt_reverse_etl.terminal import console

    if selectors:
        raise click.UsageError("name one sync, without --select")
    found = Opened(place, (sync,), reaches=True, sends=True)
    if len(found.chosen) != 1:
        raise click.UsageError(f"{sync} names {len(found.chosen)} syncs")
    fitting(key, [one.sync.changelog for one in found.chosen])
    with found as opened:
        report = opened.pusher.push(opened.chosen[0], opened.overview, key)
    if as_json:
        _print_json([console.as_json(report)])
    else:
        shown().tell(report, 1, 1)
    return report.exit_code


@cli.command()
@project_options
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("report.html"), help="The file to write."
)
@click.option(
    "--key", "keys", multiple=True, help="""Add the history of one key, as '{"customer_id": 1}'. Repeatable."""
)
@click.option("--show-values", is_flag=True, help="Add the rows of these keys: the file then holds row values.")
@click.option(
    "--newest",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="So many runs of each sync and snapshots of each model.",
)
def report(place: Place, selectors: tuple[str, ...], as_json: bool, out: Path, **asked: Any) -> int:
    """Write one HTML file: health, runs, lag, undelivered rows, changelogs and lineage."""
    from dbt_reverse_etl.app.keys import fitting
    from dbt_reverse_etl.report.page import render
    from dbt_reverse_etl.report.reading import Asked, read

    file = out.resolve()  # the session changes the folder
    if not file.parent.is_dir():
        expected = "a folder that is there"
        raise ConfigurationError(Problem("--out", f"no folder {file.parent}", expected, "make it, or name another"))
    found = Opened(place, selectors)
    for key in asked["keys"]:
        fitting(key, [one.sync.changelog for one in found.chosen])
    with found as opened:
        about = Asked(opened.target, whole=not selectors, **asked)
        made = read(opened.pusher, opened.chosen, opened.overview, opened.manifest, about)
    if as_json:
        click.echo(orjson.dumps(made, option=orjson.OPT_INDENT_2).decode())
    else:
        file.write_text(render(made), encoding="utf-8")
        say(f"Wrote {file}", "info")
    return ExitCode.OK


@cli.command()
@project_options
@click.argument("dbt_arguments", metavar="[-- DBT_ARGUMENTS]...", nargs=-1)
def check(place: Place, selectors: tuple[str, ...], as_json: bool, dbt_arguments: tuple[str, ...]) -> int:
    """Parse the project as it is now, validate the configuration, reach each destination, and ask it for the rights of a push. Writes nothing.

    What dbt needs to parse stands after --, for example: dbt-reverse-etl check -- --vars '{day: 1}'
    """
    from dbt_reverse_etl.app import check as checks
    from dbt_reverse_etl.config.artifacts import select
    from dbt_reverse_etl.terminal import console

    project = place.project(place.asked_target())
    manifest, source = checks.parsed(place, project.target, dbt_arguments), ""
    if manifest is None:
        manifest, source = project.manifest(), str(project.artifacts / "manifest.json")
    configuration = project.configuration(manifest)
    asked = select(configuration.syncs, selectors)
    configuration.refuse_unset(pushed=asked)
    chosen = {sync.unique_id for sync in asked}
    results = checks.check((one for one in configuration.resolved if one.sync.unique_id in chosen), project.folder)
    if as_json:
        click.echo(orjson.dumps(console.checked_as_json(results, source), option=orjson.OPT_INDENT_2).decode())
    else:
        plan_only = ", plan only" if isinstance(configuration.destinations, PlanOnly) else ""
        say(
            f"{console.number_of(len(chosen), 'sync')} of target {project.target}: configuration is valid{plan_only}",
            "info",
        )
        for text, level in console.checked(results, source):
            say(text, level)
    return ExitCode.OK if all(result.is_well for result in results) else ExitCode.FAILED


@cli.command()
@PROJECT_DIR
@click.option("--model", help="An existing model to make a changelog of.")
@click.option("--key", help="The column that identifies its rows.")
@click.option("--write-profile", is_flag=True, help="Also add to a profiles.yml outside of the project.")
def init(project_dir: Path, model: str | None, key: str | None, write_profile: bool) -> int:
    """Write the pieces of a first sync into a dbt project; never overwrites a file."""
    from dbt_reverse_etl.app.scaffold import initialize

    initialize(project_dir.resolve(), lambda text: say(text, "info"), model=model, key=key, write_profile=write_profile)
    return ExitCode.OK


@cli.command()
@service_options
@click.option("--listen", help="Address and port, in place of what profiles.yml says.")
def serve(listen: str | None, **where: Any) -> int:
    """Push after each successful run of a dbt Cloud job: receives its webhook."""
    from dbt_reverse_etl.serve import service

    return service.serve(_surroundings(**where), listen)


@cli.command()
@service_options
@click.option("--once", is_flag=True, help="Ask once, push what is due, and end: for cron.")
def poll(once: bool, **where: Any) -> int:
    """Push after each successful run of a dbt Cloud job: asks its API, no inbound port."""
    from dbt_reverse_etl.serve import service

    return service.poll(_surroundings(**where), once=once)


def _surroundings(project_dir: Path, profiles_dir: Path | None, log_format: str) -> Any:
    from dbt_reverse_etl.serve.surroundings import Surroundings

    return Surroundings(project_dir.resolve(), profiles_dir, dict(os.environ), shown().say, log_format)


cli.add_command(wide_table)


def _print_json(rows: Iterable[Any]) -> None:
    click.echo(orjson.dumps(list(rows), option=orjson.OPT_INDENT_2).decode())
