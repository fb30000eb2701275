"""The commands that run as a service beside dbt Cloud: `serve` and `poll`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from dbt_reverse_etl.terminal.options import service_options, shown


@click.command()
@service_options
@click.option("--listen", help="Address and port, in place of what profiles.yml says.")
def serve(listen: str | None, **where: Any) -> int:
    """Push after each successful run of a dbt Cloud job: receives its webhook."""
    from dbt_reverse_etl.serve import service

    return service.serve(_surroundings(**where), listen)


@click.command()
@service_options
@click.option("--once", is_flag=True, help="Ask once, push what is due, and end: for cron.")
def poll(once: bool, **where: Any) -> int:
    """Push after each successful run of a dbt Cloud job: asks its API, no inbound port."""
    from dbt_reverse_etl.serve import service

    return service.poll(_surroundings(**where), once=once)


def _surroundings(project_dir: Path, profiles_dir: Path | None, log_format: str) -> Any:
    from dbt_reverse_etl.serve.surroundings import Surroundings

    return Surroundings(project_dir.resolve(), profiles_dir, dict(os.environ), shown().say, log_format)
