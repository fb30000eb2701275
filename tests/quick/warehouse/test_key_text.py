"""Keys between their columns and their JSON text, in SQL."""

from __future__ import annotations

from dbt_reverse_etl.base.sql import render


def test_the_name_of_a_key_column_may_have_an_apostrophe_in_the_delete_of_an_unknown_row() -> None:
    key, types = ["cust's id", "b"], {"cust's id": "int", "b": "string"}
    schema = "'`cust\\'s id` int, `b` string'"
    assert render("_key_of_json", "_key", key, types).startswith(f"from_json(_key, {schema}, map(")
    assert f"from_json('{{}}', {schema})" in render("key_as_stored", key, types, "{}")
