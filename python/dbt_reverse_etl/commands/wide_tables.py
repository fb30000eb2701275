"""The commands `dbt-reverse-etl wide-table`: they work from dbt's manifest and start no Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.commands.out_file import refuse_unwritable, write_out
from dbt_reverse_etl.terminal.options import PROJECT_DIR, TARGET_PATH
from dbt_reverse_etl.terminal.output import put


@click.group("wide-table")
def wide_table() -> None:
    """Wide tables: joins that are declared, see docs/wide-tables.md."""


@wide_table.command()
@click.argument("model")
@PROJECT_DIR
@TARGET_PATH
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Also draw the tree into this file.")
def explain(model: str, svg: Path | None, project_dir: Path, target_path: Path | None) -> int:
    """Print the join tree of MODEL, from dbt's manifest; starts no Spark."""
    from dbt_reverse_etl.wide import picture, trees

    if svg:
        refuse_unwritable("--svg", svg)
    wide = trees.wide_table(_manifest(project_dir.resolve(), target_path), model)
    put(trees.as_text(wide))
    if svg:
        write_out("--svg", svg, picture.as_svg(wide))
        put(f"Drawn: {svg}")
    return ExitCode.OK


@wide_table.command()
@click.argument("model")
@PROJECT_DIR
@TARGET_PATH
@click.option("--changelogs", is_flag=True, help="Each model is a changelog: a change wakes only what hangs on it.")
@click.option(
    "--load-columns",
    is_flag=True,
    help="Add loaded_at and loaded_snapshot: when a row's last change was captured, and with which snapshot.",
)
@click.option(
    "--partition-by", metavar="COLUMN|NAME=SQL", help="Partition the wide table by a column of it, or by one more."
)
def generate(model: str, project_dir: Path, target_path: Path | None, **wanted: Any) -> int:
    """Write the wide table that MODEL declares as a chain of ordinary dbt models, which ends in MODEL_chain.

    Run again it writes nothing; what a person changed is never overwritten. Starts no Spark.
    """
    from dbt_reverse_etl.wide import chain, files, trees
    from dbt_reverse_etl.wide.inputs import Inputs

    project = project_dir.resolve()
    manifest = _manifest(project, target_path)
    node, plan = trees.declared_plan(manifest, model)
    inputs = Inputs(manifest, node, plan)
    models = chain.chain(inputs, plan, chain.Wanted(**wanted))
    done = files.write(files.folder_of(project, manifest, models), models, inputs.chains)
    for path in done.files:
        put(f"wrote {path.relative_to(project)}")
    for path in done.unneeded:
        put(f"no wide table needs {path.relative_to(project)} any more: delete it")
    if not done.files:
        put(f"Nothing to write: the {len(models)} models are as declared")
    put(f"Next: dbt run --select +{models[-1].name}")
    return ExitCode.OK


def _manifest(project: Path, target_path: Path | None) -> dict[str, Any]:
    from dbt_reverse_etl.app.place import artifacts_folder
    from dbt_reverse_etl.app.project import read_manifest

    return read_manifest(artifacts_folder(project, target_path, os.environ), project)
