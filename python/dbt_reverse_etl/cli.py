"""The command `dbt-reverse-etl`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click
import orjson
import yaml

from dbt_reverse_etl import __version__
from dbt_reverse_etl.config import PlanOnly, profile_directories
from dbt_reverse_etl.errors import ConfigurationError, ExitCode, Problem, ReverseEtlError, unexpected
from dbt_reverse_etl.output import screen
from dbt_reverse_etl.profiles import read_profile, render
from dbt_reverse_etl.redaction import redact
from dbt_reverse_etl.screen import Screen

_SCREEN = "dbt_reverse_etl.screen"  # where the context keeps it


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Push what changed in dbt models to the tools that need the rows.

    Plain `dbt run` pushes by itself; these commands are for the rest.
    """


def main() -> None:
    """Entry point: errors of the user without a traceback."""
    kept: dict[str, Any] = {}
    try:
        code = cli(standalone_mode=False, obj=kept)
    except ReverseEtlError as error:
        _screen(kept).say(redact(str(error)), "error")
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _screen(kept).say("interrupted", "error")
        code = 130
    except Exception as error:
        _screen(kept).say(str(unexpected(error, "dbt-reverse-etl")), "error")
        code = ExitCode.FAILED
    sys.exit(int(code or 0))


def _screen(kept: Mapping[str, Any]) -> Screen:
    found: Screen | None = kept.get(_SCREEN)
    return found or screen("text", os.environ, quiet=False, verbose=False, document=False)


def _shown() -> Screen:
    return _screen(click.get_current_context().ensure_object(dict))


def _say(text: str, level: str, **about: Any) -> None:
    _shown().say(text, level, **about)


def _project_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--project-dir",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path(),
            help="The dbt project; default: here.",
        ),
        click.option(
            "--profiles-dir", type=click.Path(path_type=Path, file_okay=False), help="Where profiles.yml stands."
        ),
        click.option("--target", help="The dbt target; default: that of the last run, then of profiles.yml."),
        click.option(
            "--target-path", type=click.Path(path_type=Path), default=Path("target"), help="Folder of dbt's artifacts."
        ),
        click.option(
            "--select",
            "selectors",
            multiple=True,
            help="A sync by name, or tag:NAME; * stands for any text. Repeatable.",
        ),
        click.option("--json", "as_json", is_flag=True, help="The result as one JSON document."),
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="Lines for people, or one JSON object per line.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="Errors only."),
        click.option("-v", "--verbose", is_flag=True, help="Also each wave, repeated request and pause."),
    )
    for option in reversed(options):
        command = option(command)

    @wraps(command)
    def wrapped(*, log_format: str, quiet: bool, verbose: bool, **rest: Any) -> Any:
        kept = click.get_current_context().ensure_object(dict)
        kept[_SCREEN] = screen(log_format, os.environ, quiet=quiet, verbose=verbose, document=rest["as_json"])
        place = _Place(*(rest.pop(name) for name in ("project_dir", "profiles_dir", "target", "target_path")))
        return command(place=place, **rest)

    return wrapped


class _Place:
    """A dbt project on disk, and the target that holds for it."""

    def __init__(self, folder: Path, profiles_dir: Path | None, target: str | None, target_path: Path) -> None:
        folder = folder.resolve()
        self.folder, self.env = folder, dict(os.environ)
        self.profiles = profile_directories(profiles_dir, folder, self.env)
        self.artifacts = folder / target_path
        self._target = target

    def project(self, target: str | None = None) -> Any:
        from dbt_reverse_etl.invocation import Project

        target = target or self._target or self._default_target()
        return Project(self.artifacts, self.profiles, target, self.folder, self.env)

    def pushed_target(self) -> str:
        """The target of run_results.json; another one that is asked for is an error, none at all too."""
        from dbt_reverse_etl.artifacts import run

        project = self.project("")
        written = run(project.run_results(), project.manifest()).target
        if self._target and written and self._target != written:
            raise ReverseEtlError(
                Problem(
                    "--target", self._target, f"{written}, the target of run_results.json", "run dbt with that target"
                )
            )
        found = self._target or written or self.env.get("DBT_TARGET")
        return found or self._default_target()

    def session(self, target: str) -> Any:
        """The Spark session that the dbt profile describes."""
        place, profile = self._profile()
        output = profile["outputs"].get(target)
        where = f"{place.at('outputs')}.{target}"
        if not isinstance(output, Mapping):
            raise ConfigurationError(
                Problem(where, "no such target", f"one of {', '.join(profile['outputs'])}", "correct --target")
            )
        if output.get("type") != "spark" or output.get("method") != "session":
            found = f"type {output.get('type')}, method {output.get('method')}"
            raise ConfigurationError(
                Problem(where, found, "type: spark with method: session", "push where Spark runs in the process")
            )
        rendered = render(output.get("server_side_parameters") or {}, self.env, place)
        if rendered.problems:
            raise ConfigurationError(*rendered.problems)
        os.chdir(self.folder)  # relative paths of the profile are those of the project, as for dbt
        from dbt_reverse_etl.spark import connect

        return connect({name: str(value) for name, value in rendered.value.items()})

    def _profile(self) -> tuple[Any, Mapping[str, Any]]:
        file = self.folder / "dbt_project.yml"
        if not file.is_file():
            raise ReverseEtlError(
                Problem(str(file), "no such file", "a dbt project", "cd into it, or name it: --project-dir")
            )
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
        return read_profile(self.profiles, str(read.get("profile")))

    def _default_target(self) -> str:
        place, profile = self._profile()
        rendered = render(profile.get("target", "default"), self.env, place)
        return str(rendered.value)


@cli.command()
@_project_options
@click.option(
    "--override", "overrides", multiple=True, help="Let one blocked push pass, as its message says. Repeatable."
)
@click.option(
    "--if-due", is_flag=True, help="Leave out what was pushed before, or what a later run has overtaken; no error then."
)
def push(place: _Place, selectors: tuple[str, ...], as_json: bool, overrides: tuple[str, ...], if_due: bool) -> int:
    """Push what the last dbt run made due, from its artifacts."""
    from dbt_reverse_etl import invocation

    target = place.pushed_target()
    project = place.project(target)
    project.env[invocation.OVERRIDE] = " ".join((*overrides, project.env.get(invocation.OVERRIDE, "")))
    return _pushed(project, place, as_json, selectors=selectors, refuse_repeat=True, skip_stale=if_due)


@cli.command()
@_project_options
def retry(place: _Place, selectors: tuple[str, ...], as_json: bool) -> int:
    """Push the syncs whose last push left rows behind, rows that wait or are parked included."""
    return _pushed(
        place.project(place.pushed_target()), place, as_json, selectors=selectors, retried=True, retry_now=True
    )


def _pushed(project: Any, place: _Place, as_json: bool, **how: Any) -> int:
    from dbt_reverse_etl import console, invocation

    project.configuration(project.manifest())
    shown = _shown()
    reports = invocation.after_dbt(project, place.session(project.target), shown.say, screen=shown, **how)
    if as_json:
        _print_json(map(console.as_json, reports))
    else:
        _say(console.summary(reports) if reports else "Nothing to push.", "info")
    return max((report.exit_code for report in reports), default=ExitCode.OK)


@cli.command()
@_project_options
@click.option("--sample", default=5, show_default=True, help="Show so many pending rows by key.")
@click.option("--markdown", is_flag=True, help="For a review: sentences and a table, without keys.")
def plan(place: _Place, selectors: tuple[str, ...], as_json: bool, sample: int, markdown: bool) -> int:
    """Show what a push would send. Sends nothing, moves nothing."""
    from dbt_reverse_etl import console

    with _Opened(place, selectors) as opened:
        reports = [opened.pusher.plan(one, opened.overview, 0 if markdown else sample) for one in opened.chosen]
    if as_json:
        _print_json(map(console.as_json, reports))
    elif markdown:
        from dbt_reverse_etl.review import as_markdown

        click.echo(as_markdown(reports))
    elif reports:
        _say(console.plan(reports), "info", plan=list(map(console.as_json, reports)))
        for report in reports:
            if report.message:
                _say(f"{report.sync}: {report.message}", console.level(report), sync=report.sync)
    return max((report.exit_code for report in reports), default=ExitCode.OK)


@cli.command()
@_project_options
@click.option("--repair", "repaired", is_flag=True, help="Push the rows that differ; foreign ones are left alone.")
@click.option("--sample", default=5, show_default=True, help="Show so many keys that differ.")
def reconcile(place: _Place, selectors: tuple[str, ...], as_json: bool, repaired: bool, sample: int) -> int:
    """Compare each destination with what was delivered to it, key by key."""
    from dbt_reverse_etl import console, invocation

    with _Opened(place, selectors) as opened:
        results = [opened.pusher.reconcile(one, opened.overview, repaired=repaired) for one in opened.chosen]
        due = [
            one
            for one, found in zip(opened.chosen, results, strict=True)
            if found.differences and found.differences.wrong
        ]
        reports: list[Any] = []
        if repaired and due:
            shown = _shown()
            opened.pusher.watch = invocation.watch(shown)
            with shown:
                invocation.push_all(opened.pusher, due, opened.overview_now(), reports.append, shown.glance)
    if as_json:
        _print_json([console.reconciled_as_json(found, sample) for found in results])
    else:
        for number, found in enumerate(results, 1):
            level = console.reconciled_level(found)
            _say(console.reconciled_line(number, len(results), found), level)
            if found.message:
                _say(f"  {found.message}", level)
            for one in found.differences.first[:sample] if found.differences else ():
                _say(f"    {one.kind:9} {one.key}", "info")
        for number, report in enumerate(reports, 1):
            invocation.tell(report, number, len(reports), _say)
    return max((one.exit_code for one in [*results, *reports]), default=ExitCode.OK)


@cli.command()
@_project_options
def status(place: _Place, selectors: tuple[str, ...], as_json: bool) -> int:
    """Show each sync's position, lag, undelivered rows and last run."""
    from dbt_reverse_etl import console

    with _Opened(place, selectors) as opened:
        rows = [opened.pusher.status(one, opened.overview) for one in opened.chosen]
    if as_json:
        _print_json(rows)
    else:
        columns = ("sync", "destination", "position", "head", "lag", "undelivered", "last_run", "last_run_at")
        click.echo(console.table(columns, rows))
    return ExitCode.OK


@cli.command()
@_project_options
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
def report(place: _Place, selectors: tuple[str, ...], as_json: bool, out: Path, **asked: Any) -> int:
    """Write one HTML file: health, runs, lag, undelivered rows, changelogs and lineage."""
    from dbt_reverse_etl.report.page import render
    from dbt_reverse_etl.report.reading import Asked

    file = out.resolve()  # the session changes the folder
    with _Opened(place, selectors) as opened:
        made = opened.report(Asked(opened.target, **asked))
    if as_json:
        click.echo(orjson.dumps(made, option=orjson.OPT_INDENT_2).decode())
    else:
        file.write_text(render(made), encoding="utf-8")
        _say(f"Wrote {file}", "info")
    return ExitCode.OK


@cli.command()
@_project_options
def check(place: _Place, selectors: tuple[str, ...], as_json: bool) -> int:
    """Validate the configuration and reach each destination, read-only."""
    from dbt_reverse_etl.artifacts import select

    project = place.project()
    configuration = project.configuration(project.manifest())
    chosen = {sync.unique_id for sync in select(configuration.syncs, selectors)}
    named = {one.destination.name: one.destination for one in configuration.resolved if one.sync.unique_id in chosen}
    results = [_checked(name, destination) for name, destination in sorted(named.items())]
    if as_json:
        _print_json(results)
    else:
        plan_only = isinstance(configuration.destinations, PlanOnly)
        _say(
            f"{len(chosen)} syncs of target {project.target}: configuration is valid"
            + (", plan only" if plan_only else ""),
            "info",
        )
        for result in results:
            _say(
                f"{result['destination']} ({result['type']}): {result['message'] or 'reached'}",
                "error" if result["message"] else "info",
            )
    return ExitCode.FAILED if any(result["message"] for result in results) else ExitCode.OK


def _checked(name: str, destination: Any) -> dict[str, str]:
    message = ""
    sink = destination.sink(destination.settings)
    try:
        sink.check()
    except ReverseEtlError as error:
        message = redact(str(error))
    finally:
        sink.close()
    return {"destination": name, "type": destination.type, "message": message}


@cli.command()
@click.option(
    "--project-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="The dbt project; default: here.",
)
@click.option("--model", help="An existing model to make a changelog of.")
@click.option("--key", help="The column that identifies its rows.")
@click.option("--write-profile", is_flag=True, help="Also add to a profiles.yml outside of the project.")
def init(project_dir: Path, model: str | None, key: str | None, write_profile: bool) -> int:
    """Write the pieces of a first sync into a dbt project; never overwrites a file."""
    from dbt_reverse_etl.scaffold import initialize

    initialize(
        project_dir.resolve(), lambda text: _say(text, "info"), model=model, key=key, write_profile=write_profile
    )
    return ExitCode.OK


def _service_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--project-dir",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path(),
            help="The dbt project; default: here.",
        ),
        click.option(
            "--profiles-dir", type=click.Path(path_type=Path, file_okay=False), help="Where profiles.yml stands."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@cli.command()
@_service_options
def serve(project_dir: Path, profiles_dir: Path | None) -> int:
    """Push after each successful run of a dbt Cloud job: receives its webhook."""
    from dbt_reverse_etl.serve import service

    return service.serve(service.Surroundings(project_dir.resolve(), profiles_dir, dict(os.environ), _shown().say))


@cli.command()
@_service_options
@click.option("--once", is_flag=True, help="Ask once, push what is due, and end: for cron.")
def poll(project_dir: Path, profiles_dir: Path | None, once: bool) -> int:
    """Push after each successful run of a dbt Cloud job: asks its API, no inbound port."""
    from dbt_reverse_etl.serve import service

    around = service.Surroundings(project_dir.resolve(), profiles_dir, dict(os.environ), _shown().say)
    return service.poll(around, once=once)


@cli.group("wide-table")
def wide_table() -> None:
    """Wide tables: joins that are declared, see docs/wide-tables.md."""


@wide_table.command()
@click.argument("model")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Also draw the tree into this file.")
@click.option(
    "--project-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="The dbt project."
)
@click.option("--target-path", type=click.Path(path_type=Path), default=Path("target"), help="Folder of the manifest.")
def explain(model: str, svg: Path | None, project_dir: Path, target_path: Path) -> int:
    """Print the join tree of MODEL, from dbt's manifest; starts no Spark."""
    from dbt_reverse_etl import wide_table_picture, wide_tables
    from dbt_reverse_etl.invocation import read_json

    wide = wide_tables.wide_table(read_json(project_dir.resolve() / target_path / "manifest.json"), model)
    click.echo(wide_tables.as_text(wide))
    if svg:
        svg.write_text(wide_table_picture.as_svg(wide), encoding="utf-8")
        _say(f"Drawn: {svg}", "info")
    return ExitCode.OK


class _Opened:
    """What `plan`, `status` and `reconcile` need: the chosen syncs, the ledger's view of them, and a session."""

    def __init__(self, place: _Place, selectors: Iterable[str]) -> None:
        from dbt_reverse_etl.artifacts import select

        self._project = place.project()
        self._place = place
        self._manifest = self._project.manifest()
        configuration = self._project.configuration(self._manifest)
        if isinstance(configuration.destinations, PlanOnly):
            found = f"target {self._project.target} is `plan` in profiles.yml, so it has no destinations"
            raise ReverseEtlError(
                Problem("profiles.yml", found, "a target with destinations", "add them, or use --target")
            )
        chosen = {sync.unique_id for sync in select(configuration.syncs, tuple(selectors))}
        self.chosen = [one for one in configuration.resolved if one.sync.unique_id in chosen]

    def __enter__(self) -> _Opened:
        from dbt_reverse_etl.invocation import open_ledger
        from dbt_reverse_etl.push import Pusher

        spark = self._place.session(self._project.target)
        self.pusher = Pusher(spark, open_ledger(spark, self._manifest), project_dir=self._place.folder)
        self.overview = self.overview_now()
        return self

    @property
    def target(self) -> str:
        """The dbt target."""
        return str(self._project.target)

    def report(self, asked: Any) -> Any:
        """What the report page shows of the chosen syncs."""
        from dbt_reverse_etl.report.reading import read

        return read(self.pusher, self.chosen, self.overview, self._manifest, asked)

    def overview_now(self) -> Any:
        """What the ledger says of the chosen syncs."""
        from dbt_reverse_etl.invocation import ledger_names

        return self.pusher.ledger.overview(ledger_names(self.chosen))

    def __exit__(self, *_: object) -> None:
        pass


def _print_json(rows: Iterable[Any]) -> None:
    click.echo(orjson.dumps(list(rows), option=orjson.OPT_INDENT_2).decode())
