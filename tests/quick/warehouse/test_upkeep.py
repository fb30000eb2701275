"""What is done to the files of a ledger while a push runs: by the history of its table, no other run wrote meanwhile."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from dbt_reverse_etl.warehouse.commits import Commits

OURS = "fence 2 of crm, begun by run-2"


def fence_after(*operations: str) -> int | None:
    """The newest fence of `crm` by the history, where these operations follow the begin of its run; None: not known."""
    kept: list[Any] = []

    def commit(operation: str, said: str | None) -> None:
        at = datetime(2026, 1, 1, tzinfo=timezone.utc)
        kept.insert(0, SimpleNamespace(version=len(kept), operation=operation, userMetadata=said, timestamp=at))

    commit("CREATE TABLE", None)
    commits = Commits(SimpleNamespace(sql=lambda _: SimpleNamespace(collect=lambda: kept)), "ledger")  # type: ignore[arg-type]
    commits.follow()
    commit("WRITE", OURS)
    for operation in operations:
        commit(operation, None)
    return commits.fence("crm")


@pytest.mark.parametrize("operation", ["OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES"])
def test_what_moves_rows_from_file_to_file_does_not_make_a_push_read_the_ledger_again(operation: str) -> None:
    assert fence_after(operation) == 2


@pytest.mark.parametrize("operation", ["WRITE", "RESTORE", "DELETE"])
def test_after_a_write_that_names_no_run_only_the_rows_tell(operation: str) -> None:
    assert fence_after(operation) is None
