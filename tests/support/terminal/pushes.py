"""A program for the tests: two real pushes at once, to an API that pauses and repeats, and the screen that shows them."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from functools import partial

from dbt_reverse_etl.app.overlap import Overlap
from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.delivery.policy import Policy, Retries
from dbt_reverse_etl.delivery.ports import Job, Ports
from dbt_reverse_etl.delivery.progress import Bound, Watch
from dbt_reverse_etl.delivery.run import run
from dbt_reverse_etl.delivery.waves import WaveSize
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.terminal import screen
from dbt_reverse_etl.terminal.output import screen as screen_for
from tests.support.delivery.reference import SCHEMA, Changelog, DictSource, Spec
from tests.support.delivery.world import MemoryLedger
from tests.support.servers.http import Received, Reply, http_server

ROWS = 80
SECRET = 5772156649  # a row value


class Api:
    """Takes 20 ms for a row; once it asks for a pause, once it fails."""

    def __init__(self) -> None:
        self._seen = 0
        self._lock = threading.Lock()

    def __call__(self, request: Received) -> Reply:
        with self._lock:
            self._seen += 1
            seen = self._seen
        if seen == ROWS // 4:
            return Reply(429, headers={"Retry-After": "1"})
        return Reply(503) if seen == ROWS // 2 else Reply(204, delay=0.02)


def push(sync: str, watch: Watch) -> tuple[str, int]:
    changelog, spec = Changelog(), Spec()
    changelog.capture({f"k{n}": SECRET for n in range(ROWS)})
    with http_server(Api()) as server:
        options = HttpSink.options_model(batch={"rows": 1})
        task = SinkTask("ab" * 16, sync, 0, "people", Mode.MIRROR, ("key",), SCHEMA, options=options)
        job = Job(uuid.uuid4().hex, "uuid", changelog.head, spec.id, "{}", task, "nobody", "the-invocation")
        bound = Bound(sync, "crm.people", job.run_id, job.invocation_id)
        ports = Ports(
            MemoryLedger(),
            lambda state: DictSource(changelog, state, changelog.head, spec, {spec.id: spec}),
            HttpSink(HttpSink.settings_model(url=server.url, concurrency=2)),
            Clock(),
            progress=watch.begin(bound),
        )
        waves = WaveSize(ROWS // 2, grow_below=-1)
        try:
            result = run(job, ports, Policy(waves=waves, retries=Retries(first=0.01)))
        finally:
            watch.end(sync, "succeeded")
    return sync, result.counts.delivered.total


def main(log_format: str, *flags: str) -> None:
    screen.EVERY = float(os.environ.get("EVERY", screen.EVERY))
    shown = screen_for(log_format, os.environ, quiet="quiet" in flags, verbose="verbose" in flags, document=False)
    overlap = Overlap[tuple[str, int]](4, threading.Event(), lambda: None, shown.glance)
    with shown:
        overlap.run(
            [partial(push, sync, shown.board) for sync in ("crm_contacts", "crm_people")],
            lambda ended: shown.say(f"SYNC {ended[0]} [+{ended[1]}]", "info", sync=ended[0]),
        )
    shown.say("Pushed 2 syncs", "info")


if __name__ == "__main__":
    main(*sys.argv[1:])
