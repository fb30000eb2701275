"""Macros and runner of different versions: what is refused, with a cure that cures."""

from __future__ import annotations

from typing import Any

import pytest

from dbt_reverse_etl.app import versions


@pytest.fixture(autouse=True)
def runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "VERSION", "0.3.1")


def manifest(version: str) -> dict[str, Any]:
    sql = f"{{# Some words #}}\n{{% macro version() %}}{version}{{% endmacro %}}"
    return {"macros": {"macro.reverse_etl.version": {"macro_sql": sql}}}


@pytest.mark.guarantee(
    "Configuration", "Macros of another release than the runner are refused before anything is captured"
)
def test_macros_of_another_release_than_the_runner_are_refused_and_those_of_the_same_are_not() -> None:
    assert versions.other_macros(manifest("0.3.0")) == versions.other_macros({}) == []
    for other in ("0.2.9", "0.4.0", "1.3.1", "0.30.1"):
        (problem,) = versions.other_macros(manifest(other))
        assert f"found the dbt package in version {other}; expected that of the runner, 0.3.1" in str(problem)
        assert "dbt-reverse-etl init" in str(problem)
        assert ("pip install" in str(problem)) is (other != "0.2.9"), "the cure of older macros is not an older runner"


def test_the_snapshots_of_older_macros_are_read_and_those_of_newer_ones_refused() -> None:
    for known in ("0.1.0", "0.3.0", "0.3.9"):
        assert versions.newer_macros(known, "shop.contacts") is None
    for newer in ("0.4.0", "0.10.0", "1.0"):
        assert f"pip install 'dbt-reverse-etl=={newer}'" in str(versions.newer_macros(newer, "shop.contacts"))
