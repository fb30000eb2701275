"""Which steps of a run count, and what they come to together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.serve.event import SUCCESS
from dbt_reverse_etl.serve.steps import Step, join, wanted
from tests.support.servers.cloud_api import results


def step(name: str, status: int = SUCCESS) -> Step:
    return Step(index=1, name=name, status=status)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("Invoke dbt with `dbt run`", "run"),
        ("Invoke dbt with `dbt --warn-error build --select tag:x`", "build"),
        ("Invoke dbt with `dbt --log-level debug run`", "run"),
        ("Invoke dbt with `dbt --profile test -t docs build --select run`", "build"),
        ("Invoke dbt with `dbt run-operation run --args '{a: `b`}'`", "run-operation"),
        ("Invoke dbt with `dbt docs generate --select run`", "docs"),
        ("Invoke dbt with `dbt test`", "test"),
        ("dbt build --select retry", "build"),
        ("dbt --quiet retry --threads 2", "retry"),
        ("dbt --warn-error run -s orders retry+", "run"),
        ("dbt retry", "retry"),
        ("dbt run --vars 'unbalanced", "run"),
        ("Clone git repository", ""),
        ("Create profile from connection Spark", ""),
    ],
)
def test_the_command_of_a_step_is_read_from_its_name(name: str, command: str) -> None:
    assert step(name).command == command


def test_tests_alone_and_steps_that_failed_are_not_pushed() -> None:
    assert wanted([step("dbt test"), step("dbt docs generate")]) == []
    assert len(wanted([step("dbt test"), step("dbt run")])) == 2
    assert wanted([step("dbt test"), step("dbt run", 20)]) == []


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
        for _, read_together in joined
        for row in read_together["results"]
        if row["step"] in pushing.values()
    ]
    assert sorted(seen) == sorted((node, step) for node, step in pushing.items())
    for number, together in joined:
        assert together["metadata"]["invocation_id"] == f"inv-{number}"
        assert told[number - 1][0] == together["args"]["which"]
        assert not told[number - 1][2]


def _rows(rows: dict[str, str], step: int) -> list[dict[str, object]]:
    return [{"unique_id": name, "status": status, "step": step} for name, status in rows.items()]
