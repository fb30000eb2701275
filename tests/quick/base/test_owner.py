"""Whether the process of an unfinished run still lives, on systems without /proc: a Mac, Windows."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbt_reverse_etl.base import owner

Patch = pytest.MonkeyPatch


@pytest.fixture
def system(tmp_path: Path, monkeypatch: Patch) -> Iterator[Patch]:
    """One without /proc."""
    monkeypatch.setattr(owner, "_PROC", tmp_path)
    owner._place.cache_clear()
    yield monkeypatch
    owner._place.cache_clear()


def name_of(process: int, machine: int, system: Patch) -> str:
    """The owner as a process of that machine writes it."""
    with system.context() as there:
        there.setattr(uuid, "getnode", lambda: machine)
        there.setattr(os, "getpid", lambda: process)
        owner._place.cache_clear()
        name = owner.this_process()
    owner._place.cache_clear()
    return name


def ended() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def test_of_this_process_each_push_lives_until_it_ends_and_one_that_had_its_number_before_does_not() -> None:
    with owner.at_work() as first:
        with owner.at_work() as second:
            assert (owner.is_alive(first), owner.is_alive(second), first == second) == (True, True, False)
        assert (owner.is_alive(first), owner.is_alive(second)) == (True, False)
    assert not owner.is_alive(owner.this_process())


def test_on_a_mac_the_lease_alone_holds_for_a_process_of_another_mac_of_that_name(system: Patch) -> None:
    system.setattr(sys, "platform", "darwin")
    system.setattr(uuid, "getnode", lambda: 1)
    gone = ended()
    assert owner.is_alive(name_of(gone, 2, system))
    assert not owner.is_alive(name_of(gone, 1, system)), "a crash on this one does not cost the lease"
    assert owner.is_alive(name_of(os.getppid(), 1, system))


@pytest.mark.parametrize("name", ["win32", "freebsd15"])
def test_where_the_system_names_no_place_the_lease_alone_decides_and_no_process_is_signalled(
    name: str, system: Patch
) -> None:
    def kill(process: int, signal: int) -> None:
        raise AssertionError

    gone = ended()
    system.setattr(sys, "platform", name)
    system.setattr(os, "kill", kill)
    assert owner.is_alive(name_of(gone, 1, system))
    assert owner.is_alive(owner.this_process()), "one of that number on a machine of that name may be a rival"
