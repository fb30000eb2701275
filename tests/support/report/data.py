"""A report with hand-made numbers: three syncs that stand differently, two changelogs, one key."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from dbt_reverse_etl.delivery.counts import Counts, PerOperation
from dbt_reverse_etl.delivery.health import Health
from dbt_reverse_etl.report.model import Changelog, Delivery, KeyChange, KeyHistory, Reason, Report, Run, Snapshot, Sync

NOW = datetime(2026, 3, 14, 9, 30, tzinfo=timezone.utc)
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="320" height="60"><rect width="320" height="60" fill="#3b76d6"/></svg>'


def runs(number: int, *, last: str = "succeeded", message: str = "", rejected: int = 0) -> tuple[Run, ...]:
    """Hourly runs, the newest an hour before NOW."""
    found = []
    for n in range(1, number + 1):
        at = NOW - timedelta(hours=number - n + 1)
        newest = n == number
        refused = PerOperation(update=rejected if newest else 0)
        sent = PerOperation(180 + n * 37 % 90, 420 + n * 53 % 300, n * 17 % 60)
        planned = sent + refused
        status = last if newest else "succeeded"
        counts = Counts(planned, sent, refused)
        found.append(Run(n, at, at + timedelta(seconds=4 + n % 7), status, n, message if newest else "", counts))
    return tuple(found)


def snapshots(number: int, rows: int) -> tuple[Snapshot, ...]:
    """Hourly snapshots of a model that grows."""
    found = []
    for n in range(1, number + 1):
        changed = (rows, 0, 0) if n == 1 else (180 + n * 37 % 90, 420 + n * 53 % 300, n * 17 % 60)
        rows += 0 if n == 1 else changed[0] - changed[2]
        at = NOW - timedelta(hours=number - n + 1, minutes=5)
        found.append(Snapshot(n, at, "capture", f"2026-03-{n:02}" if n % 5 == 0 else None, *changed, rows))
    return tuple(found)


def report(**changed: object) -> Report:
    """Everything that the page can show."""
    unreachable = "destination crm_api: found no answer within 30 s; expected an HTTP answer. Next: repeat the push"
    syncs = (
        Sync("crm_contacts", "contacts_changelog", "crm.contacts", "postgres", "mirror", Health.OK, 24, 24, 0,
             last_success_at=NOW - timedelta(hours=1), runs=runs(24)),
        Sync("ads_audience", "contacts_changelog", "ads.audience", "http", "upsert", Health.FAILING, 24, 24, 0,
             last_success_at=NOW - timedelta(hours=3), runs=runs(24, last="partial", rejected=41),
             reasons=(Reason("update", "rejected", "422 invalid_email", 38, NOW - timedelta(hours=2)),
                      Reason("insert", "parked", "422 unknown_country: the field country must be one of ISO 3166", 3,
                             NOW - timedelta(days=2)))),
        Sync("crm_orders", "orders_changelog", "crm_api.orders", "http", "mirror", Health.FAILING, 16, 18, 2, NOW - timedelta(hours=2, minutes=5),
             NOW - timedelta(hours=4), runs(16, last="failed", message=unreachable)),
        Sync("lake_orders", "orders_changelog", "lake.orders", "delta", "mirror", Health.BEHIND, 17, 18, 1, NOW - timedelta(minutes=65),
             NOW - timedelta(hours=2), runs(9)),
        Sync("new_orders", "orders_changelog", "files.orders", "files", "upsert", Health.NEVER, 0, 18, 18, NOW - timedelta(hours=19)),
    )  # fmt: skip
    changelogs = (
        Changelog("contacts_changelog", ("contact_id",), (("contacts_raw", "plans_raw"), ("contacts",)), snapshots(24, 120_000)),
        Changelog("orders_changelog", ("order_id", "line"), (("shop.orders",),), snapshots(18, 8_400)),
    )  # fmt: skip
    keys = (
        KeyHistory(
            "contacts_changelog", '{"contact_id":1}', ("ads_audience", "crm_contacts"),
            (KeyChange(1, NOW - timedelta(hours=24), "insert", (), None, 7_421_905_512_345),
             KeyChange(7, NOW - timedelta(hours=18), "update", ("email", "plan"), 7_421_905_512_345, -99_120_443),
             KeyChange(24, NOW - timedelta(hours=1), "delete", (), -99_120_443, None)),
            (Delivery("ads_audience", 1, NOW - timedelta(hours=24), 1), Delivery("ads_audience", 7, NOW - timedelta(hours=18), 7, "422 invalid_email"),
             Delivery("crm_contacts", 2, NOW - timedelta(hours=23), 2), Delivery("crm_contacts", 7, NOW - timedelta(hours=18), 7)),
        ),
    )  # fmt: skip
    given: dict[str, object] = {
        "project": "shop", "target": "prod", "made_at": NOW, "version": "0.1.0", "syncs": syncs,
        "changelogs": changelogs, "keys": keys, "pictures": {"contacts": PICTURE},
    }  # fmt: skip
    return Report(**{**given, **changed})  # type: ignore[arg-type]
