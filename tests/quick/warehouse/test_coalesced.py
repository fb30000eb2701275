"""As the ledger commits: every item is committed once before its thread goes on, and what waits goes together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from dbt_reverse_etl.warehouse.coalesced import Coalesced


class Table:
    """What was committed, one list a commit; the commit of `slow` waits until it may go on, that of `broken` fails."""

    def __init__(self) -> None:
        self.commits: list[list[str]] = []
        self.began, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, items: Sequence[str]) -> None:
        if "slow" in items:
            self.began.set()
            assert self.may_go_on.wait(20)
        if "broken" in items:
            raise OSError("no disk")
        self.commits.append(sorted(items))


def waiting(pool: ThreadPoolExecutor, commit: Coalesced[str], *items: str) -> list[Future[None]]:
    """Each in a thread of its own, all of them waiting."""
    futures = [pool.submit(commit, item) for item in items]
    for _ in range(2_000):
        if len(commit._waiting) == len(items):
            return futures
        threading.Event().wait(0.005)
    raise AssertionError("they do not wait")


@pytest.mark.parametrize("others", [["a"], ["a", "b", "c"]])
def test_what_waits_while_a_commit_is_under_way_shares_the_next_one(others: list[str]) -> None:
    table = Table()
    commit = Coalesced[str](table)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(commit, "slow")
        assert table.began.wait(20)
        rest = waiting(pool, commit, *others)
        assert not any(one.done() for one in [first, *rest]), "nobody goes on before its commit"
        table.may_go_on.set()
        for one in [first, *rest]:
            one.result(20)
    assert table.commits == [["slow"], others]


def test_a_commit_that_fails_fails_all_that_were_in_it_and_nobody_else() -> None:
    table = Table()
    commit = Coalesced[str](table)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(commit, "slow")
        assert table.began.wait(20)
        rest = waiting(pool, commit, "broken", "a")
        table.may_go_on.set()
        first.result(20)
        for one in rest:
            with pytest.raises(OSError, match="no disk"):
                one.result(20)
    commit("later")
    assert table.commits == [["slow"], ["later"]]


def test_many_threads_commit_each_item_once() -> None:
    table = Table()
    commit = Coalesced[str](table)
    items = [f"{number:03}" for number in range(400)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(commit, items))
    assert sorted(item for group in table.commits for item in group) == items
