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
    dropped: list[str] = []
    macros = Macros(lambda _: [{"time": time, "length": length}], adapter=SimpleNamespace(drop_relation=dropped.append))
    macros._macros.update(_feed_inputs=lambda kind: [f"log__{kind}_1"])
    with pytest.raises(
        CompilationError, match=f"found spark.sql.*{found} in .*expected Spark's default; nothing was"
    ) as refused:
        macros._check_first_session("log")
    assert (macros.run, dropped) == ([f"select {PROBE}"], ["log__kafka_1", "log__files_1"])
    assert ("cast(... as timestamp_ntz)" in str(refused.value)) == (time != "timestamp")

    macros = Macros(lambda _: [{"header": "{}", "time": time, "length": length}])
    with pytest.raises(CompilationError, match=found):
        macros._header("log", 7)


def test_a_header_is_read_without_its_nulls_whatever_the_session_does_with_them() -> None:
    macros = Macros(lambda _: [{"header": '{"label": "a"}', "time": "timestamp", "length": 1}])
    found = macros._header("log", 7)
    assert (found["label"], found["undone"], found["drift"]) == ("a", [], None)
    assert "_header.*), map('ignoreNullFields', 'true'))" in macros.run[0]
