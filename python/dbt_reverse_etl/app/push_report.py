"""What a push, or a plan, says of one sync."""

from __future__ import annotations

from dataclasses import dataclass

from dbt_reverse_etl.base.errors import NEXT, ExitCode
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS, Counts, PerOperation
from dbt_reverse_etl.delivery.health import NEVER_PUSHED, Standing, explained

OVERTAKEN = "overtaken"
_LONGEST = 1000  # characters


@dataclass(frozen=True)
class Report:
    """What became of one sync in this push.

    Attributes:
        status: a `Status`, or `planned`, `blocked`, `busy`, `other_changelog`, `renamed`, `overtaken`.
        planned: rows by operation that were pending; of a plan, those that a push would attempt.
        counts: what became of them; of a plan, only which wait.
        position, head: snapshots; equal after a push that came to its end.
        sample: operation and key of some pending rows, of a plan only.
        standing: how the sync stands now, and what is undelivered.
        sync_id, relation: of the sync, and of its changelog.
        fence: of the run that this push began; of the newest one that it knew, if it began none.
        is_plan: nothing was to be sent.
    """

    sync: str
    destination: str
    status: str
    exit_code: ExitCode = ExitCode.OK
    counts: Counts = NO_COUNTS
    planned: PerOperation = NO_ROWS
    head: int = 0
    position: int = 0
    seconds: float = 0.0
    message: str = ""
    sample: tuple[tuple[str, str], ...] = ()
    standing: Standing = NEVER_PUSHED
    sync_id: str = ""
    relation: str = ""
    fence: int = 0
    is_plan: bool = False

    @property
    def why(self) -> str:
        """What there is to say of how it ended: no row value, no secret, and not too long for a message."""
        found = _fitting(redact(self.message or self.standing.reason))
        return _cut("; ".join(filter(None, (found, *map(redact, explained(self.standing))))), _LONGEST)


def _fitting(text: str) -> str:
    """A list of failed tests has no bound: the next step stays whole, if it fits at all."""
    found, mark, next_step = text.rpartition(NEXT)
    room = _LONGEST - 1 - len(mark + next_step)  # with the sign that more follows
    return f"{_cut(found, room)}{mark}{next_step}" if mark and room > 0 else text


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
