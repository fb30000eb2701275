"""What is said of an error that is not ours."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dbt_reverse_etl.base import errors
from dbt_reverse_etl.base.errors import unexpected
from tests.support import ROOT

ROW = "jane.doe@example.com"


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_files", {})


def raised() -> BaseException:
    def fails() -> None:
        raise RuntimeError(f"cannot cast {ROW}")

    with pytest.raises(RuntimeError) as caught:
        fails()
    return caught.value


@pytest.mark.guarantee("Secrets and row values")
def test_of_an_unexpected_error_only_its_type_and_frames_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    problem = unexpected(raised(), "push")
    (kept,) = tmp_path.iterdir()
    assert str(kept) in problem.next_step
    assert "in fails" in kept.read_text()
    assert ROW not in kept.read_text() + str(problem)


def test_an_error_that_each_sync_meets_fills_one_file_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert len({unexpected(raised(), f"sync {number}").next_step for number in range(3)}) == 1
    (kept,) = tmp_path.iterdir()
    kept.unlink()  # as /tmp is cleared
    next_step = unexpected(raised(), "push").next_step
    (again,) = tmp_path.iterdir()
    assert str(again) in next_step


@pytest.mark.guarantee("Secrets and row values")
def test_a_full_disk_adds_no_error_that_would_show_the_text_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert "set TMPDIR" in str(unexpected(raised(), "push"))


@pytest.mark.guarantee("Secrets and row values")
def test_a_line_of_source_that_the_locale_cannot_write_adds_none_either(tmp_path: Path) -> None:
    script = tmp_path / "größe.py"
    script.write_text(
        "from dbt_reverse_etl.base.errors import unexpected\n"
        f"try:\n    raise RuntimeError('{ROW}')  # Größe\n"
        "except RuntimeError as error:\n    print(unexpected(error, 'push'))\n",
        encoding="utf-8",
    )
    old = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT / "python")}
    env = {**os.environ, **old, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert ("report it with" in done.stdout, done.stderr) == (True, "")
