"""What a user reads about a push while it is under way; `figures`, for machines."""

from __future__ import annotations

import math
from typing import Any

from dbt_reverse_etl.delivery.progress import Number
from dbt_reverse_etl.terminal.progress import Look, Note


def line(look: Look) -> str:
    """`crm_contacts -> crm.contacts: 120,000 of 500,000 rows (24%), 12,000 rows/s, 32 s left, wave 3`."""
    return f"{look.bound.sync} -> {look.bound.destination}: {', '.join(parts(look))}"


def parts(look: Look) -> list[str]:
    """What is known of a push that is under way, the most important first."""
    if look.planned is None:
        return [f"planning for {_duration(look.seconds)}"]
    share = f" ({look.done * 100 // look.planned}%)" if look.planned else ""
    found = [f"{look.done:,} of {look.planned:,} rows{share}"]
    if look.pause:
        found.append(f"paused for {_duration(math.ceil(look.pause))} as asked")
    if look.rate and not look.pause:
        found.append(f"{look.rate:,.0f} rows/s")
    if look.left and not look.pause:
        found.append(f"{_duration(look.left)} left")
    if look.wave:
        found.append(f"wave {look.wave}")
    if look.repeated:
        found.append(f"{look.repeated:,} sent again")
    return found


def figures(look: Look) -> dict[str, Any]:
    """The same for a machine."""
    return {
        "destination": look.bound.destination,
        "planned": look.planned,
        "done": look.done,
        "wave": look.wave,
        "rows_per_second": round(look.rate, 1),
        "seconds_left": None if look.left is None else round(look.left, 1),
        "sent_again": look.repeated,
        "pause": round(look.pause, 1),
    }


def step(note: Note) -> str:
    """The line of a step, for those who want to see each."""
    text = {
        Number.FENCE: "holds the sync as run {0:.0f}",
        Number.PLANNED: "rows planned: {0:,.0f}",
        Number.WAVE: f"wave {note.look.wave}, rows: {{0:,.0f}}",
        Number.REPEATED: "rows sent again: {0:,.0f}",
        Number.PAUSED: "the destination asks for a pause of {0:.1f} s",
    }[note.number]
    return f"{note.look.bound.sync}: {text.format(note.value)}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
