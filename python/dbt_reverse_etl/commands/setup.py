"""The commands for a project before its first push: `init` and `check`."""

from __future__ import annotations

from pathlib import Path

import click

from dbt_reverse_etl.app.place import Place
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.config.destinations import PlanOnly, resolved_of
from dbt_reverse_etl.terminal.options import PROJECT_DIR, project_options, say
from dbt_reverse_etl.terminal.output import put_json


@click.command()
@PROJECT_DIR
@click.option("--model", help="An existing model to make a changelog of.")
@click.option("--key", help="The column that identifies its rows.")
@click.option("--write-profile", is_flag=True, help="Also add to a profiles.yml outside of the project.")
def init(project_dir: Path, model: str | None, key: str | None, write_profile: bool) -> int:
    """Write the pieces of a first sync into a dbt project; never overwrites a file."""
    from dbt_reverse_etl.app.scaffold import initialize

    initialize(project_dir.resolve(), lambda text: say(text, "info"), model=model, key=key, write_profile=write_profile)
    return ExitCode.OK


@click.command()
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
        project = place.project()
        manifest, source = project.manifest(), str(project.artifacts / "manifest.json")
    configuration = project.configuration(manifest)
    asked = select(configuration.syncs, selectors)
    configuration.refuse_unset(pushed=asked)
    results = checks.check(resolved_of(configuration.resolved, asked), project.folder)
    if as_json:
        put_json(console.checked_as_json(results, source))
    else:
        capture_only = ", capture only" if isinstance(configuration.destinations, PlanOnly) else ""
        nothing = "no exposure that is switched on has config.meta.reverse_etl"
        state = f"configuration is valid{capture_only}" if asked else nothing
        say(f"{console.number_of(len(asked), 'sync')} of target {project.target}: {state}", "info" if asked else "warn")
        for text, level in console.checked(results, source):
            say(text, level)
    return ExitCode.OK if all(result.is_well for result in results) else ExitCode.FAILED
