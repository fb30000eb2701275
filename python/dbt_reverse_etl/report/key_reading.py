"""The history of single keys: what the model had, and what was delivered of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Row

from dbt_reverse_etl.app.keys import fitting, stored_key
from dbt_reverse_etl.app.push import Pusher
from dbt_reverse_etl.base import sql
from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.base.times import utc
from dbt_reverse_etl.config.settings import Changelog
from dbt_reverse_etl.report.model import Delivery, KeyChange, KeyHistory
from dbt_reverse_etl.warehouse.head import Head

MOST_ROWS = 1000  # change rows of one key, the newest


def read_keys(
    pusher: Pusher,
    changelogs: Sequence[Changelog],
    names: Mapping[str, Mapping[str, str]],
    keys: Iterable[str],
    *,
    show_values: bool,
) -> list[KeyHistory]:
    """The history of each key in every changelog that has a key of these columns.

    Args:
        names: name of each sync by its id, for the unique id of each changelog.
        keys: JSON objects.
        show_values: keep the rows, and not only the names of the columns that changed.

    Raises:
        ReverseEtlError: a text is no key of any of these changelogs.
    """
    found = []
    for given in keys:
        for changelog in fitting(given, changelogs):
            found.append(_read(pusher, changelog, names[changelog.unique_id], given, show_values=show_values))
    return found


def head_of(pusher: Pusher, relation: str) -> Head | None:
    """The head of a changelog; None where the model was not run yet."""
    try:
        return pusher.head(relation)
    except ReverseEtlError:  # there is no table; the syncs say so
        return None


def changes(rows: Sequence[Row | Any], *, show_values: bool) -> list[KeyChange]:
    """Change rows of one key, oldest first and pre-images before post-images, as one change each."""
    found, before = [], None
    for row in rows:
        if row._change == "update_preimage":
            before = row
            continue
        old = row if row._change == "delete" else before
        new = None if row._change == "delete" else row
        found.append(_change(row, old, new, show_values=show_values))
        before = None
    return found


def _change(row: Any, old: Any, new: Any, *, show_values: bool) -> KeyChange:
    # A float of Python has 15 digits, a decimal up to 38.
    was, now = (json.loads(one._row, parse_float=str) if one else {} for one in (old, new))
    return KeyChange(
        snapshot=row._snapshot_id,
        captured_at=utc(row._captured_at),
        change=row._change.partition("_")[0],
        columns=tuple(name for name in now if was and was.get(name) != now[name]),
        before_hash=str(old._row_hash) if old else None,
        after_hash=str(new._row_hash) if new else None,
        before=old._row if old and show_values else None,
        after=new._row if new and show_values else None,
    )


def _read(
    pusher: Pusher, changelog: Changelog, names: Mapping[str, str], given: str, *, show_values: bool
) -> KeyHistory:
    head = head_of(pusher, changelog.relation_name)
    if head is None:
        return KeyHistory(changelog.name, given, sorted(names.values()))
    row = stored_key(pusher.spark, head, changelog, given)
    columns = [name for name, _ in head.columns]
    history = sql.render("key_history", changelog.relation_name, head.key, columns, row.key, MOST_ROWS)
    rows = sorted(
        pusher.spark.sql(history).collect(), key=lambda row: (row._snapshot_id, row._change != "update_preimage")
    )
    return KeyHistory(
        changelog.name,
        row.key,
        sorted(names.values()),
        changes(rows, show_values=show_values),
        _deliveries(pusher, names, head.changelog, row.key, row.bucket),
    )


def _deliveries(pusher: Pusher, names: Mapping[str, str], changelog: str, stored: str, bucket: int) -> list[Delivery]:
    if not names:
        return []
    query = sql.render("key_deliveries", pusher.ledger.relation, list(names), changelog, stored, bucket)
    return [
        Delivery(
            names[row.sync_id],
            row.fence,
            utc(row.recorded_at),
            row.snapshot,
            row.reason and redact(row.reason),
            row.outcome,
        )
        for row in pusher.spark.sql(query).collect()
    ]
