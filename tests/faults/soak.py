"""`make soak`: random changes and random kills into random destinations, for as long as is asked; a seed repeats it."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dbt_reverse_etl.delivery.fault_points import FAULT_POINTS
from tests.faults.scene import HttpPlace, MysqlPlace, Place, PostgresPlace, Scene, SqlitePlace
from tests.faults.victim import KEYS
from tests.unit.http_server import http_server

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


def history(seed: int) -> list[str]:
    """Captures and killed pushes, then one that lives; what is wrong after it."""
    rnd = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, _place(rnd.choice(PLACES), Path(folder)) as place:
        scene = Scene(place, Path(folder))
        image: dict[str, int] = {}
        for _ in range(rnd.randint(1, 6)):
            image = {key: rnd.randrange(100) for key in KEYS if rnd.random() < 0.7}
            scene.capture(image)
            if rnd.random() < 0.8:
                slow = {"late": ("batch.after", 1)} if rnd.random() < 0.1 else {}
                scene.push(kill=(rnd.choice(FAULT_POINTS), rnd.randint(1, 4)), **slow)
        ended = scene.push()
        found = [] if ended == 0 else [f"the last push ended with {ended}"]
        found += [] if place.rows() == image else [f"{place.sink.type} holds {place.rows()}, not {image}"]
        return found + [f"{fact} does not balance" for fact in scene.unbalanced()]


@contextmanager
def _place(name: str, folder: Path) -> Iterator[Place]:
    if name == "http":
        with http_server() as server:
            yield HttpPlace(server)
    elif name == "sqlite":
        yield SqlitePlace(folder)
    else:
        yield PostgresPlace() if name == "postgres" else MysqlPlace()


if __name__ == "__main__":
    main()
