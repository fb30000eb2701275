"""What a destination's record of the newest run says of the ledger: one of both was put back."""

from __future__ import annotations

from dbt_reverse_etl.sinks.base import SinkTask


class _OtherFence(Exception):
    """The record of a destination tells of another run than the ledger: that of `fence`."""

    def __init__(self, fence: int) -> None:
        super().__init__(f"fence {fence}")
        self.fence = fence


class NewerFence(_OtherFence):
    """Of one that is newer than every run in the ledger."""


class OlderFence(_OtherFence):
    """Of one before a run that has written there since: it was put back from a backup."""


def refuse_older(stored: int, task: SinkTask) -> None:
    """Raise OlderFence where the record of a destination lacks a run that has written there."""
    if task.wrote and stored < task.fence:
        raise OlderFence(stored)


def refuse_newer(stored: int | None, task: SinkTask) -> None:
    """Raise NewerFence where the record of a destination holds a fence that the ledger does not know."""
    if stored is not None and stored > task.fence:
        raise NewerFence(stored)
