"""Parts of the Delta sink that need no Spark session: its MERGE, and what errors of Spark mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, ArithmeticException, DateTimeException, PySparkException

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.delta_failures import judge
from dbt_reverse_etl.sinks.delta_log import location_of, numbered, sized_as
from dbt_reverse_etl.sinks.delta_statements import merge


def statement(mode: Mode, *names: str) -> str:
    schema = pa.schema([(name, pa.string()) for name in names])
    return merge("t", "v", SinkTask("s", "sync", 0, "object", mode, ("id",), schema))


def raised(condition: str) -> AnalysisException:
    error = AnalysisException("x")
    error.getCondition = lambda: condition  # type: ignore[method-assign]
    return error


def test_the_session_of_a_table_writes_times_as_that_of_the_push_does_whatever_spark_was_started_with() -> None:
    name = "spark.sql.parquet.outputTimestampType"
    started = {name: "TIMESTAMP_MILLIS"}
    made = SimpleNamespace(conf=SimpleNamespace(get=started.get, set=started.__setitem__))
    known: Any = SimpleNamespace(newSession=lambda: made, conf=SimpleNamespace(get={name: "TIMESTAMP_MICROS"}.get))
    assert sized_as(known).conf.get(name) == "TIMESTAMP_MICROS"


@pytest.mark.parametrize("mode", [Mode.MIRROR, Mode.UPSERT])
def test_a_merge_sets_no_key_for_delta_refuses_to_set_one_that_is_an_identity(mode: Mode) -> None:
    said = statement(mode, "id", "name", "city")
    assert "when matched then update set t.`name` = s.`name`, t.`city` = s.`city` when not matched" in said
    assert said.endswith("insert (`id`, `name`, `city`) values (s.`id`, s.`name`, s.`city`)")


def test_a_merge_of_keys_alone_updates_nothing_and_still_deletes() -> None:
    mirror = statement(Mode.MIRROR, "id")
    assert "update" not in mirror
    assert "when matched and s._operation = 'delete' then delete when not matched" in mirror
    assert "when matched" not in statement(Mode.UPSERT, "id").replace("when not matched", "")


@pytest.mark.parametrize(
    "error",
    [
        DateTimeException("[CAST_INVALID_INPUT] The value 'secret' cannot be cast. SQLSTATE: 22018"),
        ArithmeticException("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"),
        ArithmeticException("[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] secret. SQLSTATE: 22003"),
        PySparkException("Job aborted: SparkDateTimeException: [CANNOT_PARSE_TIMESTAMP] secret. SQLSTATE: 22007"),
        PySparkException("[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint violated by row: secret"),
    ],
)
def test_an_expression_of_the_table_that_fails_over_a_row_is_the_fault_of_the_row(error: Exception) -> None:
    outcome, reason = judge(error)
    assert outcome is Outcome.REJECTED
    assert "secret" not in reason


def test_a_statement_that_cannot_succeed_is_fatal_and_an_outage_is_tried_again() -> None:
    assert judge(AnalysisException("[CAST_OVERFLOW] of a literal"))[0] is Outcome.FATAL
    assert judge(PySparkException("Connection refused"))[0] is Outcome.RETRYABLE


@pytest.mark.parametrize(
    "condition",
    [
        "TABLE_OR_VIEW_NOT_FOUND",
        "SCHEMA_NOT_FOUND",
        "DELTA_MISSING_DELTA_TABLE",
        "EXPECT_TABLE_NOT_VIEW.NO_ALTERNATIVE",
    ],
)
def test_a_table_that_is_not_there_or_no_delta_table_has_no_place(condition: str) -> None:
    assert location_of(Mock(sql=Mock(side_effect=raised(condition))), "t") is None


@pytest.mark.parametrize("condition", [None, "_LEGACY_ERROR_TEMP_3065", "INSUFFICIENT_PERMISSIONS"])
def test_a_metastore_that_does_not_answer_is_no_missing_table(condition: Any) -> None:
    with pytest.raises(AnalysisException):
        location_of(Mock(sql=Mock(side_effect=raised(condition))), "t")


def test_identity_columns_are_known_and_whether_delta_takes_a_value_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [
        SimpleNamespace(name=name, metadata=metadata)
        for name, metadata in {
            "SK": {"delta.identity.start": 1, "delta.identity.allowExplicitInsert": False},
            "id": {"delta.identity.start": 1, "delta.identity.allowExplicitInsert": True},
            "name": {},
        }.items()
    ]
    monkeypatch.setattr("dbt_reverse_etl.sinks.delta_log._columns", lambda *_: columns)
    assert numbered(Mock(), "place") == {"sk": False, "id": True}
