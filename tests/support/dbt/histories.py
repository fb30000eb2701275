"""Random histories of a changelog, and what its views must show of them, in plain Python."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

Key = tuple[int, str]
Values = tuple[str | None, int | None]
Image = dict[Key, Values]

SNAPSHOTS = 7
PARTS = ["a", "b", "c", "A", "", "a'b`\\"]
LABELS = [None, "day 1", "day 1", "day 2", None, "day 4", "day 4", "day 5"]
COLUMNS = ["case_id", "part", "plan-tier", "order"]

HEADER_TYPE = (
    "struct<changelog_uuid string, capture_uuid string, kind string, label string, open_label string, savepoint string, "
    "frozen boolean, invocation_id string, target_name string, package_version string, base bigint, live_rows bigint, "
    "since_base bigint, inserts bigint, updates bigint, deletes bigint, since_reconcile bigint, drift bigint, "
    "positions map<string, string>, quarantined array<struct<key string, reason string, row_count bigint>>, "
    "key_columns array<string>, columns array<struct<name string, type string>>>"
)
TABLE_TYPE = (
    f"_change string, _snapshot_id bigint, _captured_at timestamp, _row_hash bigint, _header {HEADER_TYPE}, "
    "case_id int, part string, `plan-tier` string, `order` int"
)


def captured_at(snapshot: int) -> datetime:
    """The time of a snapshot; the distances differ."""
    return datetime(2024, 1, 1) + timedelta(hours=snapshot * snapshot)


def row_hash(values: Values) -> int:
    """A bigint that differs where the values differ."""
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "big", signed=True)


@dataclass(frozen=True)
class History:
    """The images of one case after each snapshot (the first entry: before any), and where full images stand.

    Attributes:
        images: SNAPSHOTS + 1 images.
        checkpoints: snapshots with checkpoint rows.
        pruned_to: a checkpoint before which everything was removed; 0: nothing was.
        keeps_changes: pruning left the change rows of that checkpoint's own snapshot.
    """

    images: list[Image]
    checkpoints: frozenset[int]
    pruned_to: int
    keeps_changes: bool

    @staticmethod
    def random(case: int, rng: random.Random) -> History:
        """Few keys and few values, so that deletes, re-inserts and values that come back are frequent."""
        images: list[Image] = [{}]
        for _ in range(SNAPSHOTS):
            image = dict(images[-1])
            for part in rng.sample(PARTS, rng.randrange(len(PARTS))):
                if rng.random() < 0.4:
                    image.pop((case, part), None)
                else:
                    image[case, part] = (rng.choice([None, "pro", ""]), rng.choice([None, 0]))
            images.append(image)
        checkpoints = frozenset(snapshot for snapshot in range(2, SNAPSHOTS + 1) if rng.random() < 0.3)
        pruned_to = rng.choice([0, *checkpoints])
        return History(images, checkpoints, pruned_to, rng.random() < 0.5)

    def rows(self) -> Iterator[tuple[object, ...]]:
        """The rows of the changelog."""
        for snapshot in range(1, SNAPSHOTS + 1):
            old, new = self.images[snapshot - 1], self.images[snapshot]
            if snapshot > self.pruned_to or (snapshot == self.pruned_to and self.keeps_changes):
                for key in old.keys() | new.keys():
                    yield from _change_rows(snapshot, key, old.get(key), new.get(key))
            if snapshot in self.checkpoints and snapshot >= self.pruned_to:
                for key, values in new.items():
                    yield _row("checkpoint", snapshot, key, values)

    def has_image(self, snapshot: int) -> bool:
        """Whether pruning left the image of a snapshot."""
        return snapshot >= self.pruned_to

    def has_net_changes(self, start: int, end: int) -> bool:
        """Whether pruning left both ends; before the first snapshot there is nothing that could be lost."""
        return self.has_image(end) and (start == 0 or self.has_image(start))

    def net_changes(self, start: int, end: int) -> Iterator[tuple[object, ...]]:
        """One row for each key whose images at the two ends differ."""
        old, new = self.images[start], self.images[end]
        for key in old.keys() | new.keys():
            if key not in old:
                yield ("insert", *key, *new[key])
            elif key not in new:
                yield ("delete", *key, *old[key])
            elif old[key] != new[key]:
                yield ("update", *key, *new[key])

    def scd2(self, tracked: Callable[[Values], object] = lambda values: values) -> Iterator[tuple[object, ...]]:
        """Columns, valid_from_snapshot, valid_to_snapshot, valid_from, valid_to, is_current; walked image by image."""
        first = max(self.pruned_to, 1)
        for key in set().union(*self.images):
            start: int | None = None
            values: Values | None = None
            for snapshot in range(first, SNAPSHOTS + 1):
                now = self.images[snapshot].get(key)
                if now is not None and values is not None and tracked(now) == tracked(values):
                    values = now
                if now == values:
                    continue
                if start is not None and values is not None:
                    yield (*key, *values, start, snapshot, captured_at(start), captured_at(snapshot), False)
                start, values = snapshot, now
            if start is not None and values is not None:
                yield (*key, *values, start, None, captured_at(start), None, True)

    def scd3(self) -> Iterator[tuple[object, ...]]:
        """Columns of the head image, then the value before and the time of the last change of the two values; None where pruning left neither."""
        for key, values in self.images[-1].items():
            row: list[object] = [*key, *values]
            for column in range(len(values)):
                snapshot = SNAPSHOTS
                while snapshot > max(self.pruned_to, 1):
                    before = self.images[snapshot - 1].get(key)
                    if before is None or before[column] != values[column]:
                        break
                    snapshot -= 1
                before = self.images[snapshot - 1].get(key) if snapshot > max(self.pruned_to, 1) else None
                is_known = snapshot > self.pruned_to or (self.keeps_changes and key not in self.images[snapshot - 1])
                row += [before and before[column], captured_at(snapshot) if is_known else None]
            yield tuple(row)

    def side_by_side(self, start: int, end: int) -> Iterator[tuple[object, ...]]:
        """Operation, snapshot, time, image before and image after, for each change of each snapshot in the range."""
        for snapshot in range(start + 1, end + 1):
            old, new = self.images[snapshot - 1], self.images[snapshot]
            for key in old.keys() | new.keys():
                before, after = old.get(key), new.get(key)
                if before != after:
                    change = "insert" if before is None else "delete" if after is None else "update"
                    yield (
                        change,
                        snapshot,
                        captured_at(snapshot),
                        before and (*key, *before),
                        after and (*key, *after),
                    )

    def as_of_label(self, labels: Sequence[str], label: str) -> Image:
        """Per key, what the last snapshot made of it among those whose label is not greater."""
        image: Image = {}
        for snapshot in range(1, SNAPSHOTS + 1):
            old, new = self.images[snapshot - 1], self.images[snapshot]
            for key in old.keys() | new.keys():
                if labels[snapshot] <= label and old.get(key) != new.get(key):
                    image.pop(key, None)
                    if key in new:
                        image[key] = new[key]
        return image

    def has_label(self, labels: Sequence[str], label: str) -> bool:
        """Whether pruning left the image of a label: what it removed must all belong to it."""
        return not self.pruned_to or all(labels[snapshot] <= label for snapshot in range(1, self.pruned_to + 1))


def carried(labels: Sequence[str | None]) -> list[str]:
    """The label of each snapshot, where one without carries the greatest before it; the first entry: before any."""
    found: list[str] = []
    for label in labels:
        found.append(max(found, default="") if label is None else label)
    return found


def _change_rows(snapshot: int, key: Key, old: Values | None, new: Values | None) -> Iterator[tuple[object, ...]]:
    if old is None and new is not None:
        yield _row("insert", snapshot, key, new)
    elif old is not None and new is None:
        yield _row("delete", snapshot, key, old)
    elif old is not None and new is not None and old != new:
        yield _row("update_preimage", snapshot, key, old)
        yield _row("update_postimage", snapshot, key, new)


def _row(change: str, snapshot: int, key: Key, values: Values) -> tuple[object, ...]:
    return (change, snapshot, captured_at(snapshot), row_hash(values), None, *key, *values)


def header_row(snapshot: int, labels: Sequence[str | None] = LABELS) -> tuple[object, ...]:
    """The header of one snapshot; a field says the snapshot that it belongs to."""
    header = {
        "changelog_uuid": "changelog",
        "capture_uuid": f"capture {snapshot}",
        "kind": "capture",
        "label": labels[snapshot],
        "invocation_id": f"invocation {snapshot}",
        "target_name": "dev",
        "package_version": "0.1.0",
        "base": 1 if snapshot < 4 else 4,
        "live_rows": snapshot * 100,
        "since_base": 5,
        "inserts": snapshot * 10,
        "updates": snapshot * 20,
        "deletes": snapshot * 30,
        "positions": {"source": str(snapshot)},
        "quarantined": [('{"id":1}', "duplicate_key", 2)] if snapshot == 3 else [],
        "key_columns": ["case_id", "part"],
        "columns": [("case_id", "int")],
    }
    return ("snapshot", snapshot, captured_at(snapshot), None, header, None, None, None, None)
