"""Guards: their thresholds, and whose value holds; former names of keys, and names of fields."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.config.guards import Guards, Threshold
from dbt_reverse_etl.config.settings import ChangelogSettings, SyncSettings
from dbt_reverse_etl.config.validation import Place, validate
from dbt_reverse_etl.sinks.singer.settings import SingerSettings
from dbt_reverse_etl.sinks.sql.settings import PostgresSettings

counts = st.integers(0, 10**12)


class TestGuards:
    @settings(deadline=None)
    @given(rows=counts, limit=counts)
    def test_a_number_of_rows_does_not_depend_on_the_total(self, rows: int, limit: int) -> None:
        assert Threshold.parse(limit).rows_of(rows) == Threshold.parse(str(limit)).rows_of(rows) == limit

    @settings(deadline=None)
    @given(rows=counts, hundredths=st.integers(0, 10_000))
    def test_a_share_is_exact_and_rounds_down(self, rows: int, hundredths: int) -> None:
        written = f"{hundredths // 100}.{hundredths % 100:02}%"
        assert Threshold.parse(written).rows_of(rows) == rows * hundredths // 10_000

    @pytest.mark.parametrize(
        "value", [True, False, -1, 0.1, "0.1", "-5%", "%", "ten", "1e3%", "٣", None, [], "10 rows"]
    )
    def test_anything_else_is_refused(self, value: Any) -> None:
        with pytest.raises(ValidationError, match="such as 10%"):
            Guards(max_changes=value) if value is not None else Guards(max_changes="")  # type: ignore[arg-type]

    def test_more_deletes_than_rows_would_guard_nothing(self) -> None:
        assert Guards.model_validate({"max_changes": "300%"}).max_changes
        with pytest.raises(ValidationError, match="at most 100%"):
            Guards.model_validate({"max_deletes": "101%"})

    limits = st.none() | st.integers(0, 9)
    written = st.fixed_dictionaries({}, optional={"max_deletes": limits, "max_changes": limits})

    @settings(deadline=None)
    @example(own={"max_deletes": None}, defaults={"max_deletes": 1})
    @given(own=written, defaults=written)
    def test_what_a_sync_writes_wins_and_a_written_null_too(
        self, own: dict[str, Any], defaults: dict[str, Any]
    ) -> None:
        effective = Guards.model_validate(own).over(Guards.model_validate(defaults))
        expected = Guards.model_validate({"max_deletes": None, "max_changes": None} | defaults | own)
        assert effective.model_dump() == expected.model_dump()


@pytest.mark.guarantee("Configuration")
def test_a_former_name_of_a_key_is_refused_with_the_new_one() -> None:
    problems: list[Problem] = []
    label = {"by": "day", "drift": "1 hour", "at": "ordered_at"}
    assert validate(ChangelogSettings, {"label": label}, Place("m.yml", ("meta",)), problems) is None
    assert [str(problem) for problem in problems] == [
        "m.yml: meta.label.drift: found a former name; expected its name of now, grace. Next: rename it to `grace`"
    ]
    label["grace"] = label.pop("drift")
    assert validate(ChangelogSettings, {"label": label}, Place("m.yml", ("meta",)), problems) is not None


@pytest.mark.guarantee("Configuration")
def test_the_former_name_of_a_full_compare_is_refused_with_the_new_one() -> None:
    problems: list[Problem] = []
    capture = {"strategy": "timestamp", "updated_at": "at", "reconcile_every": 3}
    assert validate(ChangelogSettings, {"capture": capture}, Place("m.yml", ("meta",)), problems) is None
    assert "rename it to `full_compare_every`" in str(problems[0])


@pytest.mark.parametrize(
    ("capture", "keys"),
    [
        ({"strategy": "compare", "full_compare_every": 5}, "strategy"),
        ({"strategy": "feed", "operation": "op", "sequence": "n", "updated_at": "at"},
         "strategy, operation, sequence, operations, overlap"),
        ({"strategy": "cdf", "table": "t", "updated_at": "at"},
         "full_compare_every, on_drift, recapture_by, full_above, strategy, table, key"),
    ],
)  # fmt: skip
def test_a_key_of_another_strategy_is_answered_with_those_of_the_one_that_is_written(
    capture: dict[str, str], keys: str
) -> None:
    problems: list[Problem] = []
    assert validate(ChangelogSettings, {"capture": capture}, Place("m.yml", ("meta",)), problems) is None
    (problem,) = problems
    assert problem.expected == f"one of {keys}"
    assert "did you mean" not in problem.next_step


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize(
    ("model", "written", "said"),
    [
        (SyncSettings, {"where": ""}, "where: found an empty text; expected a text of 1 or more characters"),
        (SyncSettings, {"push_on": "build"}, "push_on: found a text; expected a list"),
        (
            SyncSettings,
            {"fields": "id"},
            "fields: found a text; expected a list of columns, or a mapping of columns to",
        ),
        (
            SyncSettings,
            {"fields": ["id", {"n": "m"}]},
            "fields: found a list; expected a list of columns, or a mapping",
        ),
        (SyncSettings, {"guards": None}, "guards: found nothing; expected a mapping"),
        (SyncSettings, {"options": []}, "options: found a list; expected a mapping"),
        (SyncSettings, {"owns_object": True}, "meta: found owns_object in mode upsert; expected mode: mirror"),
        (ChangelogSettings, {"capture": None}, "capture: found nothing; expected a mapping"),
        (ChangelogSettings, {"capture": {"strategy": "cdf"}}, "capture.table: found nothing; expected a value: it is"),
        (
            ChangelogSettings,
            {"capture": "cdf"},
            "meta.capture: found a text; expected a mapping, for `table` is required. "
            "Next: write `strategy:` and `table:` below it",
        ),
        (PostgresSettings, {"database": "d" * 64}, "database: found a text; expected a text of at most 63 characters"),
        (SingerSettings, {"command": []}, "command: found a list; expected 1 or more entries"),
    ],
)
def test_a_value_of_another_kind_is_answered_in_the_words_of_yaml(
    model: type[BaseModel], written: dict[str, Any], said: str
) -> None:
    needed: dict[type[BaseModel], dict[str, Any]] = {
        SyncSettings: {"destination": "crm", "object": "people"},
        PostgresSettings: {"host": "db", "database": "crm", "user": "etl", "password": "long enough"},
    }
    problems: list[Problem] = []
    assert validate(model, needed.get(model, {}) | written, Place("m.yml", ("meta",)), problems) is None
    (problem,) = problems
    assert said in str(problem)


@pytest.mark.parametrize("name", ["${env:HOME}", "a${b}", "a${b\u00a0c}"])
def test_a_field_in_whose_name_spark_replaces_a_variable_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="in their names, which Spark replaces"):
        SyncSettings(destination="crm", object="people", fields={"id": name})


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("fields", [["id", "name ", "name"], {"id": "id", "name ": "b", "name": "a"}, {"name ": " b "}])
def test_a_blank_at_the_end_of_a_name_makes_it_another_column_or_field(fields: list[str] | dict[str, str]) -> None:
    expected = fields if isinstance(fields, dict) else {name: name for name in fields}
    assert SyncSettings(destination="crm", object="people", fields=fields).fields == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["$c", "price (${usd)", "${a b}", "{a}"])
def test_a_field_in_whose_name_spark_finds_no_variable_is_taken(name: str) -> None:
    assert SyncSettings(destination="crm", object="people", fields={"id": name}).fields == {"id": name}
