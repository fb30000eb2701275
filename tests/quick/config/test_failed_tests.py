"""Which tests of a changelog have not passed, by the results that dbt writes."""

from __future__ import annotations

from typing import Any

import pytest

from dbt_reverse_etl.config.artifacts import failed_tests

MODEL, TEST = "model.shop.people", "test.shop.unique"
MANIFEST: dict[str, Any] = {
    "nodes": {
        MODEL: {"resource_type": "model", "config": {"materialized": "changelog"}},
        TEST: {"resource_type": "test", "config": {"severity": "ERROR"}, "depends_on": {"nodes": [MODEL]}},
    }
}
CUT_SHORT = "Skipping due to fail_fast"  # what dbt 1.10 and 1.11 write


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize(
    ("model", "holds_back"),
    [
        ({"status": "success", "message": "OK"}, True),
        ({"status": "skipped", "message": CUT_SHORT}, True),
        ({"status": "skipped", "message": None}, False),
        ({"status": "error", "message": "no column"}, False),
    ],
)
def test_a_skipped_test_holds_back_what_may_have_been_captured_while_dbt_failed_fast(
    model: dict[str, Any], *, holds_back: bool
) -> None:
    results = {MODEL: model, TEST: {"status": "skipped", "message": CUT_SHORT}}
    assert failed_tests(results, MANIFEST) == ({MODEL: (TEST,)} if holds_back else {})
