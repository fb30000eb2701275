"""What a reconcile finds in a small world, key by key, and what it tells the ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dbt_reverse_etl.app.reconcile import DIFFERENT, EXTRA, MISSING, Difference
from dbt_reverse_etl.delivery.position import State
from tests.support.delivery.reference import Changelog, Image, bucket, hash_of


def differing(
    rows: Mapping[str, int], wanted: Image, state: State, changelog: Changelog, ours: Collection[str]
) -> list[Difference]:
    """The keys that the destination does not hold as they were delivered, as the macro `reconciled` lists them.

    Args:
        rows: of the destination.
        wanted: the model at the position that every row has reached.
        ours: keys of rows that the sync may have written and nobody else has.
    """
    found = []
    for key in sorted({*rows, *wanted} - {*state.undelivered}):
        have, want = rows.get(key), wanted.get(key)
        if have == want or (want is None and key not in ours):
            continue
        kind = MISSING if have is None else EXTRA if want is None else DIFFERENT
        found.append(Difference(key, kind, bucket(key), hash_of(want), changelog.changed(key, changelog.head)))
    return found
