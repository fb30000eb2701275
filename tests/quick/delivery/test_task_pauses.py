"""The rate of a sync, and a pause that a destination asks for, while several tasks of one sync send at once and cannot talk to each other."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.delivery.facts import BUCKETS, Claim
from dbt_reverse_etl.delivery.policy import Policy, Rejections
from dbt_reverse_etl.delivery.sending import NOTHING_SENT, Sent
from dbt_reverse_etl.delivery.undelivered import Order
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.warehouse.executors import Work, _share
from tests.support.delivery.reference import SCHEMA, WAVE_SCHEMA
from tests.support.servers.http import Received, Reply, http_server
from tests.support.sinks.http_sending import settings_of

TASKS, CONCURRENCY, ROWS, PAUSE = 3, 6, 120, 1


class Limited:
    """Asks for a pause at its tenth request, and refuses whatever comes before it is over."""

    def __init__(self) -> None:
        self.delivered: list[str] = []
        self.refused = 0
        self._over: float | None = None
        self._lock = threading.Lock()

    def __call__(self, request: Received) -> Reply:
        with self._lock:
            now = time.monotonic()
            if self._over is None and len(self.delivered) == 10:
                self._over = now + PAUSE
            if self._over is not None and now < self._over:
                self.refused += 1
                return Reply(429, headers={"Retry-After": str(PAUSE)})
            self.delivered.append(request.path)
        time.sleep(0.005)
        return Reply(204)


def rows_of(task: int, number: int) -> list[pa.RecordBatch]:
    rows = [
        {**dict.fromkeys(WAVE_SCHEMA.names), "key": f"k{n}", "value": n, "_key": f"k{n}", "_bucket": n}
        | {
            "_operation": "insert",
            "_event_id": f"e{n}",
            "_after_hash": n,
            "_maybe": False,
            "_doubt": False,
            "_changed": 1,
        }
        for n in range(task, number, TASKS)
    ]
    batches: list[pa.RecordBatch] = pa.Table.from_pylist(rows, WAVE_SCHEMA).to_batches()
    return batches


def sent_by_tasks(url: str, rows: int = ROWS, **settings: Any) -> Sent:
    """What becomes of these rows where three tasks send them, each with its share of the budget."""
    now = datetime.now(timezone.utc)
    make_sink = partial(HttpSink, settings_of(url, concurrency=CONCURRENCY, **settings))
    task = SinkTask("s", "sync", 1, "people", Mode.MIRROR, ("key",), SCHEMA)
    task = replace(task, options=HttpSink.options_model())
    order = Order(Claim("c", 0, BUCKETS, 1, "spec"), {}, now, Rejections(), retry_now=False)
    limits = _share(make_sink().limits(task), TASKS)
    work = Work(make_sink, order, task, limits, Policy(), now + timedelta(minutes=5))
    with ThreadPoolExecutor(TASKS) as pool:
        return sum(pool.map(work.send, (rows_of(number, rows) for number in range(TASKS))), NOTHING_SENT)


@pytest.mark.guarantee("Refusals and outages")
def test_each_worker_of_any_task_hears_of_a_pause_by_one_request_and_no_row_is_lost() -> None:
    """The bound that the documentation names: as many requests as may be under way where one process sends."""
    limited = Limited()
    with http_server(limited) as server:
        sent = sent_by_tasks(server.url)
    assert 1 <= limited.refused <= CONCURRENCY
    assert sorted(limited.delivered) == sorted(f"/people/k{n}" for n in range(ROWS))
    assert (sent.counts.delivered.insert, sent.undelivered, sent.stop) == (ROWS, (), None)


@pytest.mark.guarantee("Refusals and outages")
def test_all_tasks_together_keep_the_rate_of_the_sync() -> None:
    rate, rows, times = 30, 60, list[float]()

    def counted(request: Received) -> Reply:
        times.append(time.monotonic())
        return Reply(204)

    with http_server(counted) as server:
        began = time.monotonic()
        sent = sent_by_tasks(server.url, rows, requests_per_second=rate)
    assert sent.counts.delivered.insert == len(times) == rows
    # However slow the machine is, nothing comes before its time; the first request of each task need not wait.
    budget = [TASKS + (moment - began) * rate + 1e-6 for moment in sorted(times)]
    assert [n for n, most in enumerate(budget, 1) if n > most] == []
