"""The commands that show what was, or would be, delivered: `plan`, `status`, `undelivered`, `reconcile` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dbt_reverse_etl.app.place import Opened, Place
from dbt_reverse_etl.base.errors import ExitCode, mistake
from dbt_reverse_etl.commands.out_file import refuse_unwritable, write_out
from dbt_reverse_etl.terminal.options import project_options, say, shown
from dbt_reverse_etl.terminal.output import put_json


@click.command()
@project_options
@click.option(
    "--sample", default=5, show_default=True, type=click.IntRange(min=0), help="Show so many pending rows by key."
)
@click.option("--markdown", is_flag=True, help="For a review: sentences and a table, without keys.")
def plan(place: Place, selectors: tuple[str, ...], as_json: bool, sample: int, markdown: bool) -> int:
    """Show what a push would send. Sends nothing, moves nothing."""
    from dbt_reverse_etl.terminal import console, output

    with Opened(place, selectors, plans=not markdown) as opened:
        reports = [opened.pusher.plan(one, opened.overview, 0 if markdown else sample) for one in opened.chosen]
    if as_json:
        put_json([console.as_json(report) for report in reports])
    elif markdown:
        from dbt_reverse_etl.terminal.review import as_markdown

        output.put(as_markdown(reports))
        for report in reports:
            if report.exit_code is not ExitCode.OK:
                say(f"{report.sync}: {report.message}", "error", sync=report.sync)
    elif reports:
        if text := console.plan(reports):
            say(text, "info", plan=list(map(console.as_json, reports)))
        for report in reports:
            if report.message:
                say(f"{report.sync}: {report.message}", console.level(report), sync=report.sync)
    return max((report.exit_code for report in reports), default=ExitCode.OK)


@click.command()
@project_options
@click.option("--fail", is_flag=True, help="End with 1 if a sync is neither ok nor behind.")
def status(place: Place, selectors: tuple[str, ...], as_json: bool, fail: bool) -> int:
    """Show how each sync stands and why: health, position, lag, undelivered rows and last run."""
    from dbt_reverse_etl.delivery.health import Health
    from dbt_reverse_etl.terminal import console

    with Opened(place, selectors) as opened:
        rows = [opened.pusher.status(one, opened.overview) for one in opened.chosen]
    if as_json:
        put_json(rows)
    else:
        columns = (
            "sync", "destination", "health", "position", "head", "lag", "undelivered", "no_match", "last_run", "last_run_at",
        )  # fmt: skip
        say("\n".join((console.table(columns, rows), *console.status_details(rows))), "info", status=rows)
    well = all(Health(row["health"]).is_well for row in rows)
    return ExitCode.OK if well or not fail else ExitCode.FAILED


@click.command()
@project_options
@click.argument("syncs", metavar="[SYNC]...", nargs=-1)
@click.option(
    "--limit", type=click.IntRange(min=1), show_default="100, with --json all", help="Show so many rows of each."
)
def undelivered(
    place: Place, selectors: tuple[str, ...], as_json: bool, syncs: tuple[str, ...], limit: int | None
) -> int:
    """List the rows that a destination does not have: by key, with the reason, attempts and when each is tried again."""
    from dbt_reverse_etl.delivery.health import Health
    from dbt_reverse_etl.terminal import console

    with Opened(place, (*selectors, *syncs)) as opened:
        found = {one.sync.name: console.undelivered(one, opened.overview) for one in opened.chosen}
        stand = [opened.pusher.status(one, opened.overview) for one in opened.chosen]
    limit = limit or (None if as_json else 100)
    rows = [row for some in found.values() for row in some[:limit]]
    if as_json:
        put_json([*rows, *(row for one in stand for row in console.not_listed(one))])
    elif rows:
        columns = ("sync", "key", "operation", "outcome", "attempts", "next_attempt", "reason")
        say(console.table(columns, rows), "info", undelivered=rows)
    for name, some in found.items():
        if limit and len(some) > limit:
            say(f"{name}: {limit} of {console.number_of(len(some), 'row')} shown: --limit", "info")
    others = [one for one in stand if one["health"] != Health.OK]
    for one in others:  # what a sync has still to plan, or has planned and not reached, no list has
        say(f"{one['sync']}: {one['health']}: {one['reason']}", "warn")
    if not rows:
        say("No row is listed." if others else "Every row is delivered.", "info")
    return ExitCode.OK


@click.command()
@project_options
@click.option("--repair", "repaired", is_flag=True, help="Push the rows that differ; foreign ones are left alone.")
@click.option(
    "--leftovers",
    type=click.Choice(["delete", "keep"]),
    help="With --repair: what becomes of rows that may be left from a changelog or ledger that is gone.",
)
@click.option(
    "--sample", default=5, show_default=True, type=click.IntRange(min=0), help="Show so many keys that differ."
)
def reconcile(place: Place, selectors: tuple[str, ...], as_json: bool, sample: int, **how: Any) -> int:
    """Compare each destination with what was delivered to it, key by key."""
    from dbt_reverse_etl.app import invocation
    from dbt_reverse_etl.terminal import console

    if how["leftovers"] and not how["repaired"]:
        raise mistake("--leftovers", "no --repair", "both", "add it, or remove --leftovers")
    with Opened(place, selectors, reaches=True, sends=how["repaired"]) as opened:
        results = [opened.pusher.reconcile(one, opened.overview, **how) for one in opened.chosen]
        due = [one for one, found in zip(opened.chosen, results, strict=True) if found.repaired]
        reports: list[Any] = []
        if due:
            screen = shown()
            with invocation.watched(opened.pusher, screen):
                invocation.push_all(opened.pusher, due, opened.overview_now(), reports.append, screen.glance)
    pushed = {report.sync: report for report in reports}
    ended = [(found, pushed.get(found.sync)) for found in results]
    if as_json:
        put_json([console.reconciled_as_json(found, push, sample) for found, push in ended])
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
    return int(max((console.reconciled_code(*one) for one in ended), default=ExitCode.OK))


@click.command()
@project_options
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--key", "keys", multiple=True, help="""Add the history of one key, as '{"customer_id": 1}'. Repeatable."""
)
@click.option("--show-values", is_flag=True, help="Add the rows of these keys: the file then holds row values.")
@click.option(
    "--newest",
    type=click.IntRange(min=1),
    show_default="100, with more than 30 syncs fewer",
    help="So many runs of each sync and snapshots of each model.",
)
def report(place: Place, selectors: tuple[str, ...], as_json: bool, out: Path, **asked: Any) -> int:
    """Write one HTML file: health, runs, lag, undelivered rows, changelogs and lineage."""
    from dbt_reverse_etl.app.keys import fitting
    from dbt_reverse_etl.report.page import render
    from dbt_reverse_etl.report.reading import Asked, changelogs_shown, read

    file = out.absolute()  # the session changes the folder
    if not as_json:
        refuse_unwritable("--out", file)
    found = Opened(place, selectors)
    for key in asked["keys"]:
        fitting(key, list(changelogs_shown(found.manifest, found.chosen, whole=not selectors).values()))
    with found as opened:
        about = Asked(opened.target, whole=not selectors, **asked)
        made = read(opened.pusher, opened.chosen, opened.overview, opened.manifest, about)
    if as_json:
        put_json(made)
    else:
        write_out("--out", file, render(made))
        say(f"Wrote {file}", "info")
    return ExitCode.OK
