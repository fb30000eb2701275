"""The named places between two steps of a run at which a test may stop or kill it."""

from __future__ import annotations

FAULT_POINTS = (
    "state.read",
    "run.planned",
    "run.started",
    "sink.opened",
    "claims.settled",
    "claims.recorded",
    "wave.read",
    "batch.before",
    "batch.after",
    "full_load.loaded",
    "wave.delivered",
    "wave.acknowledged",
    "waves.done",
    "sink.finished",
    "run.finished",
    "lease.lost",
    "doubt.recorded",
)
