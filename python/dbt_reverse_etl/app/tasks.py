"""A sync as its sink sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.warehouse.spec import Spec, resolve


def task_of(resolved: ResolvedSync, sync_id: str, spec: Spec | None, project_dir: Path | None) -> SinkTask:
    """Of this spec; without one, nobody may open it."""
    settings = resolved.sync.settings
    return SinkTask(
        sync_id=sync_id,
        sync=resolved.sync.name,
        fence=0,
        object=settings.object,
        mode=settings.mode,
        key=spec.key(resolved.sync.changelog.key) if spec else (),
        schema=spec.arrow_schema() if spec else pa.schema([]),
        options=resolved.options,
        project_dir=project_dir,
    )


def refuse_unfit(
    spark: SparkSession, resolved: ResolvedSync, columns: Iterable[tuple[str, str]], project_dir: Path | None
) -> None:
    """Look at a sync with the columns that its changelog is about to have.

    Raises:
        ConfigurationError: its fields, its filter or their types fit neither them nor the destination.
    """
    task = task_of(resolved, "", resolve(spark, resolved.sync, columns), project_dir)
    sink = resolved.destination.sink(resolved.destination.settings)
    sink.validate(replace(task, full_load=resolved.sync.settings.owns_object))
