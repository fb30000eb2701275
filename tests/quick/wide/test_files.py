"""The files of generated chains: which of them no wide table needs any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbt_reverse_etl.wide.files import write
from tests.support.wide.chains import CHANGELOGS, PLAIN, generated
from tests.support.wide.declarations import COUNTRY, CUSTOMERS, REGION

WIDE = {"root": "customers", "nodes": [CUSTOMERS, REGION | {"columns": ["name"]}, COUNTRY | {"columns": ["size"]}]}


@pytest.mark.parametrize("model", ["wide_orders", "wide-orders", "wide.orders", "wide orders"])
def test_what_a_chain_reads_is_needed_whatever_its_model_is_called(tmp_path: Path, model: str) -> None:
    assert not write(tmp_path, generated(WIDE, PLAIN, model)).unneeded
    logged = generated(WIDE, CHANGELOGS, model)
    unneeded = {path.stem for path in write(tmp_path, logged).unneeded}
    assert f"{model}_chain_joined" in unneeded
    assert not unneeded & {one.name for one in logged}
