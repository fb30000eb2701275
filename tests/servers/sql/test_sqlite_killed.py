"""The SQLite sink, killed in the middle of its batches: what its record says of each claim is true."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dbt_reverse_etl.testing import next_run, opened
from tests.support.sinks.people import a_task, sink_on

RUNNER = """
import sys
from pathlib import Path
from dbt_reverse_etl.testing import batch_of, person
from tests.support.sinks.people import a_task, people, sink_on
sink = sink_on(Path(sys.argv[1]))
sink.open(a_task())
for claim in range(10**6):
    rows = people(*(person(claim * 400 + number, "x" * 200) for number in range(200)))
    for half in (0, 1):
        if half == 1:
            rows = [(operation, row | {"id": row["id"] + 200}) for operation, row in rows]
        sink.deliver(batch_of(a_task(), rows, f"claim-{claim}", last=half == 1))
        print(claim, flush=True)
"""


@pytest.mark.guarantee("SQLite")
@pytest.mark.parametrize("lines", [pytest.param(1, marks=pytest.mark.full), 4, pytest.param(9, marks=pytest.mark.full)])
def test_after_a_kill_a_settled_claim_is_whole_and_an_unknown_one_left_no_row(
    lines: int, path: Path, db: sqlite3.Connection
) -> None:
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(path)], stdout=subprocess.PIPE, text=True)
    assert runner.stdout
    with runner, runner.stdout:
        for _ in range(lines):
            assert runner.stdout.readline()
        runner.send_signal(signal.SIGKILL)
    claims = [f"claim-{number}" for number in range(lines + 50)]
    with opened(sink_on(path), next_run(a_task())) as sink:
        answers = sink.settle(claims)
    rows = dict(db.execute("SELECT id / 400, count(*) FROM people GROUP BY 1"))
    assert [rows.get(at, 0) for at in range(len(claims))] == [
        {True: 400, False: 200, None: 0}[answers[c]] for c in claims
    ]
    assert sum(rows.values()) >= lines * 200, "an answered batch is there"
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
