"""What the report is written to: refused before any work, a full disk leaves the former page; and a clock that went back."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dbt_reverse_etl.base import durable
from dbt_reverse_etl.base.errors import ConfigurationError, ReverseEtlError
from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.commands import looking
from dbt_reverse_etl.report import page, reading
from tests.support.report.data import NOW, syncs
from tests.support.report.data import report as a_report


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page of an earlier report, beside a report that is made without Spark."""
    opened = SimpleNamespace(chosen=[], target="prod", pusher=None, overview=None, manifest={})
    monkeypatch.setattr(looking, "Opened", lambda *_: nullcontext(opened))
    monkeypatch.setattr(looking, "Place", lambda *_: None)
    monkeypatch.setattr(reading, "read", lambda *_: None)
    monkeypatch.setattr(page, "render", lambda _: "<p>new")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "report.html"
    file.write_text("<p>former")
    file.chmod(0o640)
    return file


def report(*arguments: str) -> None:
    cli.main(["report", *arguments], standalone_mode=False, obj={})


def test_a_report_replaces_the_former_one_and_keeps_its_rights(out: Path) -> None:
    report()
    assert (out.read_text(), out.stat().st_mode & 0o777) == ("<p>new", 0o640)
    assert [*out.parent.iterdir()] == [out]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_file_to_which_the_shell_writes_gets_the_report_behind_what_it_has(out: Path, number: int) -> None:
    name = {1: "/dev/stdout", 2: "/dev/stderr"}.get(number, "/dev/fd/3")
    work = "print('first', flush=True); from dbt_reverse_etl.commands.out_file import refuse_unwritable, write_out; "
    work += f"file = Path({name!r}); refuse_unwritable('--out', file); write_out('--out', file, '<p>new')"
    command = [sys.executable, "-c", f"from pathlib import Path; {work}; print('last')"]
    subprocess.run(["/bin/sh", "-c", f'exec "$@" {number}>>report.html', "sh", *command], check=True)
    around = ("first\n", "\nlast\n") if number == 1 else ("", "")
    assert out.read_text() == "<p>former" + "<p>new".join(around)


def test_a_full_disk_leaves_the_former_report_and_says_what_to_do(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, content: bytes) -> None:
        file.write_bytes(content[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "write", full)
    with pytest.raises(ReverseEtlError, match="Next: free the disk, or name a file in another folder"):
        report()
    assert (out.read_text(), [*out.parent.iterdir()]) == ("<p>former", [out])


def test_a_report_that_cannot_be_written_is_refused_before_any_work(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def began(*_: Any) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(looking, "Opened", began)
    with pytest.raises(ConfigurationError, match="--out: found no folder"):
        report("--out", "absent/report.html")
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    with pytest.raises(ConfigurationError, match="which cannot be written; expected one that this user may write"):
        report()
    with pytest.raises(AssertionError, match="the work began"):
        report("--json")  # which writes no file


@pytest.mark.parametrize(("syncs", "newest"), [(0, 100), (1, 100), (30, 100), (100, 30), (500, 10)])
def test_a_page_of_many_syncs_shows_fewer_runs_of_each(syncs: int, newest: int) -> None:
    assert reading.usual_newest(syncs) == newest


def test_a_run_during_which_the_clock_was_set_back_took_no_time_and_not_less_than_none() -> None:
    first, *others = syncs()
    run = replace(first.runs[-1], started_at=NOW, finished_at=NOW - timedelta(hours=2))
    written = page.render(a_report(syncs=(replace(first, runs=(run,)), *others)))
    assert "0.0 s" in written
    assert "-7200" not in written
