"""Whose a signal is: ours as long as we work, then that of the program around us."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dbt_reverse_etl.base.interrupts import Interrupts, end_in_peace, interrupts


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGTERM, before[1])


def interrupted_by(number: signal.Signals) -> Interrupts:
    with interrupts() as signals, suppress(KeyboardInterrupt):
        os.kill(os.getpid(), number)
        time.sleep(5)
    return signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_handler_of_the_program_hears_of_the_signal_afterwards(number: signal.Signals) -> None:
    heard = list[int]()
    signal.signal(number, lambda number, _: heard.append(number))
    signals = interrupted_by(number)
    assert (signals.received, heard) == (True, [])
    assert signals.hand_on()
    assert heard == [number]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_handler_of_the_program_nobody_is_called(number: signal.Signals) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert not interrupted_by(number).hand_on()


def test_the_handler_of_spark_which_cancels_the_jobs_of_others_is_not_called() -> None:
    heard = list[object]()

    def of_spark(*_: object) -> None:
        heard.append("cancelled")

    of_spark.__module__ = "pyspark.core.context"  # where SparkContext defines it
    signal.signal(signal.SIGINT, of_spark)
    assert not interrupted_by(signal.SIGINT).hand_on()
    assert heard == []


def test_a_signal_that_has_a_handler_of_c_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known, changed = signal.getsignal, list[int]()
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else known(number))
    monkeypatch.setattr(signal, "signal", lambda number, _: changed.append(number))
    with interrupts():
        pass
    end_in_peace()
    assert set(changed) == {signal.SIGINT}
