"""What a Python model of dbt that pushes says when it cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.python_model import push


def test_a_model_without_its_hook_fails_and_the_message_names_the_hook() -> None:
    def table(name: str) -> Any:
        raise AnalysisException(f"{name} is not there")

    this = SimpleNamespace(database="main", schema="shop", identifier="push_customers")
    with pytest.raises(ReverseEtlError) as raised:
        push(SimpleNamespace(this=this), SimpleNamespace(table=table), "profiles")
    assert "`main`.`shop`.`push_customers__syncs`: found no such table" in str(raised.value)
    assert "{{ reverse_etl.hand_over_syncs() }}" in str(raised.value)
