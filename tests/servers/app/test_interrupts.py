"""A signal ends a command with 130 and without a traceback, whatever it is doing: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.app.context import HeadOfModel
from dbt_reverse_etl.app.push import Pusher
from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.base.interrupts import INTERRUPTED, apart, interrupts
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.warehouse.overview import Overview
from tests.support.config.written import Written

SIGNALS = [signal.SIGINT, signal.SIGTERM]

# A call that nobody may cut in two: as that of a connection which is read from after it.
CALLS = r"""
import socket, sys, threading, time
from dbt_reverse_etl.base.interrupts import apart, interrupts

here, there = socket.socketpair()

def answer_late():
    while True:
        question = there.recv(1)
        time.sleep(0.5)
        there.sendall(question)

threading.Thread(target=answer_late, daemon=True).start()
lock = threading.Lock()

@apart
def ask(letter):
    with lock:
        here.sendall(letter)
        return here.recv(1)

with interrupts() as signals:
    print("asks", flush=True)
    try:
        while True:
            assert ask(b"a") == b"a"
    except KeyboardInterrupt:
        pass
    found = []
    other = threading.Thread(target=lambda: found.append(ask(b"b")))
    other.start()
    other.join()
    print(found, signals.received, flush=True)
"""

# As a destructor does it: Python only writes that an exception was ignored.
SWALLOWED = r"""
import sys, time
from dbt_reverse_etl.base.interrupts import apart, interrupts

with interrupts() as signals:
    try:
        print("ready", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        pass
    try:
        apart(time.sleep)(30)
    except KeyboardInterrupt:
        print("told again", flush=True)
"""


# A shell that started the tests in the background made them deaf to SIGINT.
LISTENS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"


def started(code: str, *options: str) -> subprocess.Popen[str]:
    """A process that has said that it began."""
    process = subprocess.Popen(
        [sys.executable, *options, "-c", LISTENS + code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def rest_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with process:
        return process.stdout.read()


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_wait_for_a_call_and_never_the_call_itself(number: signal.Signals) -> None:
    process = started(CALLS)
    time.sleep(0.7)
    process.send_signal(number)
    rest = rest_of(process)
    assert rest.splitlines() == ["[b'b'] True"], "the next call gets its own answer"


def test_a_signal_that_was_swallowed_ends_the_next_wait() -> None:
    process = started(SWALLOWED)
    process.send_signal(signal.SIGINT)
    assert rest_of(process) == "told again\n"


COMMAND = """
import runpy, sys
import dbt_reverse_etl.base.interrupts  # Python's own start is not ours
sys.argv = ["dbt-reverse-etl", "plan", "--project-dir", {folder!r}]
print("begins", flush=True)
runpy.run_module("dbt_reverse_etl", run_name="__main__")
"""


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.35, 0.5, 0.8])
def test_a_signal_ends_the_command_while_it_starts_and_while_it_ends(
    number: signal.Signals, seconds: float, tmp_path: Path
) -> None:
    process = started(COMMAND.format(folder=str(tmp_path)))
    time.sleep(seconds)
    process.send_signal(number)
    said = rest_of(process)
    # Without a project it ends by itself, and early.
    late = (2, 1) if "a dbt project" in said or "dbt run" in said else ()
    assert process.returncode in (INTERRUPTED, *late), said
    assert not [word for word in ("Traceback", "unexpected", "KeyboardInterrupt") if word in said], said


ENDS = """
import atexit, os, signal, sys
from dbt_reverse_etl import __main__, cli

def told():
    os.kill(os.getpid(), signal.SIGINT)

class Late:  # Python clears the modules last of all
    def __del__(self, kill=os.kill, ourselves=os.getpid()):
        kill(ourselves, signal.SIGTERM)

known = cli._said

def said(*about, **more):
    if {when!r} == "in the command":
        told()
    if {when!r} == "in a callback of Python's end":
        atexit.register(told)
    if {when!r} == "after them all":
        sys.modules["late"] = Late()
    return known(*about, **more)

cli._said = said
sys.argv = ["dbt-reverse-etl", "plan"]
atexit.register(print, "of whoever watches Python")
print("started", flush=True)
__main__.main()
"""


@pytest.mark.parametrize("when", ["in the command", "in a callback of Python's end", "after them all"])
def test_a_signal_in_the_very_exit_of_a_command_is_no_traceback(when: str, tmp_path: Path) -> None:
    process = started(f"import os; os.chdir({str(tmp_path)!r})\n{ENDS.format(when=when)}")
    said = rest_of(process)
    assert process.returncode == (INTERRUPTED if when != "after them all" else ExitCode.USAGE), said
    assert "Traceback" not in said
    assert ("of whoever watches Python" in said) == (when != "in a callback of Python's end"), said


CUT = """
from dbt_reverse_etl import __main__, cli

@cli.cli.command()
def cut():
    exec("import signal; signal.raise_signal(signal.SIGINT)")

__main__.main()
"""


def test_a_signal_in_code_that_python_makes_as_that_of_a_dataclass_is_interrupted_too(tmp_path: Path) -> None:
    """Python ends itself by SIGINT once an `exec` has seen one, whatever became of it."""
    (tmp_path / "wounded.py").write_text(LISTENS + CUT)
    ended = subprocess.run(
        [sys.executable, "-m", "wounded", "cut"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr.strip()) == (INTERRUPTED, "interrupted: the next run goes on")


def test_a_command_that_is_not_to_hear_a_signal_does_not() -> None:
    code = "import os, signal\nfrom dbt_reverse_etl.base.interrupts import interrupts\nprint(1, flush=True)\n"
    code += "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwith interrupts(): os.kill(os.getpid(), signal.SIGINT)\nprint('deaf')"
    assert rest_of(started(code)) == "deaf\n", "as nohup wants it"


FAILS = """
import sys, time
from dbt_reverse_etl import cli

@cli.cli.command()
def cut():
    print("begins", flush=True)
    try:
        time.sleep(30)
    finally:
        raise ValueError("an answer that nobody asked for")

sys.argv = ["dbt-reverse-etl", "cut"]
sys.exit(cli.main())
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_what_fails_because_of_a_signal_is_interrupted_and_no_unexpected_error(number: signal.Signals) -> None:
    process = started(FAILS)
    process.send_signal(number)
    assert (rest_of(process).strip(), process.returncode) == ("interrupted: the next run goes on", INTERRUPTED)


@pytest.fixture
def hearing() -> Iterator[None]:
    """Whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _tell_ourselves() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)


def test_handlers_are_given_back_and_errors_of_work_apart_are_its_own(hearing: None) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with interrupts() as outer, interrupts() as inner:
        assert outer is inner
        with pytest.raises(KeyboardInterrupt):
            _tell_ourselves()
        assert outer.received
    assert [signal.getsignal(number) for number in SIGNALS] == before

    @apart
    def fails() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fails()
    assert apart(lambda: 5)() == 5


def test_a_push_whose_query_an_interrupt_cancelled_is_interrupted_and_no_unexpected_error() -> None:
    """Without a session every query fails, as all do once a signal has cancelled them."""
    nothing: Any = None
    sync = Written("crm_contacts").resolved
    pusher = Pusher(nothing, nothing, known={sync.sync.changelog.unique_id: HeadOfModel(1, "uuid")})
    failed = pusher.push(sync, Overview())
    assert (failed.status, failed.exit_code) == (Status.FAILED, ExitCode.FAILED)
    assert "an unexpected AttributeError" in failed.message
    pusher.interrupt.set()
    told = pusher.push(sync, Overview())
    assert (told.status, told.exit_code) == (Status.INTERRUPTED, ExitCode.INTERRUPTED)
    assert "unexpected" not in told.message


def test_a_plan_that_fails_is_told_of_its_sync_as_a_push_is_and_ends_no_other() -> None:
    nothing: Any = None
    sync = Written("crm_contacts").resolved
    pusher = Pusher(nothing, nothing, known={sync.sync.changelog.unique_id: HeadOfModel(1, "uuid")})
    planned = pusher.plan(sync, Overview())
    assert (planned.sync, planned.status, planned.exit_code) == ("crm_contacts", Status.FAILED, ExitCode.FAILED)
