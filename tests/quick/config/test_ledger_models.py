"""A `+materialized` at the top of the user's `models:` reaches the models of the package, too."""

from __future__ import annotations

from typing import Any

import pytest

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.config.manifest import LEDGER_NODE, syncs
from tests.support.config.manifest import manifest

STATUS = "model.reverse_etl.reverse_etl_status"


def with_models(**materialized: str) -> dict[str, Any]:
    made = manifest({"sound": {"destination": "crm"}})
    for unique_id, of in zip((LEDGER_NODE, STATUS), materialized.values(), strict=True):
        made["nodes"][unique_id] = {"unique_id": unique_id, "config": {"materialized": of}}
    return made


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("of", ["table", "view", "incremental", "ephemeral"])
def test_a_ledger_of_another_materialization_is_refused_once_with_what_to_write(of: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        syncs(with_models(ledger=of, status=of))
    (problem,) = caught.value.problems
    assert problem.where == "dbt_project.yml: models"
    assert problem.found == f"materialized: {of} for reverse_etl_ledger"
    assert "reverse_etl_ledger: {+materialized: ledger}" in problem.next_step


def test_a_table_in_place_of_a_view_of_the_ledger_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="materialized: table for reverse_etl_status; expected ledger_view"):
        syncs(with_models(ledger="ledger", status="table"))


@pytest.mark.parametrize("of", ["ledger_view", "view"])
def test_any_view_of_the_ledger_will_do(of: str) -> None:
    assert len(syncs(with_models(ledger="ledger", status=of))) == 1
