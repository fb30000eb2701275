"""Columns of a model that are refused before anything is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.dbt.macros import CompilationError, Macros

SETTINGS = SimpleNamespace(key=["id"], compare="hash", capture={"recapture_by": None})
ID = {"name": "id", "type": "int"}


def problems(kind: str) -> list[str]:
    found: list[str] = Macros()._model_column_problems([ID, {"name": "c", "type": kind}], SETTINGS)
    return found


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("struct<user-agent:string>", "user-agent"),
        ("struct<größe:int>", "größe"),
        ("array<struct<n:int,名:string>>", "名"),
        ("struct<ſ:int>", "ſ"),
        ("struct<2024:int>", "2024"),
        ("struct<a(1)b:int>", "a(1)b"),
        ("struct<(2024)total:int>", "(2024)total"),
        ("struct<a:b:int>", "a:b"),
        ("struct<n:int,a:b:struct<c:int>>", "a:b"),
        ("struct<a,b:int>", "a,b"),
        ("struct<a(b):int>", "a(b)"),
        ("struct<d:decimal(5,2),a(1):int>", "a(1)"),
        ("struct<g:geometry(4326),geography(1):int>", "geography(1)"),
    ],
)
def test_a_nested_name_that_needs_quotes_is_refused(kind: str, name: str) -> None:
    assert any(f"has a field '{name}' inside it, a name that Spark shows without" in one for one in problems(kind))


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("kind", ["struct<a:int,A:int>", "map<string,struct<s:array<struct<x:int,n:int,X:date>>>>"])
def test_two_fields_of_one_struct_with_one_name_are_refused(kind: str) -> None:
    assert any("in one struct, which a Delta table cannot keep" in one for one in problems(kind))


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    "kind",
    [
        "geometry(4326)",
        "geography(any)",
        "struct<g:geometry(4326)>",
        "struct<a:int,g:geography(OGC:CRS84, any)>",
        "array<geometry>",
    ],
)
def test_a_spatial_value_is_refused(kind: str) -> None:
    assert problems(kind) == [
        "column c is or holds a spatial value, which cannot be hashed; expected a comparable type; use st_asbinary(...) in the model"
    ]


@pytest.mark.parametrize(
    "kind",
    [
        "struct<a:int,b:struct<a:int,B:decimal(5,2)>>",
        "array<struct<_1:array<int>,ID:int,2fa:boolean>>",
        "map<string,struct<a:int,b:array<struct<a:int>>>>",
        "map<int,decimal(10,2)>",
        "array<struct<c:char(5),v:varchar(10),d:array<decimal(38,18)>>>",
        "struct<geometry:string,time:date,geography_:int>",
    ],
)
def test_a_usual_type_is_not_refused(kind: str) -> None:
    assert problems(kind) == []


OF_A_PUSH = re.findall(r" as (_[a-z_]+)", (ROOT / "macros/delivery/pending.sql").read_text(encoding="utf-8"))


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("name", sorted({f"{one}1" if one.endswith("_") else one for one in OF_A_PUSH} - {"_before"}))
def test_a_key_that_has_the_name_of_a_column_of_a_push_is_refused_before_the_first_capture(name: str) -> None:
    columns, key = [{"name": name.upper(), "type": "int"}], SimpleNamespace(**{**vars(SETTINGS), "key": [name.upper()]})
    (problem,) = Macros()._model_column_problems(columns, key)
    assert problem.startswith(f"column {name.upper()} has a name that the changelog, its diff or a push uses; ")


@pytest.mark.parametrize("name", ["_place", "_left", "_claimed_1"])
def test_a_column_beside_the_key_and_the_key_of_what_was_captured_may_have_such_a_name(name: str) -> None:
    key = SimpleNamespace(**{**vars(SETTINGS), "key": [name]})
    assert Macros()._model_column_problems([{"name": name, "type": "int"}], key, {"snapshot_id": 1}) == []
    assert Macros()._model_column_problems([ID, {"name": name, "type": "int"}], SETTINGS) == []


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("name", ["a${b}", "${env:HOME}", "a${b\u00a0c}"])
def test_a_name_in_which_spark_replaces_a_variable_is_refused(name: str) -> None:
    words = "has a name in which Spark replaces a variable; expected one without ${...}; rename it in the model"
    assert Macros()._variables_in({"id": "int", name: "int"}) == [f"column {name} {words}"]


def test_a_name_in_which_spark_finds_no_variable_is_taken() -> None:
    assert Macros()._variables_in(["$c", "price (${usd)", "${}", "${a b}", "{a}"]) == []


def captured_columns(
    names: list[str], only_captured: list[str], head: Mapping[str, Any] | None = None, **capture: Any
) -> list[str]:
    """The columns of a changelog whose model has these."""
    rows = [{"name": name, "type": "string"} for name in names]
    macros = Macros(
        lambda sql: rows if sql.startswith("describe table") else [],
        config=SimpleNamespace(get=lambda _: SimpleNamespace(enforced=False)),
        this=SimpleNamespace(identifier="log"),
        model=SimpleNamespace(compiled_code="select 1", name="log"),
    )
    macros._macros.update(_is_partial=lambda: False)
    kept = None if head is None else SimpleNamespace(**head)
    settings = SimpleNamespace(
        **{**vars(SETTINGS), "capture": {**SETTINGS.capture, **capture}}, only_captured=only_captured
    )
    return [column["name"] for column in macros._model_query("uuid", settings, kept)["columns"]]


def test_the_name_of_a_column_that_is_only_read_is_looked_at_too() -> None:
    with pytest.raises(CompilationError, match=r"\n  column .{env:HOME} has a name in which Spark"):
        captured_columns(["id", "${env:HOME}"], ["${env:HOME}"])


STRATEGIES = {"operation": "feed", "deleted": "timestamp"}


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("option", ["operation", "deleted"])
def test_a_column_that_no_changelog_keeps_is_refused_in_another_case_because_it_would_stay(option: str) -> None:
    asked = {"strategy": STRATEGIES[option]}
    assert captured_columns(["id", "op"], ["op"], **asked, **{option: "op"}) == ["id"]
    with pytest.raises(CompilationError, match=f"{option}: found 'OP'; expected 'op', as .*; correct the .* counts.$"):
        captured_columns(["id", "op"], ["OP"], **asked, **{option: "OP"})


@pytest.mark.guarantee("Capture")
def test_a_changelog_that_has_the_column_in_another_case_goes_on_or_is_shown_the_whole_way_out() -> None:
    head = {"columns": [{"name": "id"}, {"name": "op"}]}
    assert captured_columns(["id", "op"], ["OP"], head, strategy="timestamp", deleted="OP") == ["id", "op"]
    whole = "correct the option .*has the column already, set .*on_column_change: sync_all_columns for one run"
    with pytest.raises(CompilationError, match=whole):
        captured_columns(["id", "op"], ["OP"], head, strategy="feed", operation="OP")


@pytest.mark.parametrize("meant", ["OP", ["a", "b"]])
def test_an_option_of_a_strategy_of_the_project_may_mean_anything(meant: Any) -> None:
    assert captured_columns(["id", "op"], [], strategy="own", deleted=meant, operation=meant) == ["id", "op"]
    assert captured_columns(["id", "op"], [], strategy="timestamp", deleted=["a", "b"]) == ["id", "op"]
