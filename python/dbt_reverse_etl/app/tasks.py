"""A sync as its sink sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from dbt_reverse_etl.base.errors import ConfigurationError, Problem, raise_if_any
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.warehouse.spec import Spec, resolve


def task_of(resolved: ResolvedSync, sync_id: str, spec: Spec | None, project_dir: Path | None) -> SinkTask:
    """Of this spec; without one, nobody may open it."""
    key = spec.key(resolved.sync.changelog.key) if spec else ()
    schema = spec.arrow_schema() if spec else pa.schema([])
    owns = resolved.sync.settings.owns_object and resolved.destination.sink.full_loads
    return resolved.task(key, schema, sync_id=sync_id, project_dir=project_dir, owns_object=owns)


def refuse_unfit(
    spark: SparkSession, syncs: Iterable[ResolvedSync], columns: Sequence[Mapping[str, str]], project_dir: Path
) -> None:
    """Look at the syncs of a changelog with the columns that it is about to have, each a `name` and a `type`.

    Raises:
        ConfigurationError: fields, filters or their types fit neither them nor the destination.
    """
    named, problems = [(column["name"], column["type"]) for column in columns], list[Problem]()
    for one in syncs:
        try:
            task = task_of(one, "", resolve(spark, one.sync, named), project_dir)
            sink = one.destination.sink(one.destination.settings)
            sink.validate(replace(task, full_load=one.sync.settings.owns_object))
        except ConfigurationError as error:
            problems.extend(error.problems)
    raise_if_any(problems)
