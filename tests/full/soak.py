"""`make soak`: random changes, kills and troubles of random destinations, for as long as is asked; a seed repeats it."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.delivery.fault_points import FAULT_POINTS
from tests.support.delivery.scene import HttpPlace, MysqlPlace, Place, PostgresPlace, Scene, SqlitePlace
from tests.support.delivery.troubles import ApiTrouble, DatabaseTrouble, ServerTrouble, Trouble
from tests.support.delivery.victim import KEYS
from tests.support.servers.http import http_server
from tests.support.servers.proxy import proxy_before

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
    """Captures and pushes that are killed or meet trouble, then one without any; what is wrong after it."""
    rnd = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, _place(rnd.choice(PLACES), Path(folder), seed) as (place, trouble):
        scene, found, image = Scene(place, Path(folder)), list[str](), dict[str, int]()
        once = place.transactional and not trouble.refuses
        for _ in range(rnd.randint(1, 6)):
            if not image or rnd.random() < 0.6:
                image = {key: rnd.randrange(100) for key in KEYS if rnd.random() < 0.7}
                scene.capture(image)
            if rnd.random() < 0.8:
                slow = {"late": ("batch.after", 1)} if rnd.random() < 0.1 else {}
                kill = (rnd.choice(FAULT_POINTS), rnd.randint(1, 4)) if rnd.random() < 0.8 else None
                with trouble.during_a_push():
                    found += pushed(scene, place, image, once=once, kill=kill, **slow)[1]
        trouble.end()
        ended, wrong = pushed(scene, place, image, once=once, retry=True)
        found += wrong
        status = scene.status if ended == 0 else f"ended with {ended}"
        found += [] if status in ("succeeded", "idle") else [f"the last push: {status}"]
        last = {key: value for key, value in dict(place.applied()).items() if value is not None}
        for held in (place.rows(), last):
            found += [] if held == image else [f"{place.sink.type} holds {held}, not {image}"]
        return found + [f"{fact} does not balance" for fact in scene.unbalanced()]


def pushed(
    scene: Scene, place: Place, image: Mapping[str, int], *, once: bool, **orders: Any
) -> tuple[int | None, list[str]]:
    """How a push ended; what it applied that is not of the newest image, and what it repeated where that is ruled out: `once`."""
    before = place.applied()
    ended = scene.push(**orders)
    applied, held = place.applied()[len(before) :], dict(before)
    found = [f"{key} went back to {value}" for key, value in applied if image.get(key) != value]
    for key, value in applied if once else ():
        found += [f"{key} was applied again: {value}"] if held.get(key) == value else []
        held[key] = value
    return ended, found


@contextmanager
def _place(name: str, folder: Path, seed: int) -> Iterator[tuple[Place, Trouble]]:
    if name == "http":
        answers = ApiTrouble(seed)
        with http_server() as server:
            yield HttpPlace(server, answers), answers
    elif name == "sqlite":
        place = SqlitePlace(folder, timeout=0.2)
        yield place, DatabaseTrouble(place, seed)
    else:
        server_place = PostgresPlace() if name == "postgres" else MysqlPlace()
        with proxy_before(server_place.server) as proxy:
            yield server_place, ServerTrouble(server_place, proxy, seed)


if __name__ == "__main__":
    main()
