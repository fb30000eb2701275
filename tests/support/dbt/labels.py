"""What a changelog with business labels must show, rollbacks and prunes included, in plain Python from its documentation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.dbt.operations import SETTINGS

Image = dict[int, str]
LABELS = ["day 1", "day 2", "day 3", "day 4"]
BEFORE, AFTER = "day 0", "day 9"
# A value begins with its label.
LABEL = "substring(v, 1, 5)"
CAPTURE = {**SETTINGS, "label": {"by": LABEL, "grace": None, "at": None, "late": "fail", "known_to": None}}


@dataclass
class Snapshot:
    """One snapshot: the image after it, and what was known then.

    Attributes:
        label: its own; None: it carries the greatest before it.
        undone: snapshots that count for no label, as of this one.
        opened: the greatest label that was captured and not undone.
    """

    image: Image
    label: str | None = None
    undone: frozenset[int] = frozenset()
    opened: str | None = None
    kind: str = "capture"
    full: bool = False


@dataclass
class Labelled:
    """The history of a changelog; its first entry stands before any snapshot. Below `kept_from` everything was pruned, but for savepoints."""

    snapshots: list[Snapshot] = field(default_factory=lambda: [Snapshot({})])
    kept_from: int = 1
    reopened: list[tuple[str, str]] = field(default_factory=list)
    frozen: bool = False

    @property
    def head(self) -> Snapshot:
        return self.snapshots[-1]

    @property
    def last(self) -> int:
        return len(self.snapshots) - 1

    def add(self, image: Image, label: str | None = None, kind: str = "capture", *, full: bool = False) -> None:
        """A capture, or an operation that changes no row."""
        head = self.head
        opened = max(filter(None, (head.opened, label)), default=None)
        self.snapshots.append(Snapshot(image, label, head.undone, opened, kind, full or self.last == 0))

    def may_change(self, label: str) -> bool:
        """Whether a row of the label may be captured."""
        opened = self.head.opened or ""
        return label >= opened or any(first <= label <= last for first, last in self.reopened)

    def capture(self, image: Image) -> None:
        """A run of a model whose values begin with their labels: one snapshot for each, deletes in that of the greatest."""
        before = self.head.image
        rows = {key: value for key, value in image.items() if before.get(key) != value}
        gone = before.keys() - image.keys()
        labels = sorted({value[:5] for value in rows.values()})
        greatest = max([self.head.opened or "", *labels])
        for label in labels:
            now = {**self.head.image, **{key: value for key, value in rows.items() if value[:5] == label}}
            last = label == greatest
            self.add({key: now[key] for key in now if not last or key not in gone}, label)
        if gone and greatest not in labels:
            self.add(image, greatest or None)
        if rows or gone:
            self.reopened = []

    def roll_back(self, to: int) -> None:
        """To a snapshot: everything after it is undone, and what was undone then is undone again."""
        then = self.snapshots[to]
        self._restart(then.image, then.undone | {*range(to + 1, self.last + 1)}, then.opened)

    def roll_back_to_label(self, label: str) -> None:
        """To a label as corrected: what counts for greater labels is undone."""
        greater = {number for number, known in self.carried().items() if known > label}
        self._restart(self.as_of(label), self.head.undone | greater, label)

    def _restart(self, image: Image, undone: frozenset[int], opened: str | None) -> None:
        self.snapshots.append(Snapshot(image, None, undone, opened, "rollback", bool(undone)))
        self.reopened, self.frozen = [], True

    def carried(self) -> dict[int, str]:
        """The label of each snapshot that counts."""
        found: dict[int, str] = {}
        for number in range(1, self.last + 1):
            if number not in self.head.undone:
                found[number] = self.snapshots[number].label or max(found.values(), default="")
        return found

    def as_of(self, label: str, upto: int | None = None) -> Image:
        """Of each key its last change among the snapshots that count and whose label is not greater."""
        image: Image = {}
        for number, known in self.carried().items():
            if known <= label and number <= (upto or self.last):
                before, after = self.snapshots[number - 1].image, self.snapshots[number].image
                for key in before.keys() | after.keys():
                    if before.get(key) != after.get(key):
                        image.pop(key, None)
                        if key in after:
                            image[key] = after[key]
        return image

    def is_clean(self, number: int) -> bool:
        """Whether the full image of a snapshot holds nothing that was undone: what counts before it leads to it."""
        counts = number not in self.head.undone
        return counts and self.as_of(AFTER, number) == self.snapshots[number].image

    def is_kept(self, label: str) -> bool:
        """Whether pruning left the image of a label: what it removed, and the image that stands for it, belong to it all, or nothing of them does."""
        pruned = [known for number, known in self.carried().items() if number <= self.kept_from]
        return self.kept_from == 1 or all(known <= label for known in pruned) or all(known > label for known in pruned)

    def change_rows(self) -> Iterator[tuple[str, int, int, str]]:
        """Change, snapshot, key and value of all that is kept."""
        for number in range(self.kept_from, self.last + 1):
            before, after = self.snapshots[number - 1].image, self.snapshots[number].image
            for key in before.keys() | after.keys():
                if key not in before:
                    yield "insert", number, key, after[key]
                elif key not in after:
                    yield "delete", number, key, before[key]
                elif before[key] != after[key]:
                    yield "update_preimage", number, key, before[key]
                    yield "update_postimage", number, key, after[key]
            if self.snapshots[number].full and number > 1:
                for key, value in after.items():
                    yield "checkpoint", number, key, value


def changed(rng: random.Random, image: Image, keys: int) -> Image:
    """Some keys changed, few values, so that values come back and keys die and rise."""
    image = dict(image)
    for key in rng.sample(range(keys), rng.randint(1, keys // 2)):
        if rng.random() < 0.35:
            image.pop(key, None)
        else:
            image[key] = rng.choice("abc")
    return image


def random_history(rng: random.Random, number: int, keys: int) -> Labelled:
    """Captures with labels, late ones among them, rollbacks to snapshots and labels, rollbacks of rollbacks, and a prune at the end."""
    history = Labelled()
    for _ in range(number):
        luck, known = rng.random(), history.carried()
        labels = sorted({found.label for n, found in enumerate(history.snapshots) if n in known and found.label})
        if history.last and luck < 0.2:
            history.roll_back(rng.randint(1, history.last))
        elif labels and luck < 0.35:
            history.roll_back_to_label(rng.choice(labels))
        else:
            label = rng.choice([None, *LABELS, history.head.opened, history.head.opened])
            history.add(changed(rng, history.head.image, keys), label, full=rng.random() < 0.3)
    full = [n for n in range(2, history.last + 1) if history.snapshots[n].full and history.is_clean(n)]
    history.kept_from = rng.choice([1, 1, *full])
    return history


Step = dict[str, Any]


def random_script(rng: random.Random, history: Labelled, number: int, keys: int) -> list[Step]:
    """Captures over several labels, closed ones reopened in any order, rollbacks, savepoints; the history follows."""
    steps: list[Step] = []
    for _ in range(number):
        steps += [
            {"op": name, "args": arguments}
            if name != "capture"
            else {"op": name, "rows": arguments, "settings": CAPTURE}
            for name, arguments in _random_step(rng, history, keys)
        ]
    return steps


def _random_step(rng: random.Random, history: Labelled, keys: int) -> Iterator[tuple[str, Any]]:
    luck = rng.random()
    labels = sorted({*history.carried().values()} & {*LABELS})
    closed = [label for label in LABELS if label < (history.head.opened or "")]
    if history.frozen and luck < 0.8:
        history.add(history.head.image, kind="release")
        history.frozen = False
        yield "release", {}
    elif luck < 0.15:
        to = rng.randint(history.kept_from, history.last)
        if not (history.frozen and history.snapshots[to].image == history.head.image):
            history.roll_back(to)
            yield "rollback", {"to": to}
    elif luck < 0.3 and (kept := [label for label in labels if history.is_kept(label)]):
        label = rng.choice(kept)
        if not (history.frozen and history.as_of(label) == history.head.image):
            history.roll_back_to_label(label)
            yield "rollback", {"label": label}
    else:
        if closed and luck < 0.8:
            yield "reopen", {"label": _reopened(rng, history, closed)}
        image = _changed_rows(rng, history, keys)
        if not history.frozen:
            history.capture(image)
        yield "capture", f"(select * from values {', '.join(map(str, image.items()))} as t (id, v))"


def _reopened(rng: random.Random, history: Labelled, closed: list[str]) -> Any:
    """One label, a list or a range; the history follows."""
    some = sorted(rng.sample(closed, rng.randint(1, len(closed))))
    shape = rng.choice(["one", "list", "range"])
    added = [(some[0], some[0])] if shape == "one" else [(one, one) for one in some]
    added = [(some[0], some[-1])] if shape == "range" else added
    if new := [one for one in added if one not in history.reopened]:
        history.reopened += new
        history.add(history.head.image, kind="reopen")
    return some[0] if shape == "one" else some if shape == "list" else {"from": some[0], "to": some[-1]}


def _changed_rows(rng: random.Random, history: Labelled, keys: int) -> Image:
    """Some keys with values of labels that may change."""
    image = dict(history.head.image)
    labels = [label for label in LABELS if history.may_change(label)]
    for key in rng.sample(range(keys), rng.randint(1, keys // 2)):
        if rng.random() < 0.3 and len(image) > 1:
            image.pop(key, None)
        else:
            image[key] = f"{rng.choice(labels)} {rng.choice('abc')}"
    return image
