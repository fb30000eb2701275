"""Columns of a model that are refused before anything is written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

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


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("name", ["a${b}", "${env:HOME}", "a${b\u00a0c}"])
def test_a_name_in_which_spark_replaces_a_variable_is_refused(name: str) -> None:
    words = "has a name in which Spark replaces a variable; expected one without ${...}; rename it in the model"
    assert Macros()._variables_in({"id": "int", name: "int"}) == [f"column {name} {words}"]


def test_a_name_in_which_spark_finds_no_variable_is_taken() -> None:
    assert Macros()._variables_in(["$c", "price (${usd)", "${}", "${a b}", "{a}"]) == []


def captured_columns(names: list[str], only_captured: list[str], **capture: str) -> list[str]:
    """The columns of a changelog whose model has these."""
    rows = [{"name": name, "type": "string"} for name in names]
    macros = Macros(
        lambda sql: rows if sql.startswith("describe table") else [],
        config=SimpleNamespace(get=lambda _: SimpleNamespace(enforced=False)),
        this=SimpleNamespace(identifier="log"),
        model=SimpleNamespace(compiled_code="select 1", name="log"),
    )
    macros._macros.update(_is_partial=lambda: False)
    settings = SimpleNamespace(
        **{**vars(SETTINGS), "capture": {**SETTINGS.capture, **capture}}, only_captured=only_captured
    )
    return [column["name"] for column in macros._model_query("uuid", settings)["columns"]]


def test_the_name_of_a_column_that_is_only_read_is_looked_at_too() -> None:
    with pytest.raises(CompilationError, match=r"\n  column .{env:HOME} has a name in which Spark"):
        captured_columns(["id", "${env:HOME}"], ["${env:HOME}"])


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("option", ["operation", "deleted"])
def test_a_column_that_no_changelog_keeps_is_refused_in_another_case_because_it_would_stay(option: str) -> None:
    assert captured_columns(["id", "op"], ["op"], **{option: "op"}) == ["id"]
    with pytest.raises(CompilationError, match=f"{option}: found 'OP'; expected 'op', as the model spells it; correct"):
        captured_columns(["id", "op"], ["OP"], **{option: "OP"})
