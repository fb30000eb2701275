"""Any Singer target as a destination: one process of it for each batch.

A batch is SCHEMA, its RECORDs and a STATE that nobody else has; then stdin is closed. It is delivered only when the
target ends with exit code 0 and this STATE is the last line that it wrote. Many targets write STATE only at the end of
their input or when a buffer is full, hence one process for each batch. Whatever else happens is unknown: the target
may have stored any of the rows.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from dbt_reverse_etl.base.errors import DestinationError, Problem, raise_if_any
from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Batch, Limits, Mode, Rights, Sink, SinkTask, options_of
from dbt_reverse_etl.sinks.refusals import nan_keys, null_keys, refused_deletes, unmapped_key
from dbt_reverse_etl.sinks.singer.messages import record_messages, says, schema_message, state_message
from dbt_reverse_etl.sinks.singer.process import Ended, NotStartedError, Program, run
from dbt_reverse_etl.sinks.singer.settings import SingerOptions, SingerSettings
from dbt_reverse_etl.values.encoding import encode_rows

_PROBE = "probe"
_DELETED_AT, _INSTANT = "_sdc_deleted_at", pa.timestamp("us", "UTC")
_METADATA = "add_record_metadata"  # with false, targets of the Meltano SDK drop every column `_sdc_*`


class SingerSink(Sink):
    """Sends rows to one stream of a Singer target."""

    type = "singer"
    settings_model = SingerSettings
    options_model = SingerOptions
    modes = frozenset({Mode.UPSERT, Mode.MIRROR})
    validates_early = True
    promise = "At least once; a repeat is harmless where the target upserts by key."

    _task: SinkTask

    def __init__(self, settings: SingerSettings) -> None:
        self._settings = settings

    @property
    def identity(self) -> str:
        return self._settings.place

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (the same for every sync)
        """Large batches, for each costs a process; one at a time, so that the rows of a key stay in order."""
        return Limits(rows=self._settings.batch_rows, bytes=32 * 2**20, concurrency=1)

    def validate(self, task: SinkTask) -> None:
        """Refuse keys that are not mapped, deletes that no target would get, and names that targets use or fold."""
        raise_if_any([*unmapped_key(task), *self._delete_problems(task), *_field_problems(task)])

    def check(self) -> None:
        """Look for the program and a place for its log; nothing is started or made."""
        self._program()
        log = self._settings.log_file
        if log is not None and not _is_writable(log):
            expected = "a file, or a new one in a folder that exists, which this user may write"
            raise self.problem("a log_file that cannot be written", expected, "correct log_file, or make its folder")

    def rights(self, task: SinkTask) -> Rights:  # noqa: ARG002  (the same for every sync)
        """The target alone knows its destination."""
        return Rights(untried=("the target's own config and destination: it is not started",))

    def open(self, task: SinkTask) -> None:
        """Start the target once with the schema and no row: it must make or check its table, and write STATE back."""
        self._program()
        self._task, self._now = task, datetime.now(timezone.utc)
        failed = self._told((), _PROBE)
        if failed is not None:
            if failed[0] is Outcome.FATAL:
                raise self.problem(failed[1], "a target that starts", "correct command or log_file")
            expected = "a target that takes the schema, writes STATE back and ends with exit code 0"
            next_step = f"{self._where_to_look()}, and correct config"
            raise self.problem(f"without any row: {failed[1]}", expected, next_step)

    def deliver(self, batch: Batch) -> Delivery:
        """Feed one process of the target with the batch."""
        records, refused = self._records(batch.rows)
        results = {row: RowResult(row, Outcome.REJECTED, reason) for row, reason in refused.items()}
        failed = self._told(records.values(), batch.claim) if records else None
        if failed is not None:
            outcome, reason = failed
            reason = f"{reason}; {self._where_to_look()}" if outcome is Outcome.UNKNOWN else reason
            results |= {row: RowResult(row, outcome, reason) for row in records}
        return Delivery(tuple(results[row] for row in sorted(results)))

    def close(self) -> None:
        """Nothing is open between two batches."""

    def _told(self, records: Iterable[bytes], claim: str) -> tuple[Outcome, str] | None:
        """None if the target acknowledged the records, else what became of all of them."""
        task = self._task
        state = {"bookmarks": {}, "dbt_reverse_etl": {"sync": task.sync_id, "claim": claim, "batch": uuid4().hex}}
        schema = schema_message(task.object, _fields(task), task.key)
        messages = chain([schema], record_messages(task.object, [*records]), [state_message(state)])
        try:
            ended = run(self._program(task.project_dir), messages)
        except (NotStartedError, DestinationError) as error:
            reason = str(error) if isinstance(error, NotStartedError) else "it is no longer installed"
            return Outcome.FATAL, f"the target could not be started: {reason}"
        doubt = self._doubt(ended, state)
        return (Outcome.UNKNOWN, doubt) if doubt else None

    def _doubt(self, ended: Ended, state: dict[str, Any]) -> str | None:
        """Why nobody knows whether the rows are stored, or None. Never a word of the target, which may quote rows."""
        if not ended.in_time:
            return f"the target did not end within {self._settings.timeout:g} s and was ended"
        if ended.code is None:
            return "the target was ended together with the process that guards it"
        if ended.code < 0:
            return f"the target was ended by {_signal(-ended.code)}"
        if ended.code > 0:
            return f"the target ended with exit code {ended.code}"
        if not says(ended.last_line, state):
            return "the target ended without the STATE of this batch as its last line"
        return None

    def _records(self, rows: pa.Table) -> tuple[dict[int, bytes], dict[int, str]]:
        """Row -> its JSON, and row -> why it is refused."""
        task, options = self._task, options_of(self._task, SingerOptions)
        table = rows.drop_columns([OPERATION, EVENT_ID])
        refused = null_keys(table, task.key) | nan_keys(table, task.key, as_null=options.nan == "null")
        refused |= refused_deletes(rows, task.mode)
        if task.mode is Mode.MIRROR:
            is_delete = pc.equal(rows.column(OPERATION), "delete")
            when = pc.if_else(is_delete, pa.scalar(self._now, _INSTANT), pa.scalar(None, _INSTANT))
            table = table.append_column(_DELETED_AT, when)
        encoded = encode_rows(table, nan=options.nan)
        refused = encoded.rejected | refused
        kept = {row: record for row, record in enumerate(encoded.rows) if record is not None and row not in refused}
        return kept, refused

    def _delete_problems(self, task: SinkTask) -> list[Problem]:
        where, deletes = f"sync {task.sync}", options_of(task, SingerOptions).deletes
        if task.mode is Mode.MIRROR and deletes is None:
            next_step = "set options: {deletes: sdc_deleted_at} if the target keeps that column, or mode: upsert"
            return [Problem(f"{where}: mode", "mirror", "a way to tell the target of deletes", next_step)]
        if task.mode is not Mode.MIRROR and deletes is not None:
            next_step = "set mode: mirror, or remove options.deletes"
            return [Problem(f"{where}: options.deletes", f"mode {task.mode.value}", "mode mirror", next_step)]
        if deletes is not None and self._settings.config.get_secret_value().get(_METADATA) is False:
            found = f"config.{_METADATA}: false, with which a target drops {_DELETED_AT}"
            return [Problem(f"{where}: options.deletes", found, "true", f"set config.{_METADATA} to true")]
        return []

    def _program(self, folder: Path | None = None) -> Program:
        settings = self._settings
        environment = settings.environment
        first, *arguments = settings.command
        is_relative = os.sep in first and not Path(first).is_absolute()
        found = None if is_relative else shutil.which(first, path=environment.get("PATH", os.defpath))
        if found is None:
            expected = "a program on PATH, or an absolute path"
            next_step = f"install it in an environment of its own, e.g. pipx install {settings.name}"
            raise self.problem(f"no program {settings.name}", expected, next_step)
        config = settings.config.get_secret_value()
        found = str(Path(found).absolute())  # PATH may have a relative folder, and the target runs in the project
        return Program([found, *arguments], config, environment, settings.timeout, settings.log_file, folder)

    def _where_to_look(self) -> str:
        if self._settings.log_file is None:
            return "set log_file to see what the target says"
        return "look at log_file"


def _is_writable(file: Path) -> bool:
    if os.access(file, os.F_OK):
        return os.access(file, os.W_OK) and not file.is_dir()
    return os.access(file.parent, os.W_OK | os.X_OK) and file.parent.is_dir()


def _fields(task: SinkTask) -> pa.Schema:
    """The fields, and in mode mirror the time of deletion."""
    return task.schema.append(pa.field(_DELETED_AT, _INSTANT)) if task.mode is Mode.MIRROR else task.schema


def _field_problems(task: SinkTask) -> list[Problem]:
    where, names = f"sync {task.sync}", task.schema.names
    expected, next_step = "a name without the prefix _sdc_, which targets use themselves", "rename it under fields"
    problems = [
        Problem(where, f"field {name}", expected, next_step) for name in names if name.lower().startswith("_sdc_")
    ]
    twins = [name for name, count in Counter(map(str.lower, names)).items() if count > 1]
    expected, next_step = "names that differ in more than case, for targets may fold it", "rename one under fields"
    return problems + [Problem(where, f"two fields {name}", expected, next_step) for name in twins]


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
