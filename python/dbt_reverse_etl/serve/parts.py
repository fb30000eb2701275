"""The parts that `serve` and `poll` share, put together for one queue."""

from __future__ import annotations

import fcntl
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dbt_reverse_etl.base.errors import Problem, SyncBusy
from dbt_reverse_etl.base.redaction import redact
from dbt_reverse_etl.config.profiles import profile_directories
from dbt_reverse_etl.delivery.fault_points import Step, no_step
from dbt_reverse_etl.serve.cloud import Cloud
from dbt_reverse_etl.serve.fetching import Fetcher
from dbt_reverse_etl.serve.metrics import Metrics
from dbt_reverse_etl.serve.polling import Poller
from dbt_reverse_etl.serve.pushing import PushProcess
from dbt_reverse_etl.serve.queue import Queue
from dbt_reverse_etl.serve.reports import Reports
from dbt_reverse_etl.serve.settings import ServeSettings, load_settings
from dbt_reverse_etl.serve.worker import Patience, Say, Worker


@dataclass(frozen=True)
class Surroundings:
    """Where a service runs, and what it may be told for a test.

    Attributes:
        profiles_dir: where profiles.yml stands, if that was named.
        patience: how long to wait between tries.
        step: called between any two steps.
    """

    project_dir: Path
    profiles_dir: Path | None
    env: Mapping[str, str]
    tell: Say
    patience: Patience = field(default_factory=Patience)
    step: Step = no_step

    def settings(self, *, webhook: bool) -> ServeSettings:
        """What profiles.yml says. Raises ConfigurationError with every problem."""
        directories = profile_directories(self.profiles_dir, self.project_dir, self.env)
        return load_settings(directories, self.env, webhook=webhook)

    def say(self, text: str, level: str) -> None:
        """A line of the log, without any secret."""
        self.tell(redact(text), level)

    def push_arguments(self, folder: Path, target: str) -> Sequence[str]:
        """What `dbt-reverse-etl` is told, to push what stands in the folder."""
        return ["push", *self._place(folder, target), "--if-due"]

    def report_arguments(self, folder: Path, target: str, file: Path) -> Sequence[str]:
        """The same, to write a report."""
        return ["report", *self._place(folder, target), "--out", str(file.resolve())]

    def _place(self, folder: Path, target: str) -> list[str]:
        profiles = ["--profiles-dir", str(self.profiles_dir.resolve())] if self.profiles_dir else []
        place = ["--project-dir", str(self.project_dir), *profiles]
        return [*place, "--target-path", str(folder.resolve()), "--target", target]


@dataclass(frozen=True)
class Parts:
    """Everything that works on one queue."""

    queue: Queue
    metrics: Metrics
    worker: Worker
    reports: Reports
    poller: Poller
    stopping: threading.Event

    def stop(self) -> None:
        """Take nothing new, and tell a push that runs to end."""
        self.stopping.set()
        self.worker.wake.set()


@contextmanager
def opened(settings: ServeSettings, around: Surroundings) -> Iterator[Parts]:
    """The parts, while no other process works on the queue.

    Raises:
        SyncBusy: another one does.
    """
    folder = around.project_dir / settings.queue
    artifacts = folder / "runs"
    artifacts.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        queue = Queue(folder / "queue.db")
        metrics = Metrics(queue)
        cloud = Cloud(settings.api(), metrics.answered)
        try:
            stopping, wake = threading.Event(), threading.Event()
            process = PushProcess(_command(settings), folder / "push.lock", stopping)
            reports = Reports(folder / "reports", process, around.report_arguments, around.say, wake.set)
            worker = Worker(
                queue=queue,
                fetcher=Fetcher(cloud, queue, artifacts, around.step),
                process=process,
                targets=settings.targets,
                push_arguments=around.push_arguments,
                metrics=metrics,
                reports=reports,
                say=around.say,
                stopping=stopping,
                wake=wake,
                patience=around.patience,
                step=around.step,
            )
            poller = Poller(cloud, queue, settings.targets, around.say)
            yield Parts(queue, metrics, worker, reports, poller, stopping)
        finally:
            cloud.close()
            queue.close()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The system drops the lock when the process is gone, however it went."""
    with (folder / "serve.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found, expected = "another `serve` or `poll` that works on it", "one for each queue"
            raise SyncBusy(Problem(str(folder), found, expected, "stop it, or name another queue")) from None
        yield


def _command(settings: ServeSettings) -> list[str]:
    """The command of this very environment, unless another is set."""
    beside = Path(sys.executable).with_name("dbt-reverse-etl")
    own = str(beside) if beside.is_file() else shutil.which("dbt-reverse-etl") or "dbt-reverse-etl"
    return settings.push_command or [own]
