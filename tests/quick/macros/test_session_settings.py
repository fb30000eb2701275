"""Settings of a session under which our SQL would mean something else: refused before anything is written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.dbt.macros import CompilationError, Macros

PROBE = "typeof(cast(null as timestamp)), length('\\u0041')"
OTHER = [("timestamp_ntz", 1, "timestampType: TIMESTAMP_NTZ"), ("timestamp", 6, "escapedStringLiterals: true")]


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(("time", "length", "found"), OTHER)
def test_a_session_in_which_times_or_texts_are_other_ones_is_refused(time: str, length: int, found: str) -> None:
    macros = Macros(lambda _: [{"time": time, "length": length}])
    with pytest.raises(CompilationError, match=f"found spark.sql.*{found} in .*expected Spark's default; nothing was"):
        macros._create_changelog("log", [], SimpleNamespace(key=["id"]))
    assert macros.run == [f"select {PROBE}"], "no table was made"

    macros = Macros(lambda _: [{"header": "{}", "time": time, "length": length}])
    with pytest.raises(CompilationError, match=found):
        macros._header("log", 7)


def test_a_header_is_read_without_its_nulls_whatever_the_session_does_with_them() -> None:
    macros = Macros(lambda _: [{"header": '{"label": "a"}', "time": "timestamp", "length": 1}])
    found = macros._header("log", 7)
    assert (found["label"], found["undone"], found["drift"]) == ("a", [], None)
    assert "_header.*), map('ignoreNullFields', 'true'))" in macros.run[0]
