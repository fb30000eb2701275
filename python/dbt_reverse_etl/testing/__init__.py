"""Tests that every sink passes, and what they are made of, for the authors of sinks. Needs pytest and hypothesis.

    class TestMySink(SinkContract):
        sink_class = MySink

        @pytest.fixture
        def settings(self): ...  # what profiles.yml would say, without `type`

        @pytest.fixture
        def read_back(self): ...  # (task) -> the rows that the destination now holds, as dictionaries

Each test starts with a destination that is empty. What the sink does not offer (a mode, transactions) is skipped.
"""

from dbt_reverse_etl.testing.contract import SinkContract
from dbt_reverse_etl.testing.rows import (
    CAPTURED,
    PEOPLE,
    SNAPSHOT_ID,
    TYPES,
    Change,
    Row,
    batch_of,
    changes_to,
    deliver,
    next_run,
    opened,
    outcomes,
    person,
)
from dbt_reverse_etl.testing.under_test import ReadBack, Trouble

__all__ = [
    "CAPTURED",
    "PEOPLE",
    "SNAPSHOT_ID",
    "TYPES",
    "Change",
    "ReadBack",
    "Row",
    "SinkContract",
    "Trouble",
    "batch_of",
    "changes_to",
    "deliver",
    "next_run",
    "opened",
    "outcomes",
    "person",
]
