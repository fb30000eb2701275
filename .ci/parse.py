"""Parses the quickstart with the dbt package in it; every deprecation of dbt is an error. Starts no Spark."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import dbt.jsonschemas.jsonschemas as schemas
from dbt.cli.main import dbtRunner

from dbt_reverse_etl.app.scaffold import initialize

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart"
STRICT = ("--warn-error-options", "{error: [Deprecations]}", "--show-all-deprecations")


def main() -> int:
    # dbt applies its JSON schemas only for adapters of this list, and spark is not in it.
    schemas._JSONSCHEMA_SUPPORTED_ADAPTERS |= {"spark"}
    with TemporaryDirectory() as place:
        project = Path(place) / "quickstart"
        shutil.copytree(QUICKSTART, project, ignore=shutil.ignore_patterns("packages", "dbt_packages", "target"))
        os.environ["DBT_PROFILES_DIR"] = str(project)
        initialize(project, lambda _: None)
        where = ("--project-dir", str(project))
        return (
            0
            if all(_succeeds(*command, *where) for command in (("deps",), ("parse", "--no-partial-parse", *STRICT)))
            else 1
        )


def _succeeds(*command: str) -> bool:
    """dbt itself prints what is wrong."""
    return dbtRunner().invoke(["--quiet", *command]).success


if __name__ == "__main__":
    sys.exit(main())
