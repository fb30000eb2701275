"""Artifacts of a run, from the API into a folder: complete, or not there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import orjson

from dbt_reverse_etl.delivery.fault_points import Step as FaultPoint
from dbt_reverse_etl.delivery.fault_points import no_step
from dbt_reverse_etl.serve.cloud import Cloud, CloudError, CloudRun
from dbt_reverse_etl.serve.event import SUCCESS
from dbt_reverse_etl.serve.queue import Queue, QueuedRun
from dbt_reverse_etl.serve.steps import UnfitSteps, commands, join, wanted

_PARTIAL = ".partial"
_UNFINISHED = frozenset({1, 2, 3})  # queued, starting, running


class Unfit(Exception):
    """There is nothing to push; the text says why. `is_failure`: somebody should look at it."""

    def __init__(self, reason: str, *, is_failure: bool = False) -> None:
        super().__init__(reason)
        self.is_failure = is_failure


class Fetcher:
    """Fetches runs of one account into folders of their own.

    Args:
        folder: where they stand; one folder a run, made by a rename, so that it is there only as a whole.
        step: called between any two steps, so that a test may kill the process there.
    """

    def __init__(self, cloud: Cloud, queue: Queue, folder: Path, step: FaultPoint = no_step) -> None:
        self._cloud, self._queue, self._folder, self._step = cloud, queue, folder, step

    def fetch(self, run: QueuedRun, target: str) -> list[Path]:
        """The folders to push, in their order; each holds manifest.json and run_results.json.

        Raises:
            Unfit: the run is not to be pushed.
            CloudError: the API did not give what was asked for.
            OSError: the files cannot be written.
        """
        folder = self._folder / str(run.run_id)
        if not folder.is_dir():
            self._download(run, target, folder)
        return sorted(folder.iterdir())

    def remove(self, run_id: int) -> None:
        """Forget the artifacts of a run."""
        for name in (str(run_id), f"{run_id}{_PARTIAL}"):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def _download(self, run: QueuedRun, target: str, folder: Path) -> None:
        told = self._told(run)
        self._step("asked")
        newer = self._superseded_by(run, told)
        if newer is not None:
            raise Unfit(f"superseded by run {newer}, which did the same")
        steps = wanted(told.steps)
        if not steps:
            raise Unfit("no step ran models")
        results = {step.index: self._json(run.run_id, "run_results.json", step.index) for step in steps}
        try:
            joined = join(results, target)
        except UnfitSteps as error:
            raise Unfit(str(error), is_failure=True) from None
        if not joined:
            raise Unfit("no step ran models")
        partial = folder.with_name(f"{folder.name}{_PARTIAL}")
        shutil.rmtree(partial, ignore_errors=True)
        for number, one in enumerate(joined, 1):
            place = partial / str(number)
            place.mkdir(parents=True)
            _write(place / "manifest.json", self._cloud.artifact(run.run_id, "manifest.json", one.step))
            _write(place / "run_results.json", orjson.dumps(one.results))
        _sync(partial)
        self._step("written")
        partial.rename(folder)
        _sync(self._folder)

    def _told(self, run: QueuedRun) -> CloudRun:
        """The run as the API tells of it: a signed event may be old, or of a run that was changed."""
        told = self._cloud.run(run.run_id)
        if told.job_id != run.job_id:
            raise Unfit(f"it is a run of job {told.job_id}", is_failure=True)
        if told.status in _UNFINISHED:
            raise CloudError("the run has not ended")
        if told.status != SUCCESS:
            raise Unfit("a run without success")
        return told

    def _superseded_by(self, run: QueuedRun, told: CloudRun) -> int | None:
        """A later run of the job that waits behind this one and ran the same commands: one push for both is enough,
        for a push goes from the position of each key to the newest snapshot."""
        newer = self._queue.newer(run)
        if newer is None:
            return None
        try:
            later = self._cloud.run(newer.run_id)
        except CloudError:
            return None
        did_the_same = later.status == SUCCESS and commands(later.steps) == commands(told.steps)
        return newer.run_id if did_the_same else None

    def _json(self, run_id: int, name: str, step: int) -> dict[str, object]:
        try:
            read = orjson.loads(self._cloud.artifact(run_id, name, step))
        except orjson.JSONDecodeError:
            read = None
        if not isinstance(read, dict):
            raise CloudError(f"{name} of step {step}: no JSON object", final=True)
        return read


def _write(file: Path, content: bytes) -> None:
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    _sync(file.parent)


def _sync(folder: Path) -> None:
    """Names are on the disk only when their folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
