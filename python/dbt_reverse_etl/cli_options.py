"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

PROJECT_DIR = click.option(
    "--project-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="The dbt project; default: here.",
)
PROFILES_DIR = click.option(
    "--profiles-dir", type=click.Path(path_type=Path, file_okay=False), help="Where profiles.yml stands."
)
TARGET_PATH = click.option(
    "--target-path", type=click.Path(path_type=Path), default=Path("target"), help="Folder of dbt's artifacts."
)
