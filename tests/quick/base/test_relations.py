"""Which model a relation belongs to, by the names that dbt tells."""

from __future__ import annotations

import pytest

from dbt_reverse_etl.base.sql import value_of

DEV = {"database": None, "schema": "dev", "alias": "people", "relation_name": "dev.people", "defer_relation": None}
PROD = {"database": None, "schema": "prod", "alias": "people", "relation_name": "prod.people"}


def relation(schema: str, identifier: str) -> dict[str, str | None]:
    return {"database": None, "schema": schema, "identifier": identifier}


@pytest.mark.parametrize(
    ("of", "node", "expected"),
    [
        (relation("DEV", "People"), DEV, True),
        (relation("prod", "people"), DEV, False),
        (relation("prod", "people"), {**DEV, "defer_relation": PROD}, True),
        (relation("dev", "people"), {**DEV, "defer_relation": PROD}, True),
        (relation("prod", "pets"), {**DEV, "defer_relation": PROD}, False),
    ],
)
def test_a_relation_that_dbt_defers_to_belongs_to_the_same_model(of: object, node: object, *, expected: bool) -> None:
    assert value_of("_is_relation_of", of, node) is expected
