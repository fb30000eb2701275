"""Column names and types that Delta takes only with its column mapping or a feature: each table of ours that has one asks for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from dbt_reverse_etl.sinks.delta_statements import add, create
from tests.support.dbt.macros import Macros

MAPPED = "tblproperties ('delta.columnMapping.mode' = 'name')"
STRANGE = ["order id", "a,b", "a;b", "{a}", "(a)", "a\nb", "a\tb", "a=b"]
PLAIN = ["id", "größe", "a-b", "a.b"]


def created(*names: str) -> str:
    columns = [{"name": name, "type": "int"} for name in names]
    texts = {name: lambda: "" for name in ("location_clause", "comment_clause")}
    macros = Macros(config=Mock(get=lambda _: None), target=SimpleNamespace(type="spark"), **texts)
    macros._create_changelog("log", columns, SimpleNamespace(key=["id"]))
    return macros.run[-1]


def bad_keys(*names: str, type_: str = "int") -> str:
    counts = SimpleNamespace(null_keys=1, duplicate_keys=0, surplus=0)
    columns = SimpleNamespace(key=["id"], names=[*names], model=[{"name": name, "type": type_} for name in names])
    settings = SimpleNamespace(on_bad_key="quarantine", key=["id"])
    asked = Mock(return_value=SimpleNamespace(rows=[["[]"]]))
    macros = Macros(load_cached_relation=lambda _: None, run_query=asked, fromjson=lambda _: [])
    target = Mock(identifier="log", incorporate=lambda **_: "log__bad_keys")
    macros._check_keys(target, "stage", counts, columns, SimpleNamespace(), settings)
    return macros.run[0]


def altered(*names: str, type_: str = "int", aside: Sequence[dict[str, str]] = (), **properties: str) -> list[str]:
    """The statements before the one that adds columns to a table, or put them aside."""
    macros = Macros(lambda _: [{"key": key, "value": value} for key, value in properties.items()])
    macros._alter_columns("log", {"aside": aside, "added": [{"name": n, "type": type_} for n in names], "altered": []})
    return [text for text in macros.run if text.startswith("alter") and "add columns" not in text]


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("name", STRANGE)
def test_a_changelog_and_its_bad_keys_are_mapped_where_a_name_needs_it(name: str) -> None:
    assert "'delta.columnMapping.mode' = 'name'" in created("id", name)
    assert f"using delta {MAPPED} as" in bad_keys("id", name)
    assert altered(name) == [f"alter table log set {MAPPED}"]


@pytest.mark.parametrize("mode", ["id", "name"])
def test_a_table_that_is_mapped_keeps_its_mode_because_delta_refuses_another_one(mode: str) -> None:
    mapped = {"delta.columnMapping.mode": mode}
    assert not altered("a b", **mapped)
    aside = [{"name": "a", "to": "a_before_2"}]
    rename = "alter table log rename column `a` to `a_before_2`"
    assert altered("a", aside=aside, **mapped) == [rename]
    assert altered("a", aside=aside) == [f"alter table log set {MAPPED}", rename]
    assert altered("a b", **{"delta.columnMapping.mode": "none"}) == [f"alter table log set {MAPPED}"]
    assert add("t", ["a b"], "...", mapped) == ["alter table t add columns (...)"]


def test_no_other_table_is_mapped_because_readers_must_know_how() -> None:
    assert "columnMapping" not in created(*PLAIN) + bad_keys(*PLAIN) + create("t", PLAIN, "")
    assert not any(altered(name) for name in PLAIN)


@pytest.mark.parametrize("name", STRANGE)
def test_the_table_of_a_destination_is_mapped_where_a_name_needs_it(name: str) -> None:
    assert create("t", ["id", name], "id int, ...") == f"create table t (id int, ...) using delta {MAPPED}"
    assert add("t", [name], "...", {}) == [f"alter table t set {MAPPED}", "alter table t add columns (...)"]
    assert add("t", ["id"], "...", {}) == ["alter table t add columns (...)"]


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("type_", "is_local"),
    [
        ("timestamp_ntz", True), ("array<timestamp_ntz>", True), ("map<string,timestamp_ntz>", True),
        ("struct<a:int,b:array<struct<c:timestamp_ntz,d:int>>>", True), ("timestamp", False), ("struct<timestamp_ntz:int>", False),
    ],
)  # fmt: skip
def test_a_column_with_a_time_without_a_zone_is_added_after_the_feature_that_it_needs(
    type_: str, *, is_local: bool
) -> None:
    """Delta turns it on by itself only where a table is made."""
    feature = {"delta.feature.timestampNtz": "supported"}
    asked = "tblproperties ('delta.feature.timestampNtz' = 'supported')"
    first = [f"alter table log set {asked}"] if is_local else []
    assert altered("at", type_=type_) == first
    assert not altered("at", type_=type_, **feature)
    assert (f"using delta {asked} as" in bad_keys("at", type_=type_)) == is_local
    quoted = re.sub(r"(\w+):", r"`\1`: ", type_).replace(",", ", ")
    widen = f"alter table log add columns (`timestamp_ntz``s` {quoted})"
    assert add("log", ["at"], f"`timestamp_ntz``s` {quoted}", {}) == [*first, widen]
    assert add("log", ["at"], f"`timestamp_ntz``s` {quoted}", feature) == [widen]
