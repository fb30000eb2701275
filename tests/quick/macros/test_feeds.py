"""What a feed asks of Spark: how a folder becomes a table for the moment, and what a text of Debezium is read as."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import CompilationError, Macros

FOLDERS = [
    {"col_name": "id", "data_type": "bigint"},
    {"col_name": "value", "data_type": "struct<a:int>"},
    {"col_name": "day", "data_type": "date"},
    {"col_name": "# Partition Information", "data_type": ""},
    {"col_name": "# col_name", "data_type": "data_type"},
    {"col_name": "day", "data_type": "date"},
]


class Landing(SimpleNamespace):
    def __str__(self) -> str:
        return "landing"


def statements(
    described: list[dict[str, str]],
    *,
    format: str = "parquet",  # noqa: A002  (as the macro has it)
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    target: str = "spark",
    catalog: str | None = None,
) -> list[str]:
    """What runs to make the table over a folder, without the questions."""

    def answer(sql: str) -> list[dict[str, str]]:
        return described if sql.startswith("describe") else []

    macros = Macros(answer, target=SimpleNamespace(type=target, name="dev"))
    landing = Landing(identifier="landing", database=catalog)
    macros._landing_rows(landing, "/in", format, schema, options or {}, format in ("csv", "json"))
    return [sql for sql in macros.run if not sql.startswith("describe")]


@pytest.mark.guarantee("Capture")
def test_folders_named_by_a_partition_are_read_without_a_schema_for_the_catalog_knows_none_of_them() -> None:
    options = "options (`mode` 'FAILFAST', `mergeSchema` 'true') location '/in'"
    assert statements(FOLDERS) == [
        "drop table if exists landing",
        f"create table landing using parquet {options}",
        "drop table if exists landing",
        f"create table landing (`id` bigint, `value` struct<a:int>, `day` date) using parquet {options}",
    ]
    json = statements(FOLDERS, format="json")
    assert " (`id` bigint, `value` struct<a:int>, `day` date) using json " in json[-2]
    assert json[-1] == "alter table landing add columns (_malformed string)"


@pytest.mark.guarantee("Capture")
def test_a_table_over_a_folder_without_partitions_with_a_schema_or_of_unity_catalog_is_made_once() -> None:
    assert len(statements(FOLDERS[:3])) == 2
    assert len(statements(FOLDERS, schema="id bigint")) == 2
    assert len(statements(FOLDERS, target="databricks", catalog="main")) == 2
    assert len(statements(FOLDERS, target="databricks", catalog="hive_metastore")) == 4


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("arguments", "merged"),
    [
        ({"format": "parquet"}, ["true"]),
        ({"format": "ORC"}, ["true"]),
        ({"format": "avro"}, []),
        ({"format": "parquet", "schema": "id bigint"}, []),
        ({"format": "parquet", "options": {"mergeschema": "false"}}, ["false"]),
    ],
)
def test_columns_of_newer_files_are_read_too_unless_the_options_say_otherwise(
    arguments: dict[str, Any], merged: list[str]
) -> None:
    create = statements(FOLDERS[:3], **arguments)[1]
    assert re.findall(r"`mergeSchema` '(\w+)'", create, re.IGNORECASE) == merged


class Orders(str):
    """The changelog that the model makes."""

    identifier, type, database = "orders", "table", None

    def incorporate(self, **_: Any) -> Orders:
        return self


def project(*, empty: bool = False) -> Macros:
    """A run of a changelog whose newest snapshot is the fifth, which has read files before."""
    feed = {"materialized": "changelog", "meta": {"reverse_etl": {"capture": {"strategy": "feed"}}}}
    macros = Macros(
        lambda sql: [{"rows": 0, "files": 0}] if sql.startswith("select count") else [],
        model=SimpleNamespace(name="orders", unique_id="model.shop.orders", resource_type="model", compiled_code=""),
        config=feed,
        flags=SimpleNamespace(WHICH="run", EMPTY=empty),
        invocation_args_dict={},
        invocation_id="1",
        this=Orders("orders"),
        local_md5=lambda text: hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(),
    )
    macros._macros["_existing_changelog"] = lambda _: Orders("orders")
    macros._macros["_head"] = lambda _: HEAD
    return macros


HEAD = SimpleNamespace(snapshot_id=5, frozen=False, positions={"files//in": "1700000000000000"})


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("empty", [False, True])
def test_new_files_are_read_after_the_newest_snapshot_and_with_empty_none_is_and_nothing_is_refused(
    *, empty: bool
) -> None:
    macros = project(empty=empty)
    macros._context["model"].compiled_code = macros.new_files("/in", schema="id bigint")
    macros._check_read_after(HEAD)
    (read,) = [sql for sql in macros.run if sql.startswith("create table if not exists")]
    newer = "_file_modified >= timestamp_micros(1700000000000000) - interval '1 hour'"
    assert read.endswith(" where false" if empty else f" where {newer}")


def test_the_first_capture_refuses_an_overlap_that_a_later_one_could_not_use() -> None:
    for overlap in ("1 hou", 3600):
        with pytest.raises(CompilationError, match=rf"new_files /in: found overlap '{overlap}' .*such as '1 hour'"):
            project().new_files("/in", overlap=overlap)
    macros = project()
    macros.new_files("/in", schema="id bigint", overlap=None)
    assert any(sql.endswith("_file_modified >= timestamp_micros(1700000000000000)") for sql in macros.run)


@pytest.mark.guarantee("Secrets and row values")
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("fs.s3a.secret.key", "such as spark.hadoop.fs.s3a.secret.key"),
        ("spark.hadoop.fs.s3.awsSecretAccessKey", "such as spark.hadoop.fs.s3.awsSecretAccessKey"),
        ("fs.azure.account.key.shop.dfs.core.windows.net", "such as spark.hadoop.fs.azure.account.key.shop"),
        ("fs.azure.sas.box.shop.blob.core.windows.net", "such as spark.hadoop.fs.azure.sas.box.shop"),
        ("fs.azure.sas.fixed.token.box.shop.dfs.core.windows.net", "such as spark.hadoop.fs.azure.sas.fixed"),
        ("workbookPassword", "let the data source find it where it runs"),
    ],
)
def test_a_secret_is_no_option_of_files(name: str, instead: str) -> None:
    macros = project()
    words = rf"new_files /in: options: found {name} with a secret.* Next: .*{instead}"
    with pytest.raises(CompilationError, match=words) as refused:
        macros.new_files("/in", options={name: "canary"})
    assert "canary" not in str(refused.value)
    assert macros.run == []
    provider = {"fs.s3a.aws.credentials.provider": "a.Provider"}
    assert macros.new_files("/in", schema="id bigint", options=provider)


TYPES = ["bigint", "decimal(10,2)", "date", "timestamp", "timestamp_millis", "timestamp_micros", "double", "boolean"]


@pytest.mark.guarantee("Secrets and row values")
@pytest.mark.parametrize("kind", TYPES)
def test_no_text_of_an_event_meets_a_cast_that_could_fail_and_show_it(kind: str) -> None:
    sql = Macros()._debezium_value("_dbz_1", kind, "price")
    assert "try_cast(" in sql
    assert not re.search(r"(?<!try_)cast\((?!null)", sql)
    assert "timestamp_millis(" not in sql, "it fails beyond the year 292278994"


@pytest.mark.guarantee("Capture")
def test_a_key_column_that_only_the_key_of_the_message_has_is_taken_from_there_in_every_operation() -> None:
    sql = Macros()._debezium_text("table", True, False)
    assert (
        "if(_dbz_op = 'd' or not map_contains_key(_dbz_row, 'table'), try_element_at(_dbz_key, 'table'), null)" in sql
    )


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("path", "is_absolute"),
    [("landing", False), ("./landing", False), ("a/b:c", False), ("/landing", True), ("s3a://b/in", True), ("dbfs:/in", True)],
)  # fmt: skip
def test_a_relative_path_of_files_is_refused_for_each_format_looks_for_it_elsewhere(
    path: str, *, is_absolute: bool
) -> None:
    check = Macros()._check_landing_path
    if is_absolute:
        check(path)
        return
    with pytest.raises(CompilationError, match=r"^new_files .*: found a relative path; expected an absolute one; "):
        check(path)


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("rows", [[], [{"1": 1}]])
def test_a_folder_that_never_had_a_row_is_named_in_a_line_for_its_path_may_be_wrong(rows: list[Any]) -> None:
    macros = Macros(lambda _: rows)
    macros._tell_without_rows("/typo", "files")
    assert [text.split(";")[0] for text in macros.logged] == ["new_files /typo: found no row, now or before"] * (
        not rows
    )
