"""Which model a relation belongs to, by the names that dbt tells, and what is the same relation under another `quoting`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from jinja2 import Environment, StrictUndefined

from dbt_reverse_etl.base.sql import plain_relation, render, value_of
from tests.support import ROOT

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


@pytest.mark.guarantee("Report and alerts")
def test_a_blocked_sync_is_found_however_quoting_renders_the_relation_of_its_changelog() -> None:
    assert {plain_relation(name) for name in ("`Dev`.`people`", "dev.people", '"DEV"."People"')} == {"dev.people"}
    package = SimpleNamespace(
        _synced=lambda _: [{"name": "crm", "relation": "`dev`.`people`"}],
        _is_one_of=lambda _: "sync = 'crm'",
        _newest_runs=lambda _: "",
        _string=lambda text: render("_string", text),
        _plain_relation=lambda name: render("_plain_relation", name),
    )
    text = (ROOT / "macros" / "tests" / "blocked_syncs.sql").read_text(encoding="utf-8") + "{{ blocked_syncs() }}"
    page = Environment(undefined=StrictUndefined, autoescape=False).from_string(text)
    query = page.render(reverse_etl=package, ref=lambda *names: names[-1])
    both = (render("_plain_relation", name) for name in ("refusal.relation", "'`dev`.`people`'"))
    assert f"where {' in ('.join(both)}, '')" in query
