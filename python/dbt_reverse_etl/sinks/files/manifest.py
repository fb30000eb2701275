"""The manifest of an object of the files sink: which parts exist, which claims are closed, who may write.

Readers look at `parts` only: each part is listed once, in the order in which a consumer applies them, and is complete
and durable before it is listed. `pending` holds the parts of claims that are not closed: a crash in the middle of a
claim leaves them there, and the next run drops them or lists them, as its ledger says, before it sends anything.
`superseded` names the parts that a full load, or a resend of an owned object, took the place of, as long as their files stay for readers of the manifest before.
One atomic replacement of the one file changes all of it, so a listing, its claim's record and the fence cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from dbt_reverse_etl.base.workers import at_once
from dbt_reverse_etl.sinks.base import SinkTask
from dbt_reverse_etl.sinks.files.store import AT_ONCE, TEMPORARY, Store, UnusableError

MANIFEST = "manifest.json"
# A resync does not replace it: it may be a file of another tool, as dbt's own.
_DAMAGED = (
    f"a damaged {MANIFEST}",
    "one written by this sink",
    "restore it, or remove it and run dbt run-operation resync for this sync",
)


class Part(BaseModel):
    """One file, by its path below the object."""

    model_config = ConfigDict(frozen=True)

    name: str
    partition: dict[str, str | None] = Field(default_factory=dict)  # values of the fields that are not in the file
    rows: int
    bytes: int
    sha256: str
    fence: int
    claim: str
    events: str  # a digest of the event ids of its batch, in order
    operations: dict[str, int]  # how many rows of each
    written: datetime | None = None
    superseded: datetime | None = None


class Claim(BaseModel):
    """What became of a claim."""

    model_config = ConfigDict(frozen=True)

    closed: bool = False
    left_out: int = 0


class Manifest(BaseModel):
    """The content of `manifest.json`.

    Attributes:
        whole_from: the fence of the newest run that wrote every row, or 0; None: some parts since then are no longer listed, or rows
            were adopted, so that the parts do not make the whole object. Where it changes, a reader reads all again.
        resent_from: the fence of a run that began to write every row; `whole_from` once a run has reached the end and left no row out.
    """

    model_config = ConfigDict(frozen=True)

    version: int = 1
    sync_id: str
    object: str
    key: list[str]
    fence: int
    whole_from: int | None = 0
    resent_from: int | None = None
    claims: dict[str, Claim] = Field(default_factory=dict)
    parts: list[Part] = Field(default_factory=list)
    pending: list[Part] = Field(default_factory=list)
    superseded: list[Part] = Field(default_factory=list)

    def settled(self, open_claims: set[str]) -> Manifest:
        """After a crash: what the ledger still holds open and was never closed is dropped; the rest is listed."""
        listed = [part for part in self.pending if part.claim not in open_claims]
        dropped = {part.claim for part in self.pending} & open_claims
        claims = {name: claim for name, claim in self.claims.items() if name in open_claims - dropped}
        return self.model_copy(update={"claims": claims, "parts": self.parts + listed, "pending": []})

    def with_parts(self, parts: list[Part], claim: str, *, last: bool, left_out: int) -> Manifest:
        """A batch was written; the last one of a claim lists all parts of the claim."""
        before = self.claims.get(claim, Claim())
        record = Claim(closed=last or before.closed, left_out=left_out + before.left_out)
        added = self.model_copy(update={"claims": {**self.claims, claim: record}, "pending": self.pending + parts})
        # A part of an older run that is still here was acknowledged, else `settled` would have dropped it.
        return added._listing(lambda one: one.fence < self.fence or (record.closed and one.claim == claim))

    def stopped(self) -> Manifest:
        """The run sends no more: what it delivered is listed, whether or not its claims were closed."""
        return self._listing(lambda part: part.fence == self.fence)

    def _listing(self, ready: Callable[[Part], bool]) -> Manifest:
        listed = [part for part in self.pending if ready(part)]
        waiting = [part for part in self.pending if not ready(part)]
        return self.model_copy(update={"parts": self.parts + listed, "pending": waiting})

    def swapped(self, parts: list[Part], claim: str, left_out: int, now: datetime) -> Manifest:
        """A full load: its parts take the place of all others. A repeat changes nothing."""
        if claim in self.claims and self.whole_from == self.fence:
            return self
        # Parts that are pending were never shown to a reader.
        old = [part.model_copy(update={"superseded": now}) for part in self.parts]
        return self.model_copy(
            update={
                "claims": {claim: Claim(closed=True, left_out=left_out)},
                "parts": parts,
                "pending": [],
                "superseded": self.superseded + old,
                "whole_from": self.fence,
                "resent_from": None,
            }
        )

    def finished(
        self, claim: str, keep: timedelta | None, now: datetime, task: SinkTask, *, complete: bool
    ) -> Manifest:
        """Parts older than `keep` are listed no more; of superseded ones without it, none is. A run that makes an owned object whole
        takes out all parts before, whatever their age. `claim` is acknowledged later; every other is, and no record of it is needed.
        `complete`: no row is left that was not delivered."""
        listed = self._listing(lambda _part: True)
        # Of a row that was left out, only an older part may have what was delivered.
        is_resent = self.resent_from is not None and complete
        whole_from = self.resent_from if is_resent else self.whole_from
        kept_from = None if keep is None else now - keep
        # An owner's image is no change that a reader applies once: it stays with what follows until another replaces it.
        needed_from = (whole_from or 0) if task.owns_object else None
        is_replacing = is_resent and task.owns_object

        def is_over(part: Part) -> bool:
            is_old = is_replacing or _is_before(part.written, kept_from)
            return is_old and (needed_from is None or part.fence < needed_from)

        kept = [part for part in listed.parts if not is_over(part)]
        over = [part for part in listed.parts if is_over(part)]
        replaced = [part.model_copy(update={"superseded": now}) for part in over] if task.owns_object else []
        superseded = [*self.superseded, *replaced] if kept_from else []
        gone = max((part.fence for part in over), default=-1)
        return listed.model_copy(
            update={
                "claims": {name: one for name, one in self.claims.items() if name == claim},
                "parts": kept,
                "superseded": [part for part in superseded if not _is_before(part.superseded, kept_from)],
                "whole_from": _unless_gone(whole_from, gone),
                "resent_from": None if is_resent else _unless_gone(self.resent_from, gone),
            }
        )

    def repeats(self, claim: str, events: str) -> bool:
        """Whether the claim has got this batch before, perhaps with others since: a repeat, which adds nothing."""
        return any((part.claim, part.events) == (claim, events) for part in (*self.pending, *self.parts))


def _unless_gone(whole_from: int | None, gone: int) -> int | None:
    """None: of what was written since, a part is listed no more."""
    return None if whole_from is None or gone >= whole_from else whole_from


def _is_before(written: datetime | None, kept_from: datetime | None) -> bool:
    return written is not None and kept_from is not None and written < kept_from


class ManifestFile:
    """The manifest of one object."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> Manifest | None:
        """The manifest as a reader sees it, without the lock; None if there is none. Raises UnusableError if it is damaged."""
        text = self._store.read(MANIFEST)
        if text is None:
            return None
        try:
            return Manifest.model_validate(orjson.loads(text))
        except ValueError:  # of JSON, or of the model
            raise UnusableError(*_DAMAGED) from None

    def change(self, by: Callable[[Manifest | None], Manifest]) -> Manifest:
        """Read, change and replace the manifest as one step. Raises ReplacedError, after which the new one may be in place, or may not
        survive a power failure; another OSError: nothing has changed."""
        with self._store.locked():
            before = self.read()
            after = by(before)
            if after != before:
                content: dict[str, Any] = after.model_dump()
                self._store.replace(MANIFEST, orjson.dumps(content, option=orjson.OPT_INDENT_2))
        return after

    def sweep(self, is_part: Callable[[str], bool]) -> None:
        """Remove what a crash left: temporary files, and parts that the manifest does not name."""
        with self._store.locked():
            manifest = self.read()
            named = (*manifest.parts, *manifest.pending, *manifest.superseded) if manifest else ()
            # Of a folder, a file system that ignores case knows one spelling for all; the name of a file is unique by itself.
            kept = {_file_of(part.name) for part in named}
            names = self._store.names()
            at_once(AT_ONCE, self._store.remove, [name for name in names if _is_left(name, kept, is_part)], "remove")


def _is_left(name: str, kept: set[str], is_part: Callable[[str], bool]) -> bool:
    file = _file_of(name)
    return file.startswith(TEMPORARY) or (is_part(name) and file not in kept)


def _file_of(name: str) -> str:
    return name.rpartition("/")[2]
