"""The push of a Python model of dbt, which runs in the warehouse, where no artifact of dbt is at hand."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from dbt_reverse_etl.app.invocation import after_models
from dbt_reverse_etl.app.project import Project
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import ExitCode, Problem, ReverseEtlError
from dbt_reverse_etl.terminal import console
from dbt_reverse_etl.terminal.screen import Screen
from dbt_reverse_etl.warehouse.session import ansi_off

_HOOK = "{{ reverse_etl.hand_over_syncs() }}"
_MANIFEST = "https://schemas.getdbt.com/dbt/manifest/v12.json"  # what the hook hands over is a part of it
_RESULT = (
    "sync string, destination string, status string, snapshot_id bigint, "
    "delivered_inserts bigint, delivered_updates bigint, delivered_deletes bigint, seconds double, message string"
)


def push(dbt: Any, session: SparkSession, profiles: str) -> DataFrame:
    """Push every sync of the changelogs that this model refers to; one row for each is what the model holds.

    Args:
        dbt, session: as dbt gives them to the model.
        profiles: the folder of a profiles.yml with the block `dbt_reverse_etl`; files that syncs name, and relative paths, are there, too.

    Raises:
        ReverseEtlError: what went wrong, so that dbt sees a model that failed; the ledger knows what was delivered.
    """
    syncs = _handed_over(dbt, session)
    folder = Path(profiles)
    project = Project(folder, [folder], syncs["target"], folder, dict(os.environ))
    with ansi_off(session):
        reports = after_models(project, syncs, session, Screen(_write))
    if any(report.exit_code is not ExitCode.OK for report in reports):
        said = [f"{report.sync}: {text}" for report in reports for text in console.details(report) or [report.status]]
        found, next_step = console.summary(reports), "dbt retry, or the next dbt build"
        raise ReverseEtlError(Problem(str(dbt.this), found, "every sync delivered", next_step), more=said)
    return session.createDataFrame([_row(report) for report in reports], _RESULT)


def _handed_over(dbt: Any, session: SparkSession) -> dict[str, Any]:
    """The part of dbt's manifest that the hook of this invocation wrote; it is taken away, so that no later one finds it."""
    table = f"`{dbt.this.database}`.`{dbt.this.schema}`.`{dbt.this.identifier}__syncs`"
    try:
        written = session.table(table).collect()[0][0]
    except AnalysisException:
        raise ReverseEtlError(
            Problem(table, "no such table", "the syncs, which the model's pre_hook writes", f'pre_hook: "{_HOOK}"')
        ) from None
    session.sql(f"drop table {table}")
    return {**json.loads(written), "metadata": {"dbt_schema_version": _MANIFEST}}


def _write(text: str, level: str, about: Mapping[str, Any]) -> None:  # noqa: ARG001  (the shape of Write)
    print(f"{level}: {text}" if level != "info" else text)  # the output of the notebook or the job


def _row(report: Report) -> Sequence[Any]:
    sent = report.counts.delivered
    counts = (sent.insert, sent.update, sent.delete)
    return (report.sync, report.destination, report.status, report.position, *counts, report.seconds, report.message)
