"""What a user sees of pushes that are under way: on a terminal, in a log file, in a collector of logs."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyte
import pytest

from dbt_reverse_etl.delivery.progress import Bound, Number
from dbt_reverse_etl.terminal import output, screen
from dbt_reverse_etl.terminal.progress import Board
from tests.support.delivery.clock import FakeClock
from tests.support.terminal.pushes import ROWS, SECRET

COLUMNS, LINES = 110, 24
BOUND = Bound("crm_contacts", "crm.contacts", "run", "invocation")
COLOUR = re.compile(rb"\x1b\[[0-9;]*[1-9][0-9;]*m")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.terminal.pushes", *arguments]


@dataclass
class Terminal:
    """A program on a pseudo-terminal, and every picture that stood there, as a terminal emulator draws it."""

    process: subprocess.Popen[bytes]
    end: int
    raw: bytes = b""
    pictures: list[list[str]] = field(default_factory=list)

    @staticmethod
    def start(*arguments: str, **env: str) -> Terminal:
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", **env}
        for name in {"NO_COLOR", "COLUMNS", "LINES"} - env.keys():  # pytest-xdist says how wide it is itself
            environment.pop(name, None)
        process = subprocess.Popen(command(*arguments), stdin=its, stdout=its, stderr=its, env=environment)
        os.close(its)
        return Terminal(process, ours)

    def watch(self) -> Terminal:
        drawn = pyte.Screen(COLUMNS, LINES)
        stream = pyte.ByteStream(drawn)
        while data := self._read():
            self.raw += data
            stream.feed(data)
            self.pictures.append([line.rstrip() for line in drawn.display if line.strip()])
        os.close(self.end)
        assert self.process.wait(10) == 0, self.raw.decode()
        return self

    def _read(self) -> bytes:
        try:
            return os.read(self.end, 65536)
        except OSError:  # the program has ended
            return b""


@dataclass(frozen=True)
class Seen:
    coloured: Terminal
    plain: Terminal
    piped: str
    as_json: str


@pytest.fixture(scope="module")
def seen() -> Seen:
    """All at once, for most of their time is waiting."""
    terminals = Terminal.start("text"), Terminal.start("text", "verbose", NO_COLOR="1")
    pipes = [
        subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        for arguments, env in ((("text",), {**os.environ, "EVERY": "0.5"}), (("json", "verbose"), {**os.environ}))
    ]
    watched = [terminal.watch() for terminal in terminals]
    written = [pipe.communicate(timeout=30)[0] for pipe in pipes]
    assert [pipe.returncode for pipe in pipes] == [0, 0], written
    return Seen(watched[0], watched[1], written[0], written[1])


@pytest.mark.guarantee("dbt and its commands")
def test_on_a_terminal_each_push_under_way_has_a_bar_with_rows_rate_eta_wave_and_what_was_sent_again(
    seen: Seen,
) -> None:
    both = [shot for shot in seen.coloured.pictures if sum("━" in line for line in shot) == 2]
    assert both
    shown = " | ".join(line for shot in both for line in shot)
    assert re.search(rf"crm_contacts ━.* \d+ of {ROWS} rows \(\d+%\), \d+ rows/s, \d+ s left, wave 1", shown)
    assert re.search(r"crm_people +━.*wave 2, 2 sent again", shown)


def test_a_pause_that_the_destination_asks_for_is_told_while_it_lasts(seen: Seen) -> None:
    told = ["paused for 1 s as asked" in " ".join(shot) for shot in seen.coloured.pictures]
    assert any(told)
    assert not told[-1]


@pytest.mark.guarantee("dbt and its commands")
def test_lines_scroll_above_the_bars_and_at_the_end_nothing_else_is_left(seen: Seen) -> None:
    *syncs, summary = seen.coloured.pictures[-1]
    assert sorted(syncs) == [f"SYNC crm_contacts [+{ROWS}]", f"SYNC crm_people [+{ROWS}]"]
    assert summary == "Pushed 2 syncs"
    assert seen.coloured.raw.endswith(b"\r\n")
    assert seen.coloured.raw.count(b"\x1b[?25h") >= seen.coloured.raw.count(b"\x1b[?25l") > 0, (
        "the cursor is shown again"
    )


def test_verbose_tells_each_wave_repeated_row_and_pause_once(seen: Seen) -> None:
    lines = [line for line in seen.plain.pictures[-1] if line.startswith("crm_people: ")]
    half = ROWS // 2
    for line in (f"wave 1, rows: {half}", f"wave 2, rows: {half}", "the destination asks for a pause of 1.0 s"):
        assert lines.count(f"crm_people: {line}") == 1, lines


def test_no_color_leaves_no_colour_code_on_a_terminal(seen: Seen) -> None:
    assert COLOUR.search(seen.coloured.raw)
    assert not COLOUR.search(seen.plain.raw)


@pytest.mark.guarantee("dbt and its commands")
def test_without_a_terminal_there_are_plain_lines(seen: Seen) -> None:
    assert "\x1b" not in seen.piped
    assert "\r" not in seen.piped
    assert re.search(rf"^crm_people -> crm.people: \d+ of {ROWS} rows \(\d+%\), .*wave \d", seen.piped, re.MULTILINE)


@pytest.mark.guarantee("dbt and its commands")
def test_json_lines_name_sync_run_fence_and_invocation_and_no_row_value(seen: Seen) -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in seen.as_json.splitlines()]
    of_pushes = [line for line in lines if "sync" in line]
    assert {(line["sync"], line["invocation_id"]) for line in of_pushes} == {
        ("crm_contacts", "the-invocation"),
        ("crm_people", "the-invocation"),
    }
    ended = [line for line in of_pushes if line["message"].startswith("SYNC")]
    assert [line["fence"] for line in ended] == [1, 1]
    assert len({line["run_id"] for line in of_pushes}) == 2
    assert {"at", "level", "message"} <= set.intersection(*(set(line) for line in lines))
    messages = [line["message"] for line in lines]
    assert "crm_people: the destination asks for a pause of 1.0 s" in messages
    assert str(SECRET) not in seen.as_json


class Lines:
    """A screen whose lines are kept, and a push that it shows; no time passes by itself."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.written: list[tuple[str, str, Mapping[str, Any]]] = []
        self.screen = screen.Screen(lambda *line: self.written.append(line), clock=self.clock)
        self.tell = self.screen.board.begin(BOUND)

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds * 5):
            self.screen.glance()
            self.clock.sleep(0.2)


@pytest.mark.guarantee("dbt and its commands")
def test_a_line_at_most_every_ten_seconds_and_none_about_a_short_push() -> None:
    lines = Lines()
    lines.tell(Number.PLANNED, 1000)
    lines.pass_seconds(9)
    assert not lines.written
    lines.pass_seconds(27)
    assert len(lines.written) == 3
    lines.screen.board.end("crm_contacts", "succeeded")
    lines.pass_seconds(30)
    assert len(lines.written) == 3


def test_rate_and_eta_are_those_of_the_last_minute_and_count_rows_that_were_settled() -> None:
    lines = Lines()
    lines.tell(Number.PLANNED, 100_000)
    lines.tell(Number.WAVE, 50_000)
    for rows in [1] * 120 + [100] * 120:
        lines.clock.sleep(1)
        lines.tell(Number.SETTLED, rows)
    (look,) = lines.screen.board.looks()
    assert look.done == 12_120
    assert look.rate == pytest.approx(100, rel=0.02)
    assert look.left == pytest.approx((100_000 - 12_120) / 100, rel=0.02)


def test_the_count_of_a_wave_that_ended_takes_the_place_of_what_its_requests_told() -> None:
    board = Board(FakeClock())
    tell = board.begin(BOUND)
    for number, value in ((Number.PLANNED, 10), (Number.WAVE, 5), (Number.SETTLED, 2), (Number.COUNTED, 5)):
        tell(number, value)
    (look,) = board.looks()
    assert (look.done, look.planned, look.wave, look.wave_rows) == (5, 10, 1, 5)


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("error", [BrokenPipeError(), UnicodeEncodeError("ascii", "━", 0, 1, "")])
def test_a_terminal_that_is_gone_does_not_end_a_push(error: Exception) -> None:
    def write(*line: object) -> None:
        raise error

    clock = FakeClock()
    shown = screen.Screen(write, clock=clock)
    shown.board.begin(BOUND)
    clock.sleep(11)
    shown.glance()
    if isinstance(error, OSError):
        shown.say("1 of 1", "info")


def western_stdout(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """What was written to a standard output that takes the letters of Western Europe alone."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252", write_through=True))
    return written


@pytest.mark.guarantee("dbt and its commands")
def test_letters_that_the_terminal_does_not_have_are_written_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    written = western_stdout(monkeypatch)
    output.screen("text", {}, quiet=False, verbose=False, document=False).say("crm.клиенты é", "info")
    assert b"crm.\\u043a" in written.getvalue()
    assert "é".encode("cp1252") in written.getvalue()


@pytest.mark.guarantee("dbt and its commands")
def test_json_is_json_in_utf_8_whatever_the_terminal_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = western_stdout(monkeypatch)
    name = "crm.клиенты é\x85😀"
    output.screen("json", {}, quiet=False, verbose=False, document=False).say(name, "info")
    assert json.loads(written.getvalue().decode())["message"] == name
    written.truncate(0)
    written.seek(0)
    output.put_json([name])
    assert json.loads(written.getvalue().decode()) == [name]


def test_json_goes_to_a_stream_that_takes_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook or a task of Airflow, which run the command in their own process."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO())
    output.put_json(["é"])
    output.screen("json", {}, quiet=False, verbose=False, document=True).say("é", "info")
    assert json.loads(sys.stdout.getvalue()) == ["é"]
    assert json.loads(sys.stderr.getvalue())["message"] == "é"


@pytest.mark.guarantee("Secrets and row values")
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_key_or_name_moves_the_cursor_or_turns_a_line_around(
    log_format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    key = '{"id": "a\x9b2J\x1b[1;1H\u202eb\r"}'
    output.screen(log_format, {}, quiet=False, verbose=False, document=False).say(key, "info")
    output.put(key)
    found = capfd.readouterr().out
    assert found.replace("\n", "").isprintable()
    assert "\\u009b2J" in found


def test_beside_a_document_lines_go_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    output.screen("text", {}, quiet=False, verbose=False, document=True).say("cannot be reached", "warn")
    found = capfd.readouterr()
    assert (found.out, found.err) == ("", "cannot be reached\n")


@pytest.mark.parametrize(("env", "expected"), [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_counts_if_it_is_not_empty(env: Mapping[str, str], expected: bool) -> None:
    assert screen.colours(env) is expected
