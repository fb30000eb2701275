"""The views and the generic tests of a changelog in a user's dbt project, on captured changelogs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from dbt.cli.main import dbtRunner
from pyspark.sql import Row, SparkSession

from tests.support import ROOT

SCHEMA, LATER = "views_dbt", "views_dbt_later"

CONTACTS = """
{{ config(materialized='changelog', unique_key=['tenant', 'contact_id']) }}
select * from values {{ {
    1: "('eu', 1, 'a@x', 'pro'), ('eu', 2, 'a@x', 'gone'), ('us', 1, null, 'pro')",
    2: "('eu', 1, 'a@x', 'pro'), ('eu', 3, 'c@x', null), ('us', 1, null, 'free')",
    3: "('eu', 1, 'c@x', 'gone'), ('eu', 3, 'c@x', null), ('us', 1, null, 'pro')",
}[var('day')] }} as t (tenant, contact_id, email, plan)
"""
PLANS = """
{{ config(materialized='changelog', unique_key='plan') }}
select * from values ('pro'), {% if var('day') == 1 %}('gone'), {% endif %}('free') as t (plan)
"""
MODELS = {
    "contacts_changelog": CONTACTS,
    "plans_changelog": PLANS,
    "contacts_now": "select * from {{ reverse_etl.current(ref('contacts_changelog')) }}",
    "contacts_mocked": (
        "select * from {{ reverse_etl.current(ref('contacts_changelog'), key=['tenant', 'contact_id']) }}"
    ),
    "contacts_then": "select * from {{ reverse_etl.as_of(ref('contacts_changelog'), snapshot=1) }}",
    "contacts_changed": "select * from {{ reverse_etl.net_changes(ref('contacts_changelog'), 1, 2) }}",
    "contacts_versions": "select * from {{ reverse_etl.scd2(ref('contacts_changelog')) }}",
    "contacts_tracked": "select * from {{ reverse_etl.scd2(ref('contacts_changelog'), tracked='email', labels=true) }}",
    "contacts_previous": "select * from {{ reverse_etl.scd3(ref('contacts_changelog'), ['plan']) }}",
    "contacts_differ": "select * from {{ reverse_etl.reconcile_relations(ref('contacts_keyed'), ref('contacts_then')) }}",
    "contacts_then_and_now": (
        "select * from {{ reverse_etl.point_in_time_join("
        "\"(select 'us' as tenant, 1 as id, current_timestamp() as at)\", reverse_etl.scd2(ref('contacts_changelog')), "
        "{'tenant': 'tenant', 'id': 'contact_id'}, 'at', columns=['plan']) }}"
    ),
    "contacts_snapshots": "select * from {{ reverse_etl.snapshots(ref('contacts_changelog')) }}",
    "contacts_keyed": (
        "{{ config(materialized='table', unique_key=['tenant', 'contact_id']) }}select * from {{ ref('contacts_now') }}"
    ),
    "contacts_audit": "select * from {{ reverse_etl.except_diff(ref('contacts_keyed'), ref('contacts_then')) }}",
    "contacts_explicit": (
        "select * from {{ reverse_etl.current(ref('contacts_changelog'), key='contact_id', columns=['contact_id']) }}"
    ),
}
VIEWS = [name for name in MODELS if not name.endswith("_changelog")]

ON_PLAN = [
    {"reverse_etl.current_accepted_values": {"arguments": {"values": ["pro", "free"]}}},
    {"reverse_etl.current_relationships": {"arguments": {"to": "ref('plans_changelog')", "field": "plan"}}},
]
ON_EMAIL = ["reverse_etl.current_unique", {"reverse_etl.current_not_null": {"config": {"where": "plan <> 'free'"}}}]
UNIT_TESTS = [
    {
        "name": "rows_in_place_of_a_changelog",
        "model": "contacts_mocked",
        "given": [
            {
                "input": "ref('contacts_changelog')",
                "rows": [
                    {"_change": "snapshot", "_snapshot_id": 1},
                    {"_change": "insert", "_snapshot_id": 1, "tenant": "eu", "contact_id": 1, "plan": "pro"},
                    {"_change": "insert", "_snapshot_id": 1, "tenant": "us", "contact_id": 1, "plan": "pro"},
                    {"_change": "delete", "_snapshot_id": 2, "tenant": "eu", "contact_id": 1, "plan": "pro"},
                ],
            }
        ],
        "expect": {"rows": [{"tenant": "us", "contact_id": 1, "plan": "pro", "email": None}]},
    },
    {
        "name": "no_key",
        "model": "contacts_now",
        "given": [{"input": "ref('contacts_changelog')", "rows": [{"_change": "insert", "contact_id": 1}]}],
        "expect": {"rows": [{"contact_id": 1}]},
    },
    {
        "name": "named_columns_need_no_other_columns",
        "model": "contacts_explicit",
        "given": [
            {
                "input": "ref('contacts_changelog')",
                "format": "sql",
                "rows": "select 'insert' as _change, 1L as _snapshot_id, 7 as contact_id",
            }
        ],
        "expect": {"rows": [{"contact_id": 7}]},
    },
]
PROPERTIES = {
    "models": [
        {
            "name": "contacts_changelog",
            "data_tests": [
                {"reverse_etl.current_unique": {"arguments": {"column_name": "concat_ws('|', tenant, contact_id)"}}}
            ],
            "columns": [{"name": "plan", "data_tests": ON_PLAN}, {"name": "email", "data_tests": ON_EMAIL}],
        }
    ],
    "unit_tests": UNIT_TESTS,
}

Dbt = Callable[..., Any]


@pytest.fixture(scope="module")
def dbt(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dbt:
    """Runs one dbt command in a project with this repository as its package, in the session of the tests."""
    project = tmp_path_factory.mktemp("project")
    _write_project(project)
    for schema in (SCHEMA, LATER):
        spark.sql(f"drop schema if exists {schema} cascade")  # the fixture may be made anew in the same process

    def invoke(*args: str) -> Any:
        return dbtRunner().invoke([*args, "--project-dir", str(project), "--profiles-dir", str(project)])

    assert invoke("deps").success
    return invoke


def _write_project(project: Path) -> None:
    output = {"type": "spark", "method": "session", "host": "NA", "threads": 1}
    outputs = {"dev": {**output, "schema": SCHEMA}, "later": {**output, "schema": LATER}}
    files: dict[str, Any] = {
        "dbt_project.yml": {
            "name": "shop", "version": "1.0.0", "profile": "shop", "models": {"+file_format": "delta"},
            "flags": {"validate_macro_args": True, "send_anonymous_usage_stats": False},
        },
        "profiles.yml": {"shop": {"target": "dev", "outputs": outputs}},
        "packages.yml": {"packages": [{"local": str(ROOT)}]},
        "models/properties.yml": PROPERTIES,
    }  # fmt: skip
    (project / "models").mkdir()
    for name, content in files.items():
        (project / name).write_text(yaml.safe_dump(content))
    for name, query in MODELS.items():
        (project / "models" / f"{name}.sql").write_text(query)


def run_day(dbt: Dbt, day: int, command: str, *selected: str) -> dict[str, str]:
    """The status of each node by its name."""
    result = dbt(command, "--vars", f"day: {day}", "--select", *selected)
    assert result.exception is None, result.exception
    return {node.node.name: node.status for node in result.result.results}


@pytest.fixture(scope="module")
def two_days(dbt: Dbt) -> None:
    for day in (1, 2):
        assert set(run_day(dbt, day, "run", "contacts_changelog", "plans_changelog").values()) == {"success"}


def rows(spark: SparkSession, model: str, *columns: str) -> list[Row]:
    return sorted(spark.table(f"{SCHEMA}.{model}").select(*columns).collect(), key=str)


def test_views_find_the_key_of_the_changelog_in_the_graph(spark: SparkSession, dbt: Dbt, two_days: None) -> None:
    assert set(run_day(dbt, 2, "run", *VIEWS).values()) == {"success"}
    key = ("tenant", "contact_id")
    assert rows(spark, "contacts_now", *key) == [("eu", 1), ("eu", 3), ("us", 1)]
    assert rows(spark, "contacts_then", *key) == [("eu", 1), ("eu", 2), ("us", 1)]
    changed = [("delete", "eu", 2), ("insert", "eu", 3), ("update", "us", 1)]
    assert rows(spark, "contacts_changed", "_change", *key) == changed
    assert rows(spark, "contacts_audit", "_change", *key) == changed
    differ = [("different", "us", 1), ("extra", "eu", 3), ("missing", "eu", 2)]
    assert rows(spark, "contacts_differ", "_difference", *key) == differ
    assert rows(spark, "contacts_tracked", *key, "valid_from_snapshot", "valid_from_label") == [
        ("eu", 1, 1, ""), ("eu", 2, 1, ""), ("eu", 3, 2, ""), ("us", 1, 1, ""),
    ]  # fmt: skip
    previous = [("eu", 1, "pro", None), ("eu", 3, None, None), ("us", 1, "free", "pro")]
    assert rows(spark, "contacts_previous", *key, "plan", "previous_plan") == previous
    assert rows(spark, "contacts_then_and_now", "tenant", "id", "plan") == [("us", 1, "free")]
    versions = [("eu", 1, 1, None), ("eu", 2, 1, 2), ("eu", 3, 2, None), ("us", 1, 1, 2), ("us", 1, 2, None)]
    assert rows(spark, "contacts_versions", *key, "valid_from_snapshot", "valid_to_snapshot") == versions
    counts = ("snapshot_id", "inserts", "updates", "deletes", "live_rows", "is_checkpoint", "target_name")
    assert rows(spark, "contacts_snapshots", *counts) == [(1, 3, 0, 0, 3, True, "dev"), (2, 1, 1, 1, 3, True, "dev")]


def test_unit_tests_give_rows_in_place_of_a_changelog(dbt: Dbt, two_days: None) -> None:
    statuses = run_day(dbt, 2, "test", "test_type:unit", "--exclude", "no_key")
    assert statuses == {"rows_in_place_of_a_changelog": "pass", "named_columns_need_no_other_columns": "pass"}


def test_a_unit_test_without_a_key_says_what_to_pass(dbt: Dbt, two_days: None) -> None:
    result = dbt("test", "--vars", "day: 2", "--select", "no_key").result.results[0]
    assert result.status == "error"
    assert "found no model with a unique_key" in result.message
    assert "Next: pass key=" in result.message


def test_generic_tests_judge_the_live_rows_and_not_their_history(dbt: Dbt, two_days: None) -> None:
    statuses = run_day(dbt, 2, "test", "contacts_changelog,test_type:data")
    assert len(statuses) == 5
    assert set(statuses.values()) == {"pass"}, statuses


def test_generic_tests_fail_where_the_live_rows_break_them(dbt: Dbt) -> None:
    later = ("--target", "later")  # the other tests count the snapshots of the first two days
    changelogs = ("contacts_changelog", "plans_changelog")
    assert set(run_day(dbt, 3, "run", *changelogs, *later).values()) == {"success"}
    statuses = run_day(dbt, 3, "test", "contacts_changelog,test_type:data", *later)
    passed = {name for name, status in statuses.items() if status == "pass"}
    assert len(statuses) == 5
    assert len(passed) == 1, statuses
    assert "concat_ws" in passed.pop()


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("current(ref('contacts_now'))", "no model with a unique_key"),
        ("current('elsewhere.contacts')", "no model with a unique_key"),
        ("as_of(ref('contacts_changelog'))", "found 0 of snapshot, timestamp and label"),
        ("as_of(ref('contacts_changelog'), snapshot=1, label='x')", "found 2 of snapshot, timestamp and label"),
        ("as_of(ref('contacts_changelog'), snapshot='1 or true')", "snapshot: found '1 or true'"),
        ("as_of(ref('contacts_changelog'), snapshot=true)", "snapshot: found 'True'"),
        ("as_of(ref('contacts_changelog'), snapshot=1.5)", "snapshot: found '1.5'"),
        ("changes(ref('contacts_changelog'), -1)", "from_snapshot: found '-1'"),
        ("changes(ref('contacts_changelog'), to_snapshot='²')", "to_snapshot: found '²'"),
        ("net_changes(ref('contacts_changelog'), 3, 2)", "from_snapshot: found 3, later than to_snapshot 2"),
        ("except_diff('(select 1 as a)', 'b', key='a')", "found no columns"),
        (
            "except_diff(api.Relation.create(schema='views_dbt', identifier='gone'), 'b', key='a')",
            "found no columns of",
        ),
        ("reconcile_relations('(select 1 as a)', '(select 1 as a)', key='a', columns=['b'])", "columns: found b"),
        ("signed_changes(ref('contacts_changelog'), 'x')", "from_snapshot: found 'x'"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_three_parts(dbt: Dbt, two_days: None, call: str, found: str) -> None:
    result = dbt("show", "--vars", "day: 2", "--inline", "select * from {{ reverse_etl." + call + " }}")
    assert not result.success
    message = " ".join(str(result.exception).split())
    assert found in message
    assert message.index("found") < message.index("; expected") < message.index("Next: ")


def test_the_documented_arguments_are_those_of_the_macros(dbt: Dbt) -> None:
    result = dbt(
        "parse", "--no-partial-parse", "--vars", "day: 1", "--warn-error-options", "error: [InvalidMacroAnnotation]"
    )
    assert result.success, result.exception
    documented = {
        macro.name
        for macro in result.result.macros.values()
        if macro.package_name == "reverse_etl" and macro.description
    }
    public = {path.stem for path in (ROOT / "macros" / "changelog").glob("[a-z]*.sql")}
    files = [*(ROOT / "macros" / "tests").glob("[a-z]*.sql")]
    tests = {f"test_{path.stem}" if "{% test " in path.read_text() else path.stem for path in files}
    assert public | tests <= documented
