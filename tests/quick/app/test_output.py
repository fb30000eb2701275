"""What a command writes where a stream is closed, or a text is not UTF-8."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.terminal import output, screen

OLD_FOLDER = os.fsdecode(b"/projects/caf\xe9")


@pytest.mark.parametrize("log_format", output.FORMATS)
@pytest.mark.parametrize("document", [True, False])
def test_a_command_whose_streams_are_closed_goes_on(
    log_format: str, document: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    lines = output.screen(log_format, {}, quiet=False, verbose=False, document=document)
    assert type(lines) is screen.Screen, "no bars"
    for level in ("info", "error"):
        lines.say("Planned 1 sync", level)
    output.put("a table")
    output.put_json([1])


def test_json_has_the_name_of_a_folder_that_is_not_utf_8(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = output.screen("json", {}, quiet=False, verbose=False, document=False)
    lines.say(f"{OLD_FOLDER}: no project", "error", plan=[{"folder": OLD_FOLDER}], rows=3)
    line = orjson.loads(capfdbinary.readouterr().out)
    assert (line["message"], line["rows"]) == ("/projects/caf\\udce9: no project", 3)
    assert line["plan"] == [{"folder": "/projects/caf\\udce9"}]
    output.put_json({OLD_FOLDER: 1})
    assert orjson.loads(capfdbinary.readouterr().out) == {"/projects/caf\\udce9": 1}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this disk, which is always full")
@pytest.mark.parametrize("write", [lambda: output.put("a table"), lambda: output.put_json([1])])
def test_what_a_full_disk_does_not_take_is_no_bug_of_ours_and_no_success(
    write: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("wb", buffering=0) as disk:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(disk, write_through=True))
        with pytest.raises(ReverseEtlError, match=r"standard output: found No space left on device.* Next: free the"):
            write()
