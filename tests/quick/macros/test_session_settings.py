"""Settings of a session: those under which our SQL would mean something else are refused, others make a capture compare everything."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import Environment

from tests.support import ROOT
from tests.support.dbt.macros import CompilationError, Macros

Answers = Callable[[str], Sequence[Mapping[str, Any]]]
PROBE = "typeof(cast(null as timestamp)), length('\\u0041')"
WRITTEN = "set `spark.sql.parquet.outputTimestampType`"
OTHER = [
    ("timestamp_ntz", 1, "INT96", "timestampType: TIMESTAMP_NTZ"),
    ("timestamp", 6, "INT96", "escapedStringLiterals: true"),
    ("timestamp", 1, "timestamp_millis", "parquet.outputTimestampType: TIMESTAMP_MILLIS"),
]


def session(time: str, length: int, written: str, **header: str) -> Answers:
    """What a session answers to the questions of a capture."""
    rows = [{"key": "spark.sql.parquet.outputTimestampType", "value": written}]
    asked = {**header, "time": time, "length": str(length), "session": "UTC"}
    return lambda sql: rows if sql == WRITTEN else [asked]


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(("time", "length", "written", "found"), OTHER)
def test_a_session_in_which_times_or_texts_are_other_ones_is_refused(
    time: str, length: int, written: str, found: str
) -> None:
    dropped: list[str] = []
    macros = Macros(session(time, length, written), adapter=SimpleNamespace(drop_relation=dropped.append))
    macros._macros.update(_feed_inputs=lambda kind: [f"log__{kind}_1"])
    with pytest.raises(
        CompilationError, match=f"found spark.sql.*{found} in .*expected Spark's default; nothing was"
    ) as refused:
        macros._check_first_session("log")
    assert macros.run[0].startswith(f"select {PROBE}, concat(current_timezone(), ")
    assert dropped == ["log__kafka_1", "log__files_1"]
    assert ("cast(... as timestamp_ntz)" in str(refused.value)) == (time != "timestamp")

    macros = Macros(session(time, length, written, header="{}"))
    with pytest.raises(CompilationError, match=found):
        macros._header("log", 7)


@pytest.mark.parametrize("written", ["INT96", "TIMESTAMP_MICROS"])
def test_a_session_whose_tables_keep_microseconds_is_taken(written: str) -> None:
    assert Macros(session("timestamp", 1, written, header="{}"))._header("log", 7)["session"] == "UTC"


def test_a_warehouse_of_databricks_is_asked_for_no_settings_because_it_has_none_of_that_kind() -> None:
    answers = session("timestamp", 1, "TIMESTAMP_MILLIS", header="{}")
    macros = Macros(answers, target=SimpleNamespace(type="databricks"))
    assert macros._header("log", 7)["session"] == "UTC"
    assert WRITTEN not in macros.run


def test_no_statement_reads_on_to_its_end_because_dbt_may_append_a_comment() -> None:
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "macros").glob("*/*.sql")]
    found = [statement for text in texts for statement in re.findall(r"""run_query\(['"]((?:re)?set\b[^)]*)""", text)]
    assert len(found) == 4
    assert [statement for statement in found if not re.match("(re)?set `", statement)] == []


def test_no_text_of_ours_is_in_double_quotes_because_a_session_may_take_it_for_a_name() -> None:
    lexer, others = Environment(extensions=["jinja2.ext.do"]), set()
    for file in (*(ROOT / "macros").glob("*/*.sql"), *(ROOT / "models").glob("*.sql")):
        tokens = [(kind, value) for _, kind, value in lexer.lex(file.read_text(encoding="utf-8"))]
        sql = "".join(value for kind, value in tokens if kind == "data")
        assert '"' not in re.sub(r"'[^'\n]*'", "", sql), file
        others |= {value[1:-1] for kind, value in tokens if kind == "string" and '"' in value[1:-1]}
    patterns = {text for text in others if re.search(r"[\[\\]", text)}
    assert others - patterns == {'"', '"Append"', ': "(select ...)"}}`'}, "of Postgres, of JSON, of YAML"
    for file in (ROOT / "python" / "dbt_reverse_etl").glob("*/*.py"):
        found = (
            ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file.parent.name in ("app", "warehouse") else ()
        )
        texts = [node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        assert not [text for text in texts if '"' in text and re.search(r"\b(select|from|where)\b", text)], file


def test_no_text_of_a_timestamp_depends_on_what_a_session_takes_a_backslash_for() -> None:
    shown = Macros()._json("struct(at)")
    assert shown.split("(", 1)[0].strip() == "to_json"
    assert "'timestampFormat', concat('yyyy-MM-dd', char(39), 'T', char(39), 'HH:mm:ss.SSSSSSXXX')" in shown
    assert "'timestampNTZFormat', concat('yyyy-MM-dd', char(39), 'T', char(39), 'HH:mm:ss.SSSSSS'))" in shown


def test_a_header_is_read_without_its_nulls_whatever_the_session_does_with_them() -> None:
    macros = Macros(lambda _: [{"header": '{"label": "a"}', "time": "timestamp", "length": 1, "session": "UTC"}])
    found = macros._header("log", 7)
    assert (found["label"], found["undone"], found["drift"], found["session"]) == ("a", [], None, "UTC")
    assert "_header.*), map('ignoreNullFields', 'true'))" in macros.run[0]


@pytest.mark.guarantee("Capture")
def test_another_session_makes_a_strategy_compare_everything_where_that_of_the_last_capture_is_known() -> None:
    macros = Macros()

    def why(before: str | None, now: str | None) -> str | None:
        columns = SimpleNamespace(names=["ID"])
        head = {"quarantined": [], "columns": [{"name": "id"}], "positions": macros._way_of_rows("sql", before)}
        proposal = {"only_changes": False, "problem": None, "positions": macros._way_of_rows("sql", now)}
        found: str | None = macros._unknown_since(head, columns, proposal)
        return found

    assert why("UTC", "Asia/Tokyo, ANSI") == "the session has other settings: Asia/Tokyo, ANSI; before: UTC"
    assert [why("UTC", "UTC"), why(None, "UTC"), why("UTC", None)] == [None] * 3
