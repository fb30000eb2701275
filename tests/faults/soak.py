"""`make soak`: random changes, kills and troubles of random destinations, for as long as is asked; a seed repeats it."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dbt_reverse_etl.delivery.fault_points import FAULT_POINTS
from tests.faults.scene import HttpPlace, MysqlPlace, Place, PostgresPlace, Scene, SqlitePlace
from tests.faults.victim import KEYS
from tests.unit.http_server import Reply, http_server

PLACES = ("sqlite", "postgres", "mysql", "http")


def main() -> None:
    """Play histories until the time is up; stop at the first that ends wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    print(f"{campaign(options.seed, options.seconds)} histories ended well")


def campaign(seed: int, seconds: float) -> int:
    """Number of histories that were played; each has a seed of its own, which is named if it ends wrong."""
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        wrong = history(seed + number)
        assert not wrong, f"seed {seed + number}: {wrong}"
        number += 1
    return number


class Trouble:
    """Answers of an API, by key and attempt: a history that is played again meets the same ones."""

    def __init__(self, seed: int) -> None:
        self.is_over = False
        self._seed, self._asked = seed, Counter[str]()

    def __call__(self, key: str) -> Reply:
        self._asked[key] += 1
        share = 1 if self.is_over else random.Random(f"{self._seed} {key} {self._asked[key]}").random()
        refused, not_now, lost = Reply(422), Reply(503), Reply(204, reset="after")
        return refused if share < 0.1 else not_now if share < 0.2 else lost if share < 0.3 else Reply(204)


def history(seed: int) -> list[str]:
    """Captures and pushes that are killed or meet trouble, then one without any; what is wrong after it."""
    rnd, trouble = random.Random(seed), Trouble(seed)
    with tempfile.TemporaryDirectory() as folder, _place(rnd.choice(PLACES), Path(folder), trouble) as place:
        scene, found, image = Scene(place, Path(folder)), list[str](), dict[str, int]()
        for _ in range(rnd.randint(1, 6)):
            image = {key: rnd.randrange(100) for key in KEYS if rnd.random() < 0.7}
            scene.capture(image)
            if rnd.random() < 0.8:
                slow = {"late": ("batch.after", 1)} if rnd.random() < 0.1 else {}
                kill = (rnd.choice(FAULT_POINTS), rnd.randint(1, 4)) if rnd.random() < 0.8 else None
                found += pushed(scene, place, image, kill=kill, **slow)[1]
        trouble.is_over = True
        ended, wrong = pushed(scene, place, image, retry=True)
        found += wrong
        status = scene.status if ended == 0 else f"ended with {ended}"
        found += [] if status in ("succeeded", "idle") else [f"the last push: {status}"]
        last = {key: value for key, value in dict(place.applied()).items() if value is not None}
        for held in (place.rows(), last):
            found += [] if held == image else [f"{place.sink.type} holds {held}, not {image}"]
        return found + [f"{fact} does not balance" for fact in scene.unbalanced()]


def pushed(scene: Scene, place: Place, image: Mapping[str, int], **orders: Any) -> tuple[int | None, list[str]]:
    """How a push ended; what it applied that is not of the newest image, and what it repeated where that is ruled out."""
    before = place.applied()
    ended = scene.push(**orders)
    applied, held = place.applied()[len(before) :], dict(before)
    found = [f"{key} went back to {value}" for key, value in applied if image.get(key) != value]
    for key, value in applied if place.transactional else ():
        found += [f"{key} was applied again: {value}"] if held.get(key) == value else []
        held[key] = value
    return ended, found


@contextmanager
def _place(name: str, folder: Path, trouble: Trouble) -> Iterator[Place]:
    if name == "http":
        with http_server() as server:
            yield HttpPlace(server, trouble)
    elif name == "sqlite":
        yield SqlitePlace(folder)
    else:
        yield PostgresPlace() if name == "postgres" else MysqlPlace()


if __name__ == "__main__":
    main()
