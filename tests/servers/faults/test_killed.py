"""A push killed at every fault point, into every kind of destination: one clean run later the destination is the model."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.delivery.fault_points import FAULT_POINTS
from tests.support.delivery.scene import FIRST, SECOND, Place, Scene
from tests.support.delivery.victim import KEYS, WAVE_ROWS, WAVES

FULL_LOAD = "full_load.loaded"
NEVER = {True: {"doubt.recorded"}, False: {"claims.settled", "claims.recorded"}}  # by whether the sink is transactional

# Where the sink is what a crash is about; the other points are the engine's, which SQLite stands for in each run.
OF_THE_SINK = {
    "postgres": {"batch.before": "first", "batch.after": "last", "claims.settled": "first"},
    "mysql": {"batch.before": "first", "batch.after": "first", "claims.settled": "first"},
    "http": {"batch.before": "middle", "batch.after": "last", "wave.delivered": "first", "doubt.recorded": "first"},
}


def kills() -> Iterator[Any]:
    """Every fault point of the code; those that repeat, at the first, middle and last wave or batch."""
    for place in ("sqlite", *OF_THE_SINK):
        for point in FAULT_POINTS:
            if point == FULL_LOAD:
                continue
            for which in ("first", "middle", "last") if point.startswith(("wave.", "batch.")) else ("first",):
                for reverts in (False, True):
                    always = place == "sqlite" or (OF_THE_SINK[place].get(point) == which and not reverts)
                    name = f"{place}: {point}, {which}-{'goes back' if reverts else 'goes on'}"
                    yield pytest.param(
                        place, point, which, reverts, id=name, marks=() if always else (pytest.mark.full,)
                    )


def occurrence(point: str, which: str, place: Place) -> int:
    times = (WAVES if place.transactional else len(KEYS)) if point.startswith("batch.") else WAVES
    times -= point == "wave.acknowledged"  # the last wave is recorded with the end of the run
    return {"first": 1, "middle": (times + 1) // 2, "last": times}[which]


def late(point: str) -> tuple[str, int] | None:
    return ("batch.after", 1) if point in ("lease.lost", "doubt.recorded") else None


def follows_a_crash(point: str) -> bool:
    return point in ("claims.settled", "claims.recorded")


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.guarantee("MySQL and MariaDB")
@pytest.mark.parametrize(("place", "point", "which", "reverts"), [*kills()], indirect=["place"])
def test_a_push_killed_there_converges_with_the_next_one(
    scene: Scene, place: Place, point: str, which: str, reverts: bool
) -> None:
    sent_before = len(place.applied())
    if follows_a_crash(point):
        assert scene.push(kill=("batch.after", 1)) == -signal.SIGKILL
    ended = scene.push(kill=(point, occurrence(point, which, place)), late=late(point))
    if point in NEVER[place.transactional]:
        assert (ended, scene.came_by(point)) == (0, 0)
    else:
        assert ended == -signal.SIGKILL
    sent = place.applied()[sent_before:]
    if reverts:
        scene.capture(FIRST)

    assert scene.push() == 0
    assert scene.status in ("succeeded", "idle")
    head = FIRST if reverts else SECOND
    assert place.rows() == head
    assert scene.unbalanced() == []
    sent_again = place.applied()[sent_before + len(sent) :]
    assert all(SECOND.get(key) == value for key, value in sent), "an older value"
    assert all(head.get(key) == value for key, value in sent_again), "an older value"
    times = Counter([*sent, *sent_again])
    assert reverts or {*times} == {(key, SECOND.get(key)) for key in KEYS}, "every change, and no other"
    assert times.total() - len(times) <= (0 if place.transactional else 2 * WAVE_ROWS), "applied more than once"
    if reverts and place.transactional:
        assert {key for key, _ in sent_again} == {key for key, _ in sent}, "what was never applied needs no going back"


@pytest.mark.guarantee("Refusals and outages")
@pytest.mark.parametrize("place", ["files"], indirect=True)
@pytest.mark.parametrize("point", ["batch.after", FULL_LOAD, "wave.delivered", "sink.finished"])
def test_a_full_load_killed_there_shows_the_old_rows_or_the_new_ones_and_converges_with_the_next_push(
    scene: Scene, place: Place, point: str
) -> None:
    before = place.rows()
    assert scene.push(kill=(point, 1), full_load=True) == -signal.SIGKILL
    assert place.rows() == (before if point in ("batch.after", FULL_LOAD) else SECOND)
    scene.capture(FIRST)
    assert scene.push(full_load=True) == 0
    assert place.rows() == FIRST
    assert scene.unbalanced() == []


@pytest.mark.guarantee("Crashes and claims")
def test_a_wave_that_the_destination_has_on_record_is_not_sent_again(scene: Scene, place: Place) -> None:
    assert scene.push(kill=("wave.delivered", 1)) == -signal.SIGKILL
    assert scene.push() == 0
    assert scene.came_by("wave.delivered") == (WAVES - 1 if place.transactional else WAVES)
