"""The manifest of an object of the files sink: which parts exist, which claims are closed, who may write.

Readers look at `parts` only: each part is listed once, in the order in which a consumer applies them, and is complete
and durable before it is listed. `pending` holds the parts of claims that are not closed: a crash in the middle of a
claim leaves them there, and the next run drops them or lists them, as its ledger says, before it sends anything.
One atomic replacement of the one file changes all of it, so a listing, its claim's record and the fence cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from dbt_reverse_etl.sinks.files_store import TEMPORARY, Store

MANIFEST = "manifest.json"


class Part(BaseModel):
    """One file. `events` is a digest of its event ids in order; `operations` counts its rows by operation; `written` says when."""

    model_config = ConfigDict(frozen=True)

    name: str
    rows: int
    bytes: int
    sha256: str
    fence: int
    claim: str
    events: str
    operations: dict[str, int]
    written: datetime | None = None


class Claim(BaseModel):
    """What became of a claim."""

    model_config = ConfigDict(frozen=True)

    closed: bool = False
    left_out: int = 0


class Manifest(BaseModel):
    """The content of `manifest.json`."""

    model_config = ConfigDict(frozen=True)

    version: int = 1
    sync_id: str
    object: str
    key: list[str]
    fence: int
    claims: dict[str, Claim] = Field(default_factory=dict)
    parts: list[Part] = Field(default_factory=list)
    pending: list[Part] = Field(default_factory=list)

    def settled(self, open_claims: set[str]) -> Manifest:
        """After a crash: what the ledger still holds open and was never closed is dropped; the rest is listed."""
        listed = [part for part in self.pending if part.claim not in open_claims]
        dropped = {part.claim for part in self.pending} & open_claims
        claims = {name: claim for name, claim in self.claims.items() if name in open_claims - dropped}
        return self.model_copy(update={"claims": claims, "parts": self.parts + listed, "pending": []})

    def with_part(self, part: Part | None, claim: str, *, last: bool, left_out: int) -> Manifest:
        """A batch was written; the last one of a claim lists all parts of the claim."""
        before = self.claims.get(claim, Claim())
        record = Claim(closed=last or before.closed, left_out=left_out + before.left_out)
        added = self.model_copy(
            update={"claims": {**self.claims, claim: record}, "pending": [*self.pending, *([part] if part else [])]}
        )
        # A part of an older run that is still here was acknowledged, else `settled` would have dropped it.
        return added._listing(lambda one: one.fence < self.fence or (record.closed and one.claim == claim))

    def stopped(self) -> Manifest:
        """The run sends no more: what it delivered is listed, whether or not its claims were closed."""
        return self._listing(lambda part: part.fence == self.fence)

    def _listing(self, ready: Callable[[Part], bool]) -> Manifest:
        listed = [part for part in self.pending if ready(part)]
        waiting = [part for part in self.pending if not ready(part)]
        return self.model_copy(update={"parts": self.parts + listed, "pending": waiting})

    def finished(self, kept_from: datetime | None = None) -> Manifest:
        """Every claim is acknowledged: no record of them is needed. Parts written before `kept_from` are listed no more."""
        listed = self._listing(lambda _part: True)
        kept = [part for part in listed.parts if not _is_before(part.written, kept_from)]
        return listed.model_copy(update={"claims": {}, "parts": kept})

    def repeats(self, claim: str, events: str) -> bool:
        """Whether this batch is the one that the claim got last: a repeat, which adds nothing."""
        parts = (*reversed(self.pending), *reversed(self.parts))
        return next((part.events == events for part in parts if part.claim == claim), False)


def _is_before(written: datetime | None, kept_from: datetime | None) -> bool:
    return written is not None and kept_from is not None and written < kept_from


class ManifestFile:
    """The manifest of one object."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> Manifest | None:
        """The manifest as a reader sees it, without the lock; None if there is none.

        Raises:
            ValueError: it is damaged.
        """
        text = self._store.read(MANIFEST)
        return None if text is None else Manifest.model_validate(orjson.loads(text))

    def change(self, by: Callable[[Manifest | None], Manifest]) -> Manifest:
        """Read, change and replace the manifest as one step.

        Raises:
            ReplacedError: the new one may be in place, or may not survive a power failure.
            OSError: nothing has changed.
        """
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
            kept = {part.name for part in (*manifest.parts, *manifest.pending)} if manifest else set()
            for name in self._store.names():
                if name.startswith(TEMPORARY) or (is_part(name) and name not in kept):
                    self._store.remove(name)
