"""Keys that a user writes as JSON, and the rows that they name."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import SparkSession

from dbt_reverse_etl.base import sql
from dbt_reverse_etl.base.errors import mistake
from dbt_reverse_etl.config.settings import Changelog
from dbt_reverse_etl.delivery.ports import OneRow
from dbt_reverse_etl.warehouse.head import Head


def fitting(given: str, changelogs: Sequence[Changelog]) -> list[Changelog]:
    """The changelogs whose key has the columns of the text. Its values are not repeated in an error."""
    try:
        read = json.loads(given, object_pairs_hook=tuple)  # an object, in which a name may come twice
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, tuple):
        expected = 'a key as JSON, such as {"customer_id": 1}'
        raise mistake("--key", "text that is no JSON object", expected, "put it into single quotes")
    if any(isinstance(value, tuple | list) for _, value in read):
        raise mistake("--key", "a list or an object as a value", "plain values", "write the key as the model has it")
    columns = sorted(name.casefold() for name, _ in read)
    found = [one for one in changelogs if sorted(name.casefold() for name in one.key) == columns]
    if not found:
        known = "; ".join(f"{one.name}: {', '.join(one.key)}" for one in changelogs) or "none"
        wrong = f"the columns {', '.join(name for name, _ in read)}" if read else "no column"
        raise mistake("--key", wrong, f"the key of a chosen changelog: {known}", "correct it")
    return found


def stored_key(spark: SparkSession, head: Head, changelog: Changelog, given: str) -> OneRow:
    """The key as the ledger writes it. Raises ConfigurationError: its values do not fit the columns."""
    types = {name.casefold(): type_ for name, type_ in head.columns}
    typed = {name: types[name.casefold()] for name in head.key}
    query = sql.render("key_as_stored", head.key, typed, _spelled(given, changelog.key))
    stored, bucket = spark.sql(query).collect()[0]
    if stored is None:
        found, expected = f"a value that is no key of {changelog.name}", ", ".join(map(" ".join, typed.items()))
        raise mistake("--key", found, expected, "correct the value")
    return OneRow(stored, bucket)


def _spelled(given: str, key: Sequence[str]) -> str:
    """The same JSON with the columns as the changelog spells them, for Spark looks for them so."""
    own, read = {name.casefold(): name for name in key}, json.loads(given)
    return given if read.keys() == set(key) else json.dumps({own[name.casefold()]: read[name] for name in read})
