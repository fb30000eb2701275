"""A Delta table of the same Spark: one MERGE, one commit, for all rows of a push.

The commit carries, as `txnAppId` and `txnVersion` of Delta's protocol, the sync and a number that grows with its fence: Delta skips a late
commit of an older run. Which claims were carried out stands in the table's history, as `userMetadata`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Literal, cast

import pyarrow as pa
from pydantic import Field, model_validator
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import StructField, StructType
from pyspark.sql.utils import is_remote

from dbt_reverse_etl.base.errors import DestinationError, Problem, raise_if_any
from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.base.sql import quoted
from dbt_reverse_etl.sinks.base import EVENT_ID, OPERATION, Batch, Limits, Mode, Rights, Settings, SinkTask, SparkSink
from dbt_reverse_etl.sinks.delta_failures import SPARK_ERRORS, judge, kind_of
from dbt_reverse_etl.sinks.delta_log import (
    has_no_log,
    location_of,
    newest_version,
    numbered,
    properties_of,
    session,
    sized_as,
    writable_columns,
)
from dbt_reverse_etl.sinks.delta_statements import add, create, merge, overwrite
from dbt_reverse_etl.sinks.fence import refuse_newer
from dbt_reverse_etl.sinks.reading import UNREADABLE
from dbt_reverse_etl.sinks.refusals import LOST_RECORD, OTHER_RUN, null_keys, refused_deletes, rejections, unmapped_key
from dbt_reverse_etl.values.spark_types import spark_type

RESYNC = "restore the table, or dbt run-operation resync for this sync"
_STEPS = 1_000_000  # commits of one run
_ATTEMPTS = 3
_TABLE = re.compile(r"[^\s./`;\x00-\x1f\x7f]{1,255}")
_CHAR = re.compile(r"\bchar\(")


class DeltaSettings(Settings):
    """What profiles.yml says: either a schema of Spark's catalogs or a path.

    Attributes:
        schema_name: `schema` or `catalog.schema`, which must be there; an object is a table in it. Either this or `path`.
        path: a folder such as `s3://bucket/lake`; an object is a folder in it.
        create_object: create a missing table.
        on_new_column: the table lacks a mapped column: fail, or add it.
    """

    schema_name: str | None = Field(default=None, alias="schema", min_length=1)
    path: str | None = Field(default=None, min_length=1)
    create_object: bool = True
    on_new_column: Literal["fail", "add"] = "fail"

    @model_validator(mode="after")
    def _one_place(self) -> DeltaSettings:
        if (self.schema_name is None) == (self.path is None):
            raise ValueError("expected one of `schema` and `path`")
        return self


class DeltaSink(SparkSink):
    """Keeps one Delta table equal to a model."""

    type = "delta"
    settings_model = DeltaSettings
    modes = frozenset({Mode.MIRROR, Mode.UPSERT, Mode.INSERT_ONLY})
    transactional = True
    full_loads = True
    validates_early = True
    promise = "Exactly-once effect: all rows of a push and their record are one commit."

    def __init__(self, settings: DeltaSettings) -> None:
        self._settings = settings
        self._done = 0

    @property
    def identity(self) -> str:
        """The schema, or the path."""
        return self._settings.schema_name or str(self._settings.path).rstrip("/")

    def place_of(self, object_name: str) -> str:
        """As Spark looks it up."""
        if self._settings.schema_name:
            return f"{self._settings.schema_name}.{object_name}".casefold().removeprefix("spark_catalog.")
        return f"{self.identity}/{PurePosixPath(object_name)}"

    def limits(self, task: SinkTask) -> Limits:  # noqa: ARG002  (the same for every sync)
        """Where rows come in batches all the same: few commits."""
        return Limits(rows=500_000, bytes=256 * 2**20, concurrency=1)

    def validate(self, task: SinkTask) -> None:
        """Refuse what names no table, paths that leave the folder, keys that are not mapped."""
        problems = unmapped_key(task)
        # What its commits record is asked of a JVM of this process. No fault of the configuration: other syncs are pushed.
        if task.known == "types" and (is_remote() or has_no_log(session())):
            found = "a session of Spark Connect" if is_remote() else "another Delta, as that of Databricks"
            expected = "a session of Spark in this process, with delta-spark"
            problems += self.problem(found, expected, "push there, or let dbt build it").problems
        if self._settings.schema_name and not _TABLE.fullmatch(task.object):
            expected = "the name of a table, without blanks, dots and slashes"
            problems.append(Problem(f"sync {task.sync}: object", "another text", expected, "correct it"))
        parts = PurePosixPath(task.object).parts
        if self._settings.path and (".." in parts or task.object.startswith("/") or "`" in task.object):
            found = f"the object '{task.object}'"
            problems.append(Problem(f"sync {task.sync}", found, f"a folder below {self._settings.path}", "correct it"))
        raise_if_any(problems)

    def check(self) -> None:
        """Read the list of tables, where a session of Spark is there already."""
        spark = SparkSession.getActiveSession()
        if spark is not None and self._settings.schema_name:
            with self._explained():
                spark.sql(f"show tables in {_path(self._settings.schema_name)} like 'no_such_table'").collect()

    def rights(self, task: SinkTask) -> Rights:  # noqa: ARG002  (the same for every sync)
        """Only Spark could tell."""
        return Rights(untried=("the table and the rights on it: Spark was not started",))

    def missing(self, task: SinkTask) -> str | None:
        """Whether the table or its record of the sync is gone, although rows were delivered."""
        with self._explained():
            if location_of(session(), self._name(task)) is None:
                return None if task.first else f"no table {self._name(task)}"
            version = self._version(task)
            refuse_newer(None if version is None else version // _STEPS, task)
            return None if version is not None or task.first else f"no record of this sync in {self._name(task)}"

    def read(self, task: SinkTask) -> DataFrame:
        """The table; a query of it sees one version."""
        with self._explained():
            there = session().table(self._name(task))
            raise_if_any(self._type_problems(task, there.schema), DestinationError)
            return there.select(*map(_column, task.schema.names), F.lit(False).alias(UNREADABLE))

    def open(self, task: SinkTask) -> None:
        """Prepare the table and commit the fence."""
        self.validate(task)
        self._task, self._target = task, self._name(task)
        # Its settings are those of one commit, and syncs run beside each other. A full load replaces every partition.
        self._spark = sized_as(session())
        self._spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
        with self._explained():
            self._prepare()
            self._take_fence()

    def settle(self, claims: Sequence[str]) -> dict[str, bool | None]:
        """What the table's history says; a claim that it has forgotten is carried out again, which changes nothing."""
        with self._explained():
            history = self._spark.sql(f"describe history {self._target}").select("userMetadata")
            said = {row[0] for row in history.where(F.col("userMetadata").startswith(self._app)).collect()}
        answers: dict[str, bool | None] = {}
        for claim in claims:
            parts = {text.rpartition(" ")[2] for text in said if text.startswith(f"{self._app} {claim} ")}
            answers[claim] = None if not parts else "open" not in parts
        return answers

    def deliver(self, batch: Batch) -> Delivery:
        """One batch as one commit; the rows of a whole push come by `push`."""
        rows = batch.rows
        refused = null_keys(rows, self._task.key) | refused_deletes(rows, self._task.mode)
        kept = rows.take(pa.array([row for row in range(rows.num_rows) if row not in refused], pa.int64()))
        if not kept.num_rows:
            return rejections(refused)
        whole = batch.last and not batch.left_out and not refused
        fields = [pa.field(OPERATION, pa.string()), *self._task.schema]
        rows_of_spark = self._spark.createDataFrame(kept.select([field.name for field in fields]), _ddl(fields))
        delivery = self.push(rows_of_spark, batch.claim, closed=whole)
        if delivery.results:
            return Delivery.of_all(rows.num_rows, delivery.results[0].outcome, delivery.results[0].reason)
        return rejections(refused)

    def push(self, rows: DataFrame, claim: str, *, closed: bool = True) -> Delivery:
        """Merge rows: `_operation`, `_event_id` and the fields of the task, or overwrite with them in a full load. All of them, or none; an
        outcome for row 0 counts for all. `closed`: nothing of the claim is left out."""
        view = f"reverse_etl_{uuid.uuid4().hex}"
        rows.drop(EVENT_ID).createGlobalTempView(view)
        try:
            return self._written(view, f"{self._app} {claim} {'closed' if closed else 'open'}")
        finally:
            self._spark.catalog.dropGlobalTempView(view)

    def close(self) -> None:
        """Nothing is held open."""

    def _written(self, view: str, said: str) -> Delivery:
        write = overwrite if self._task.full_load else merge
        statement = write(self._target, f"global_temp.{view}", self._task)
        for _ in range(_ATTEMPTS):
            version = self._next_version(said)
            try:
                if self._spark.sql(statement).collect() or self._version(self._task) == version:
                    return Delivery()
                return Delivery.of_all(1, Outcome.FATAL, OTHER_RUN)  # Delta skipped it: a newer fence is there
            except SPARK_ERRORS as error:
                outcome, reason = self._failure(error, version)
            if outcome is not Outcome.RETRYABLE:
                break
        return Delivery() if outcome is Outcome.DELIVERED else Delivery.of_all(1, outcome, reason)

    def _failure(self, error: Exception, version: int) -> tuple[Outcome, str]:
        """A statement that failed may have committed before."""
        try:
            recorded = self._version(self._task)
        except SPARK_ERRORS:
            return Outcome.UNKNOWN, f"Spark failed, and its record cannot be read: {type(error).__name__}"
        if recorded == version:
            return Outcome.DELIVERED, ""
        if recorded is None or recorded > version:
            return Outcome.FATAL, LOST_RECORD if recorded is None else OTHER_RUN
        return judge(error)

    def _next_version(self, said: str) -> int:
        self._done += 1
        version = self._task.fence * _STEPS + self._done
        self._spark.conf.set("spark.databricks.delta.write.txnAppId", self._app)
        self._spark.conf.set("spark.databricks.delta.write.txnVersion", str(version))
        self._spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", said)
        return version

    @property
    def _app(self) -> str:
        return f"dbt-reverse-etl {self._task.sync_id}"

    def _prepare(self) -> None:
        task, location = self._task, location_of(self._spark, self._target)
        if location is None:
            if not task.first:
                raise self.problem(f"the table {self._target} has vanished", "the table of the last push", RESYNC)
            ddl = create(self._target, task.schema.names, _ddl(task.schema))
            if not self._settings.create_object:
                next_step = f"run: {ddl}; or set create_object: true"
                raise self.problem(f"no table {self._target}", "an existing table", next_step)
            self._spark.sql(ddl)
            return
        there = self._spark.table(self._target).schema
        names = {name.casefold() for name in there.names}
        missing = [field for field in task.schema if field.name.casefold() not in names]
        properties = properties_of(self._spark, self._target) if missing else {}
        if missing and self._settings.on_new_column == "add":
            for statement in add(self._target, [field.name for field in missing], _ddl(missing), properties):
                self._spark.sql(statement)
            missing = []
        problems = [
            Problem(self._target, f"no column {field.name}", "a column for each field",
                f"run: {'; '.join(add(self._target, [field.name], _ddl([field]), properties))}; or set on_new_column: add")
            for field in missing
        ] + self._type_problems(task, there)  # fmt: skip
        identity = numbered(self._spark, location)
        never_updated = {*task.key} if task.mode is not Mode.INSERT_ONLY else {*task.schema.names}
        problems += [
            Problem(self._target, f"column {field.name}, GENERATED AS IDENTITY", "a column that takes the model's values",
                "create it without IDENTITY, or in the key as GENERATED BY DEFAULT; or leave it out of the sync")
            for field in task.schema
            if not identity.get(field.name.casefold(), True) or (field.name.casefold() in identity and field.name not in never_updated)
        ]  # fmt: skip
        raise_if_any(problems, DestinationError)

    def _type_problems(self, task: SinkTask, there: StructType) -> list[Problem]:
        """Columns that change values."""
        found = {field.name.casefold(): _type_of(field) for field in there}
        fields = cast(StructType, StructType.fromDDL(_ddl(task.schema)))
        next_step = "cast the column in the model; or drop the table, and dbt run-operation resync for this sync"
        kinds = [(one.name, found.get(one.name.casefold()), one.dataType.simpleString()) for one in fields]
        return [
            Problem(self._name(task), f"column {name} of type {kind}", f"the type of the field, {wanted}", next_step)
            for name, kind, wanted in kinds
            if kind not in (None, wanted)
        ]

    def _take_fence(self) -> None:
        task, stored = self._task, self._version(self._task)
        if stored is None and not task.first:
            raise self.problem(LOST_RECORD, f"the record of sync {task.sync} in {self._target}", RESYNC)
        if stored is not None and stored // _STEPS > task.fence:
            found = f"{OTHER_RUN} (fence {stored // _STEPS})"
            raise self.problem(found, f"none newer than {task.fence}", "let it finish, then push again")
        if stored is None or stored // _STEPS < task.fence:
            location = str(location_of(self._spark, self._target))
            writable = [_column(name) for name in writable_columns(self._spark, location)]
            nothing = self._spark.table(self._target).select(*writable).limit(0).write.format("delta").mode("append")
            said = {"txnAppId": self._app, "txnVersion": str(task.fence * _STEPS), "userMetadata": f"{self._app} fence"}
            writer = nothing.options(**said)
            writer.save(self._place(task)) if self._settings.path else writer.saveAsTable(self._target)
        else:
            self._done = stored % _STEPS

    def _version(self, task: SinkTask) -> int | None:
        """The newest commit of a sync that the table's log records."""
        return newest_version(session(), self._name(task), f"dbt-reverse-etl {task.sync_id}")

    def _place(self, task: SinkTask) -> str:
        return f"{str(self._settings.path).rstrip('/')}/{task.object}"

    def _name(self, task: SinkTask) -> str:
        """As SQL."""
        if self._settings.path:
            return f"delta.`{self._place(task)}`"
        return f"{_path(str(self._settings.schema_name))}.{quoted(task.object)}"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of Spark as problems in three parts."""
        try:
            yield
        except SPARK_ERRORS as error:
            found, next_step = kind_of(error), "see Spark's log, then push again"
            if "SCHEMA_NOT_FOUND" in found:
                schema = _path(str(self._settings.schema_name))
                found, next_step = f"no schema {schema}", f"run: CREATE SCHEMA {schema}"
            raise self.problem(found, "a table that can be read and written", next_step) from None


def _path(name: str) -> str:
    return ".".join(map(quoted, name.split(".")))


def _column(name: str) -> Column:
    return F.col(quoted(name))


def _ddl(fields: Iterable[pa.Field]) -> str:
    return ", ".join(f"{quoted(field.name)} {spark_type(field.type)}" for field in fields)


def _type_of(field: StructField) -> str:
    """The type of a column; char(n) adds blanks, and Spark shows it as a string."""
    written = str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))
    return written if _CHAR.search(written) else field.dataType.simpleString()
