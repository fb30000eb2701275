"""The position on its own: which runs are settled, in memory and on the disk."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.serve.cloud import FinishedRun
from dbt_reverse_etl.serve.position import LONGEST, OVERLAP, UNSETTLED, Position, PositionFile, Run, State, Trouble

JOB = 7
MINUTE = 60


def listed(**finished: int | None) -> list[FinishedRun]:
    """Runs by name (`r1`), and the minute in which each finished, if that is known."""
    return [
        FinishedRun(
            id=int(name[1:]),
            finished_at=None if minute is None else datetime.fromtimestamp(minute * MINUTE, timezone.utc),
        )
        for name, minute in finished.items()
    ]


def ended(position: Position, run_id: int, state: State = State.DONE, *, is_pushed: bool = False) -> Position:
    return position.ended(replace(position.runs[run_id], state=state), 9, is_pushed=is_pushed)


def test_the_first_time_the_newest_run_stands_for_all_before_it() -> None:
    first = Position().found(JOB, listed(r5=50), 0)
    assert [run.run_id for run in first.waiting([JOB])] == [5]
    again = first.found(JOB, listed(r5=50, r4=40), 0)
    assert [run.run_id for run in again.waiting([JOB])] == [5]
    none = Position().found(JOB, [], 0)
    assert [run.run_id for run in none.found(JOB, listed(r2=2, r1=1), 0).waiting([JOB])] == [1, 2]
    assert first.waiting([8]) == [], "of a job that is not listed any more"


def test_runs_are_due_in_the_order_in_which_they_finished() -> None:
    position = Position(since={JOB: 0.0}).found(JOB, listed(r9=10, r7=30, r8=20), 0)
    assert [run.run_id for run in position.waiting([JOB])] == [9, 8, 7]


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize("state", [State.FAILED, State.OVERTAKEN])
def test_a_run_that_did_not_arrive_counts_until_a_later_one_of_its_job_was_pushed(state: State) -> None:
    position = Position(since={JOB: 0.0, 8: 0.0}).found(JOB, listed(r1=1, r2=2), 0).found(8, listed(r3=3), 0)
    position = ended(position, 1, state)
    assert ended(position, 3, is_pushed=True).runs[1].state is state, "a run of another job says nothing"
    for other in (State.FAILED, State.OVERTAKEN, State.DONE):
        later = ended(position, 2, other)
        assert later.runs[1].state is state, "nothing of the later one was pushed"
        assert later.done_at == {}
    late = ended(ended(position, 2, is_pushed=True), 1, state)
    assert late.done_at == {JOB: 9}
    assert late.runs[1].state is state, "it failed after the later one was pushed"
    assert ended(late.found(JOB, listed(r4=400), 0), 4, is_pushed=True).runs.keys() == {4, 3}


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize("state", [State.FAILED, State.OVERTAKEN])
def test_a_run_that_did_not_arrive_counts_until_later_ones_have_pushed_each_of_its_syncs(state: State) -> None:
    position = Position(since={JOB: 0.0}).found(JOB, listed(r1=1, r2=2, r3=3), 0)
    syncs = frozenset({"a", "b"})
    position = position.ended(replace(position.runs[1], state=state, syncs=syncs), 9)

    def pushed(position: Position, run_id: int, *others: str) -> Position:
        return position.ended(replace(position.runs[run_id], state=State.DONE), 9, is_pushed=True, others={*others})

    assert pushed(position, 2, "a", "b").runs[1] == position.runs[1], "none of its syncs was pushed"
    half = pushed(position, 2, "b", "c")
    assert half.runs[1].state is state
    assert pushed(half, 3, "b").runs[1].state is state
    assert pushed(half, 3, "a").runs[1].state is State.DONE, "the two together have pushed both"
    assert pushed(half, 3).runs[1].state is State.DONE, "the project has no sync b any more"


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize("state", [State.FAILED, State.OVERTAKEN])
def test_a_run_that_did_not_arrive_counts_until_jobs_with_its_target_have_pushed_its_syncs(state: State) -> None:
    position = Position(since={JOB: 0.0, 8: 0.0}).found(JOB, listed(r1=1, r2=1), 0).found(8, listed(r3=3, r4=4), 0)
    position = position.ended(replace(position.runs[1], state=state, syncs=frozenset({"a", "b"})), 9)
    position = ended(position, 2, state)

    def pushed(position: Position, run_id: int, syncs: str, *jobs: int) -> Position:
        run = replace(position.runs[run_id], state=State.DONE, syncs=frozenset(syncs))
        return position.ended(run, 9, is_pushed=True, jobs=jobs)

    assert pushed(position, 3, "ab", 8).runs[1].state is state, "the jobs have two targets"
    half = pushed(position, 3, "ac", JOB, 8)
    assert half.runs[1] == replace(position.runs[1], syncs=frozenset("b")), "it may be of a project without b"
    both = pushed(half, 4, "b", JOB, 8)
    assert both.runs[1].state is State.DONE
    assert both.runs[2].state is state, "what it was to push is not known"


@pytest.mark.parametrize(("state", "minute"), [(State.UNTIMED, 1), (State.GIVEN_UP, 240)])
def test_lists_go_back_to_a_run_without_a_time_until_it_is_given_up(state: State, minute: int) -> None:
    position = Position(since={JOB: 0.0}).found(JOB, listed(r1=1), 0)
    position = replace(ended(position, 1), since={JOB: 1.0 * MINUTE}).found(JOB, listed(r2=None, r3=300), 0)
    position = ended(position.updated(replace(position.runs[2], state=state)), 3)
    assert position.since[JOB] == minute * MINUTE
    assert position.found(JOB, listed(r2=2), 0).runs[2].state is State.WAITING


@pytest.mark.parametrize(("days", "listed_again", "is_kept"), [(31, False, False), (29, False, True), (31, True, True)])
def test_a_run_that_was_given_up_stays_for_a_month_and_while_it_is_listed(
    days: int, listed_again: bool, is_kept: bool
) -> None:
    position = Position(since={JOB: 0.0, 8: 0.0}).found(JOB, listed(r1=None), 0)
    position = position.updated(replace(position.runs[1], state=State.GIVEN_UP))
    assert position.found(8, [], days * 86400).runs == position.runs, "of another job"
    after = position.found(JOB, listed(r1=None) if listed_again else [], days * 86400)
    assert after.runs == (position.runs if is_kept else {})


@pytest.mark.parametrize("state", list(State))
def test_a_run_that_something_else_was_to_settle_is_remembered_for_so_long(state: State) -> None:
    position = Position(since={JOB: 0.0}).found(JOB, listed(r1=1), 100)
    position = position.updated(replace(position.runs[1], state=state))
    most = LONGEST.get(state, 0)
    assert position.too_old(100 + most) == []
    assert bool(position.too_old(101 + most)) is bool(most)


# When each run finishes, how many minutes later it is listed, for how many more its end is not noted, and how it ends.
runs = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.integers(0, int(OVERLAP / MINUTE) - 1),
        st.sampled_from([0, 0, 1, 200]),
        st.sampled_from([State.DONE, *UNSETTLED]),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.guarantee("dbt Cloud")
@given(runs, st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), max_size=30))
def test_however_runs_finish_and_are_listed_each_is_settled_once_and_the_position_stays_small(
    told: list[tuple[int, int, int, State]], looks: list[tuple[int, int]]
) -> None:
    """Each look comes some minutes after the one before, and is followed by the end of some runs."""
    position, settled, minute = Position(since={JOB: 0.0}), list[int](), 0
    for after, most in [*looks, (600, len(told))]:
        minute += after
        since = position.since[JOB]
        seen = {
            f"r{n}": at if at + lag + untimed <= minute else None
            for n, (at, lag, untimed, _) in enumerate(told, 1)
            if at + lag <= minute
        }
        recent = {name: at for name, at in seen.items() if at is None or at * MINUTE >= since}
        position = position.found(JOB, listed(**recent), 0)
        for run in position.waiting([JOB])[:most]:
            settled.append(run.run_id)
            assert run.finished_at == told[run.run_id - 1][0] * MINUTE
            position = ended(position, run.run_id, told[run.run_id - 1][-1])
    assert sorted(settled) == list(range(1, len(told) + 1)), "none is left out, none comes twice"
    newest = max(at for at, *_ in told) * MINUTE
    assert position.since[JOB] == max(0, newest - OVERLAP)
    kept = [run for run in position.runs.values() if run.finished_at < position.since[JOB]]
    assert all(run.state in UNSETTLED for run in kept)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "position.json"


AFTER = Position(
    {JOB: 1.5},
    {3: Run(3, JOB, 2.5, 9.0, State.FAILED, 4, "exit code 3", Trouble.PUSH, 9.5, syncs=frozenset("ab"))},
    {JOB: 4.0},
    {"prod": "l"},
)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.guarantee("dbt Cloud")
def test_a_position_is_on_the_disk_before_it_counts_and_one_that_cannot_be_written_changes_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        on_disk = os.fstat(descriptor)
        places = (file.parent, *file.parent.iterdir())
        steps.extend(one.name for one in places if os.path.samestat(one.stat(), on_disk))
        sync(descriptor)

    def renamed(old: Path, new: Path) -> Path:
        steps.append(f"{old.name} to {new.name}")
        return rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    kept = PositionFile(file)
    kept.put(AFTER)
    assert steps == ["position.json.new", "position.json.new to position.json", file.parent.name]
    kept.put(AFTER)
    assert len(steps) == 3, "what says nothing new is not written"
    assert PositionFile(file).value == kept.value == AFTER

    with largest_file(10), pytest.raises(OSError, match="too large"):
        kept.put(Position())
    assert PositionFile(file).value == kept.value == AFTER


def test_a_file_that_something_else_wrote_is_refused_with_what_to_do(file: Path) -> None:
    for content in (b"", b"{", b"[]", b'{"since": {"x": 1}}'):
        file.write_bytes(content)
        with pytest.raises(ReverseEtlError, match="the newest run of each job is pushed then"):
            PositionFile(file)
