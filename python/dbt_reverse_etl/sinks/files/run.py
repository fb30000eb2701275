"""What one run of a sync writes: parts, and the manifest as long as the fence in it is that of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone

from dbt_reverse_etl.base.workers import at_once
from dbt_reverse_etl.sinks.base import Batch, SinkTask
from dbt_reverse_etl.sinks.files.manifest import MANIFEST, Manifest, ManifestFile, Part
from dbt_reverse_etl.sinks.files.parts import is_part
from dbt_reverse_etl.sinks.files.store import AT_ONCE, ReplacedError, Store, UnusableError

OTHER_SYNC = (
    f"a {MANIFEST} of another sync, or of this one with another name, path or endpoint",
    "an object of this sync alone",
    "set renamed_from if it had another name, or name another object; "
    f"if nobody pushes there any more, remove {MANIFEST}: the next run deletes its parts",
)

Piece = tuple[Part, bytes]


class FilesRun:
    """One run. Every method raises UnusableError, OSError (ReplacedError: a change may be in place)."""

    def __init__(self, store: Store, task: SinkTask) -> None:
        self.task = task
        self._store, self._file = store, ManifestFile(store)
        self._loaded: list[Part] = []  # by a full load; the manifest does not know them before the swap
        self._left_out = 0  # rows of a full load that are in no part

    def begin(self) -> None:
        """Take the fence and remove what a crash left."""
        self._store.make()
        self._file.change(lambda before: _taken(before, self.task))
        self._file.sweep(is_part)

    def change(self, by: Callable[[Manifest], Manifest]) -> Manifest:
        """Replace the manifest, if the run still holds the fence."""
        return self._file.change(lambda manifest: by(_held(manifest, self.task)))

    def record(self, batch: Batch, pieces: Sequence[Piece], refused: int) -> None:
        """Write the parts of a batch and put them on record; a repeat of a batch adds none."""
        new = [] if self._is_repeat(pieces) else pieces
        at_once(AT_ONCE, self._write, new, "write")
        parts, left_out = [part for part, _ in new], batch.left_out + refused
        if self.task.full_load:
            self.change(lambda manifest: manifest)
            self._loaded += parts
            self._left_out += left_out
        else:
            self.change(lambda manifest: manifest.with_parts(parts, batch.claim, last=batch.last, left_out=left_out))

    def swap(self, claim: str) -> None:
        """List what was loaded in place of everything else: one replacement of the manifest."""
        self.change(lambda one: one.swapped(self._loaded, claim, self._left_out, datetime.now(timezone.utc)))

    def finish(self, claim: str, keep: timedelta | None, *, complete: bool) -> None:
        """List everything that was delivered, unlist what is too old, and forget all claims but this one."""
        self.change(lambda one: one.finished(claim, keep, datetime.now(timezone.utc), self.task, complete=complete))

    def _is_repeat(self, pieces: Sequence[Piece]) -> bool:
        if not pieces:
            return False
        part = pieces[0][0]
        if self.task.full_load:
            return any(one.events == part.events for one in self._loaded)
        manifest = self._file.read()
        return manifest is not None and manifest.repeats(part.claim, part.events)

    def _write(self, piece: Piece) -> None:
        part, content = piece
        try:
            self._store.replace(part.name, content)
        except ReplacedError as error:  # not listed yet, so nothing was delivered
            raise OSError(*error.args) from None


def _taken(before: Manifest | None, task: SinkTask) -> Manifest:
    if before is None:
        # What was adopted is in no part.
        whole_from = None if task.adopted else 0
        before = Manifest(sync_id=task.sync_id, object=task.object, key=[], fence=task.fence, whole_from=whole_from)
    if before.sync_id != task.sync_id:
        raise UnusableError(*OTHER_SYNC)
    if before.fence > task.fence:
        raise _overtaken("a newer run holds this sync")
    taken = before.model_copy(update={"fence": task.fence, "key": list(task.key)})
    # What an operation states, such as adopt, ends a resend that was cut off.
    kept = None if task.first else before.resent_from
    return taken.model_copy(update={"resent_from": task.fence if task.sends_all else kept})


def _held(manifest: Manifest | None, task: SinkTask) -> Manifest:
    if manifest is None or manifest.sync_id != task.sync_id:
        raise _overtaken(f"{MANIFEST} was removed or replaced during the run")
    if manifest.fence != task.fence:
        raise _overtaken("a newer run holds this sync")
    return manifest


def _overtaken(found: str) -> UnusableError:
    return UnusableError(found, "an object of this run alone", "let the other run end, then push")
