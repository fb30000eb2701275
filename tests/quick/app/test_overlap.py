"""Several pushes at once, and what a signal makes of them: real processes, real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from dbt_reverse_etl.app.invocation import push_all
from dbt_reverse_etl.app.overlap import Overlap
from dbt_reverse_etl.base.workers import at_once
from dbt_reverse_etl.warehouse.overview import Overview

PUSHES = r"""
import signal, sys, threading, time
from dbt_reverse_etl.app import overlap
from dbt_reverse_etl.base import workers

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with SIGINT ignored

overlap.GRACE = 1.0
interrupt, cancelled = threading.Event(), []

def say(text):
    sys.stdout.write(f"{text}\n")  # whole, whichever thread says it
    sys.stdout.flush()

def polite():
    say("polite begins")
    interrupt.wait(30)
    return "polite ended"

def deaf():
    say("deaf begins")
    workers.at_once(2, time.sleep, [30, 30], "request")  # as the engine sends

def never():
    say("never")

at_once = overlap.Overlap(2, interrupt, lambda: cancelled.append(1))
left = at_once.run([polite, deaf, never], say)
say(f"{left} {cancelled}")
"""


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_polite_pushes_end_and_leaves_deaf_ones_behind(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", PUSHES], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    begun = {process.stdout.readline().strip() for _ in range(2)}
    assert begun == {"polite begins", "deaf begins"}
    process.send_signal(number)
    began = time.monotonic()
    rest = process.stdout.read()
    assert process.wait(10) == 0
    assert time.monotonic() - began < 10, "a hanging request must not keep the process"
    assert rest.splitlines() == ["polite ended", "{1: True, 2: False} [1]"]


def test_all_items_are_tried_and_the_first_error_in_their_order_is_raised() -> None:
    tried: list[int] = []

    def work(item: int) -> None:
        tried.append(item)
        if item in (2, 5):
            raise ValueError(item)

    with pytest.raises(ValueError, match="2"):
        at_once(3, work, range(9), "work")
    assert sorted(tried) == [*range(9)]


def test_tasks_overlap_up_to_the_limit_and_each_result_is_heard_once_in_the_calling_thread() -> None:
    running, most, lock = 0, 0, threading.Lock()
    meet = threading.Barrier(3)

    def task(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meet.wait(10)  # passes only if three run at once
        with lock:
            running -= 1
        return number

    heard: list[tuple[int, threading.Thread]] = []
    overlap = Overlap[int](3, threading.Event(), pytest.fail)
    left = overlap.run(
        [partial(task, n) for n in range(9)], lambda answer: heard.append((answer, threading.current_thread()))
    )
    assert left == {}
    assert most == 3
    assert sorted(answer for answer, _ in heard) == [*range(9)]
    assert {thread for _, thread in heard} == {threading.main_thread()}


def test_an_error_of_a_task_is_raised_to_the_caller() -> None:
    def fail() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        Overlap[None](1, threading.Event(), lambda: None).run([fail], lambda answer: None)


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize("spark_is_gone", [False, True])
def test_an_error_on_hearing_of_one_push_lets_the_others_end_in_order(spark_is_gone: bool) -> None:
    interrupt, ended = threading.Event(), list[str]()

    def polite() -> None:
        interrupt.wait(30)
        time.sleep(0.2)  # the request under way
        ended.append("polite")

    def cancel_jobs() -> None:
        if spark_is_gone:
            raise ConnectionError
        ended.append("jobs")

    def tell(_: None) -> None:
        raise ValueError("the console is gone")

    with pytest.raises(ValueError, match="console"):
        Overlap[None](2, interrupt, cancel_jobs).run([polite, lambda: None], tell)
    assert ended == (["polite"] if spark_is_gone else ["jobs", "polite"])


@pytest.mark.guarantee(
    "Crashes and claims", "The end of a push cancels its own Spark jobs, and none of the program around it"
)
def test_only_the_jobs_of_the_push_are_cancelled() -> None:
    marked, cancelled = dict[str, str](), list[str]()

    def mark(tag: str) -> None:
        marked[threading.current_thread().name] = tag

    context = SimpleNamespace(addJobTag=mark, cancelJobsWithTag=cancelled.append)
    interrupt = threading.Event()

    def push(one: str, _: object) -> str:
        if one == "first":
            interrupt.wait(30)
        return one

    def tell(_: object) -> None:
        raise ValueError("the console is gone")

    spark, policy = SimpleNamespace(sparkContext=context), SimpleNamespace(syncs_at_once=2)
    pusher: Any = SimpleNamespace(spark=spark, policy=policy, interrupt=interrupt, push=push)
    syncs: Any = ["first", "second"]
    with pytest.raises(ValueError, match="console"):
        push_all(pusher, syncs, Overview(), tell, lambda: None)
    assert marked.keys() <= {"sync-0", "sync-1"}
    assert set(marked.values()) == set(cancelled)
    assert len(cancelled) == 1
