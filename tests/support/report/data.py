"""A report with hand-made numbers: three syncs that stand differently, two changelogs, one key."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from dbt_reverse_etl.delivery.counts import Counts, PerOperation
from dbt_reverse_etl.delivery.health import Health, Left
from dbt_reverse_etl.report.model import Changelog, Delivery, KeyChange, KeyHistory, Report, Run, Snapshot, Sync

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


def syncs() -> tuple[Sync, ...]:
    """One of each health, the best first."""
    unreachable = (
        "failed: destination crm_api: found no answer within 30 s; expected an HTTP answer. Next: repeat the push"
    )
    return (
        Sync("crm_contacts", "contacts_changelog", "crm.contacts", "postgres", "mirror", Health.OK, 24, 24, 0,
             last_success_at=NOW - timedelta(hours=1), runs=runs(24)),
        Sync("lake_orders", "orders_changelog", "lake.orders", "delta", "mirror", Health.BEHIND, 17, 18, 1, NOW - timedelta(minutes=65),
             NOW - timedelta(hours=2), runs(9), "1 snapshot captured since"),
        Sync("new_orders", "orders_changelog", "files.orders", "files", "upsert", Health.NEVER, 0, 18, 18, NOW - timedelta(hours=19),
             reason="never ran: nothing was pushed yet"),
        Sync("mail_contacts", "contacts_changelog", "mail.people", "http", "upsert", Health.UNSETTLED, 23, 24, 1, NOW - timedelta(minutes=65),
             NOW - timedelta(hours=2), runs(8, last="unfinished"), "unfinished: the run that began at 2026-03-14 08:30 UTC has not ended; if it was killed, the next one settles what it sent"),
        Sync("ads_audience", "contacts_changelog", "ads.audience", "http", "upsert", Health.FAILING, 24, 24, 0,
             last_success_at=NOW - timedelta(hours=3), reason="undelivered rows: 41, and max_undelivered allows 0",
             runs=runs(24, last="partial", rejected=41, message="38 rejected: 422 invalid_email; 3 parked: 422 unknown_country"),
             left=(Left("rejected", "422 invalid_email", 38, "at_a_time", NOW + timedelta(minutes=5), NOW + timedelta(hours=2), NOW - timedelta(hours=2)),
                   Left("parked", "422 unknown_country: the field country must be one of ISO 3166", 3, "on_change", since=NOW - timedelta(days=2)))),
        Sync("crm_orders", "orders_changelog", "crm_api.orders", "http", "mirror", Health.FAILING, 16, 18, 2, NOW - timedelta(hours=2, minutes=5),
             NOW - timedelta(hours=4), runs(16, last="failed", message=unreachable.removeprefix("failed: ")), unreachable,
             (Left("not acknowledged", "the run ended before", 812, "next_run"),)),
    )  # fmt: skip


def report(**changed: object) -> Report:
    """Everything that the page can show."""
    changelogs = (
        Changelog("contacts_changelog", ("contact_id",), (("contacts_raw", "plans_raw"), ("contacts",)), snapshots(24, 120_000)),
        Changelog("orders_changelog", ("order_id", "line"), (("shop.orders",),), snapshots(18, 8_400)),
    )  # fmt: skip
    keys = (
        KeyHistory(
            "contacts_changelog", '{"contact_id":1}', ("ads_audience", "crm_contacts"),
            (KeyChange(1, NOW - timedelta(hours=24), "insert", (), None, "7421905512345"),
             KeyChange(7, NOW - timedelta(hours=18), "update", ("email", "plan"), "7421905512345", "-99120443"),
             KeyChange(24, NOW - timedelta(hours=1), "delete", (), "-99120443", None)),
            (Delivery("ads_audience", 1, NOW - timedelta(hours=24), 1), Delivery("ads_audience", 7, NOW - timedelta(hours=18), 7, "422 invalid_email"),
             Delivery("crm_contacts", 2, NOW - timedelta(hours=23), 2), Delivery("crm_contacts", 7, NOW - timedelta(hours=18), 7)),
        ),
    )  # fmt: skip
    given: dict[str, object] = {
        "project": "shop", "target": "prod", "made_at": NOW, "version": "0.1.0", "syncs": syncs(),
        "changelogs": changelogs, "keys": keys, "pictures": {"contacts": PICTURE},
    }  # fmt: skip
    return Report(**{**given, **changed})  # type: ignore[arg-type]


def none() -> Report:
    """A project that has captured something, and pushes nothing yet."""
    return report(syncs=(), keys=(), pictures={})


def one() -> Report:
    """A project that has one sync, and no trouble."""
    made = report(keys=(), pictures={})
    return replace(made, syncs=made.syncs[:1], changelogs=made.changelogs[:1])


def forty() -> Report:
    """Many syncs with long names, some of them in trouble; one key that goes to each of them."""
    kinds, made = syncs(), []
    for n in range(40):
        kind = kinds[n if n < len(kinds) else 0]
        name = f"{kind.name}_of_region_{n:02}" + (
            "_with_consent_for_the_newsletter_and_for_profiling" if n % 9 == 4 else ""
        )
        made.append(replace(kind, name=name, destination=f"warehouse_of_marketing_{n:02}.schema_of_audiences.{name}"))
    contacts = tuple(sync.name for sync in made if sync.changelog == "contacts_changelog")
    history = replace(report().keys[0], syncs=contacts)
    return report(syncs=tuple(made), keys=(history,))
