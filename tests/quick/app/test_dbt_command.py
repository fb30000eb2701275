"""What `dbt-reverse-etl run -- ...` makes of dbt's own words."""

from __future__ import annotations

import pytest

from dbt_reverse_etl.app.dbt_command import is_retry


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("retry", True),
        ("--quiet retry --threads 2", True),
        ("build --select retry", False),
        ("--warn-error run -s orders retry+", False),
        ("run", False),
        ("", False),
    ],
)
def test_a_model_named_retry_makes_no_dbt_retry(command: str, expected: bool) -> None:
    assert is_retry(command.split()) is expected
