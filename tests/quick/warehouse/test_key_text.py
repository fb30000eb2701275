"""Keys between their columns and their JSON text, in SQL."""

from __future__ import annotations

import pytest

from dbt_reverse_etl.base.sql import render
from tests.support.dbt.macros import Macros


def test_the_name_of_a_key_column_may_have_an_apostrophe_in_the_delete_of_an_unknown_row() -> None:
    key, types = ["cust's id", "b"], {"cust's id": "int", "b": "string"}
    schema = "'`cust\\'s id` int, `b` string'"
    assert render("_key_of_json", "_key", key, types).startswith(f"from_json(_key, {schema}, map(")
    assert f"from_json('{{}}', {schema})" in render("key_as_stored", key, types, "{}")


@pytest.mark.guarantee("Capture")
def test_no_value_leaves_in_sql_what_spark_takes_for_a_variable_of_its_own_or_of_the_environment() -> None:
    value = "a${x} $${env:HOME} \\${y}"
    header = {"label": value, "quarantined": [{"key": value}], "positions": {value: value}}
    for text in (
        render("key_as_stored", ["id"], {"id": "string"}, value),
        render("key_history", "log", ["id"], ["id"], value, 10),
        Macros()._header_literal(header),
        Macros()._strings([value]),
    ):
        assert "u007benv:HOME}" in text
        assert "${" not in text
    assert render("_string", value) == r"'a$\u007bx} $$\u007benv:HOME} \\$\u007by}'"
