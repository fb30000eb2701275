"""The queue on its own: what is in it, and what is on the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.serve.queue import Queue, RunState
from dbt_reverse_etl.serve.steps import Step, join, wanted
from tests.support.servers.cloud_api import results


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    made = Queue(tmp_path / "queue.db")
    yield made
    made.close()


@pytest.mark.guarantee("dbt Cloud")
def test_each_transaction_is_on_the_disk_before_it_returns(queue: Queue) -> None:
    database = queue._connection
    assert database.execute("pragma journal_mode").fetchone()[0] == "wal"
    assert database.execute("pragma synchronous").fetchone()[0] == 2, "full"


def test_an_event_and_a_run_count_once(queue: Queue) -> None:
    assert queue.add("one", 1, 7, 0)
    assert not queue.add("one", 1, 7, 0)
    assert not queue.add("one", 2, 7, 0), "an event that is known brings no run"
    assert not queue.add("two", 1, 7, 0), "a run that is known is not queued again"
    assert queue.add_finished(7, [1, 3], 50.0, 0) == 1
    assert [run.run_id for run in queue.runs()] == [1, 3]


def test_a_run_is_taken_once_and_only_when_it_is_due(queue: Queue) -> None:
    queue.add("one", 1, 7, 100)
    assert queue.take(99) is None
    run = queue.take(100)
    assert run
    assert (run.state, run.fetches) == (RunState.FETCHING, 1)
    assert queue.take(100) is None
    queue.later(1, 200, "HTTP 500")
    assert queue.next_due() == 200
    assert queue.take(199) is None
    assert queue.recover(300) == 0
    assert queue.take(200)
    assert queue.recover(300) == 1
    again = queue.take(300)
    assert again
    assert again.fetches == 3


def test_a_run_that_is_put_back_is_as_if_it_had_not_been_begun(queue: Queue) -> None:
    queue.add("one", 1, 7, 0)
    queue.take(0)
    queue.pushing(1)
    queue.put_back(1, 0)
    (run,) = queue.runs()
    assert (run.state, run.fetches, run.pushes) == (RunState.QUEUED, 0, 0)


def test_what_ended_long_ago_is_forgotten_and_what_is_open_never(queue: Queue) -> None:
    for number in (1, 2, 3):
        queue.add(f"event-{number}", number, 7, number)
        queue.take(10)
    queue.end(1, RunState.DONE, 20, exit_code=0)
    queue.end(2, RunState.FAILED, 40, "exit code 2", 2)
    assert queue.counts() == {"queued": 0, "fetching": 1, "pushing": 0, "done": 1, "failed": 1}
    assert queue.last_done() == {7: 20}
    assert queue.oldest_open() == 3
    assert queue.prune(30) == [1]
    assert [run.run_id for run in queue.runs()] == [2, 3]


def test_no_state_but_the_five_can_be_written(queue: Queue) -> None:
    queue.add("one", 1, 7, 0)
    with pytest.raises(sqlite3.IntegrityError):
        queue._connection.execute("update run set state = 'lost'")


class TestSteps:
    @pytest.mark.parametrize(
        ("name", "command"),
        [
            ("Invoke dbt with `dbt run`", "run"),
            ("Invoke dbt with `dbt --warn-error build --select tag:x`", "build"),
            ("Invoke dbt with `dbt run-operation run --args '{a: `b`}'`", "run-operation"),
            ("Invoke dbt with `dbt docs generate --select run`", "docs"),
            ("Invoke dbt with `dbt test`", "test"),
            ("dbt retry", "retry"),
            ("dbt run --vars 'unbalanced", "run"),
            ("Clone git repository", ""),
            ("Create profile from connection Spark", ""),
        ],
    )
    def test_the_command_of_a_step_is_read_from_its_name(self, name: str, command: str) -> None:
        assert Step(1, name).command == command

    def test_tests_alone_are_not_pushed(self) -> None:
        assert wanted([Step(1, "dbt test"), Step(2, "dbt docs generate")]) == []
        assert len(wanted([Step(1, "dbt test"), Step(2, "dbt run")])) == 2


NODES = [f"model.{name}" for name in "abcd"]
steps = st.lists(
    st.tuples(
        st.sampled_from(["run", "build", "test"]),
        st.dictionaries(st.sampled_from(NODES), st.sampled_from(["success", "error"])),
        st.booleans(),
    ),
    max_size=5,
)


@pytest.mark.guarantee("dbt Cloud")
@given(steps)
def test_however_steps_follow_each_other_the_last_result_of_each_node_counts_once(
    told: list[tuple[str, dict[str, str], bool]],
) -> None:
    read = {
        number: {**results(f"inv-{number}", which, empty=empty), "results": _rows(rows, number)}
        for number, (which, rows, empty) in enumerate(told, 1)
    }
    joined = join(read, "prod")
    last = {node: n for n, (_, rows, empty) in enumerate(told, 1) for node in rows if not empty}
    pushing = {node: n for node, n in last.items() if told[n - 1][0] != "test"}
    seen = [
        (row["unique_id"], row["step"])
        for one in joined
        for row in one.results["results"]
        if row["step"] in pushing.values()
    ]
    assert sorted(seen) == sorted((node, step) for node, step in pushing.items())
    for one in joined:
        assert one.results["metadata"]["invocation_id"] == f"inv-{one.step}"
        assert told[one.step - 1][0] == one.results["args"]["which"]
        assert not told[one.step - 1][2]


def _rows(rows: dict[str, str], step: int) -> list[dict[str, object]]:
    return [{"unique_id": name, "status": status, "step": step} for name, status in rows.items()]
