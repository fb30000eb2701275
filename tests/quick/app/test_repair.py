"""What a repair says to the ledger."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from dbt_reverse_etl.app.reconcile import (
    DIFFERENT,
    EXTRA,
    FOREIGN,
    LEFTOVER,
    MISSING,
    Difference,
    Differences,
    undelivered_of,
)

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
KINDS = (MISSING, DIFFERENT, EXTRA, FOREIGN, LEFTOVER)


def test_each_repair_asks_for_its_rows_by_an_id_of_its_own_and_leaves_rows_of_others_alone() -> None:
    found = Differences(5, dict.fromkeys(KINDS, 1), [Difference(kind, kind, 1, 1, 1) for kind in KINDS])
    first, second = (undelivered_of(found, "crm", now) for now in (NOW, NOW + timedelta(microseconds=1)))
    assert [row.key for row in first] == [row.key for row in second] == [MISSING, DIFFERENT, EXTRA]
    ids = [{row.asked_by for row in rows} for rows in (first, second)]
    assert None not in ids[0] | ids[1]
    assert [len(one) for one in ids] == [1, 1]
    assert ids[0] != ids[1]
