"""The files sink on a disk, killed at any file operation: a reader sees the object before or after, whole."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from dbt_reverse_etl.testing import next_run, opened
from tests.support.sinks.files import changed, full, ids, inserted, killed, listed, load, manifest, sink_at, task_of


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("kill_at", range(6))
def test_a_kill_at_any_file_operation_never_shows_a_partial_or_double_part(kill_at: int, tmp_path: Path) -> None:
    """A process is killed at the n-th fsync of a delivery; a reader sees all of the batch or nothing."""
    program = textwrap.dedent(
        f"""
        import os, signal
        from tests.support.sinks import files as t
        from pathlib import Path
        task = t.task_of()
        sink = t.sink_at(Path({str(tmp_path)!r}))
        sink.open(task)
        sink.deliver(t.inserted(task, 1, claim="c0"))
        fsync, count = os.fsync, [0]
        def kill(descriptor):
            if count[0] == {kill_at}:
                os.kill(os.getpid(), signal.SIGKILL)
            count[0] += 1
            fsync(descriptor)
        os.fsync = kill
        sink.deliver(t.inserted(task, 2, 3, claim="c1"))
        print("delivered", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    said = killed(program)
    seen = [row["id"] for row in listed(tmp_path / "people")]
    assert seen in ([1], [1, 2, 3])
    if "delivered" in said:
        assert seen == [1, 2, 3]
    with opened(sink_at(tmp_path), next_run(task_of())) as sink:
        answer = sink.settle(["c1"])["c1"]
        assert answer is (True if seen == [1, 2, 3] else None)
        if answer is None:
            sink.deliver(inserted(task_of(), 2, 3, claim="c2"))
        sink.finish()
    assert [row["id"] for row in listed(tmp_path / "people")] == [1, 2, 3]


KILLED = """
import os, signal
from dataclasses import replace
from pathlib import Path
from tests.support.sinks.files import ids, inserted, sink_at, task_of
sink, task = sink_at(Path({path!r})), replace(task_of(), fence=2, first=False, full_load=True)
sink.open(task)
fsync, count = os.fsync, [0]
def kill(descriptor):
    if count[0] == {kill_at}:
        os.kill(os.getpid(), signal.SIGKILL)
    count[0] += 1
    fsync(descriptor)
os.fsync = kill
for number in (2, 3):
    sink.deliver(inserted(task, number, claim="whole", last=False))
sink.swap("whole")
print("swapped", flush=True)
sink.finish("whole")
print("finished", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("kill_at", range(9))
def test_a_kill_at_any_file_operation_of_a_full_load_shows_the_object_before_or_the_new_one(
    kill_at: int, tmp_path: Path
) -> None:
    """Two fsyncs for each of two parts, two for the swap, two for the end; the last run is killed after all of them."""
    changed(tmp_path, 1, 1)
    said = killed(KILLED.format(path=str(tmp_path), kill_at=kill_at))
    seen = ids(tmp_path)
    assert seen in ([1], [2, 3])
    assert seen == [2, 3] or "swapped" not in said
    assert ("finished" in said) == (kill_at == 8)
    with opened(sink_at(tmp_path), full(3)) as sink:
        answer = sink.settle(["whole"])["whole"]
        assert answer is (True if seen == [2, 3] else None)
        assert ids(tmp_path) == seen
        load(sink, full(3), 4, 5, claim="again")
        sink.finish("again")
    changed(tmp_path, 4, 6)
    assert ids(tmp_path) == [4, 5, 6]
    kept = {part["name"] for part in manifest(tmp_path)["parts"]}
    assert {path.name for path in (tmp_path / "people").iterdir()} == {"manifest.json", ".lock", *kept}
