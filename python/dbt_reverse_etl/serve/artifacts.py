"""Artifacts of a run, from the API into a folder: complete, or not there."""

from __future__ import annotations

import shutil
from collections.abc import Container
from pathlib import Path
from typing import Any

import orjson

from dbt_reverse_etl.delivery.fault_points import Step as FaultPoint
from dbt_reverse_etl.delivery.fault_points import no_step
from dbt_reverse_etl.serve.cloud import Cloud, CloudError, CloudRun
from dbt_reverse_etl.serve.event import SUCCESS
from dbt_reverse_etl.serve.position import Run, sync_folder, write
from dbt_reverse_etl.serve.steps import UnfitSteps, commands, join, wanted

MANIFEST, RESULTS = "manifest.json", "run_results.json"


class Unfit(Exception):
    """There is nothing to push; the text says why. `is_failure`: somebody should look at it."""

    def __init__(self, reason: str, *, is_failure: bool = False) -> None:
        super().__init__(reason)
        self.is_failure = is_failure


class Artifacts:
    """Artifacts of the runs of one account.

    Args:
        folder: where they are kept: one folder a run, made by a rename, so that it is there only as a whole.
        step: called between any two steps, so that a test may kill the process there.
    """

    def __init__(self, cloud: Cloud, folder: Path, step: FaultPoint = no_step) -> None:
        self._cloud, self._folder, self._step = cloud, folder, step

    def of(self, run: Run) -> list[Path]:
        """The folders to push, in their order; each holds manifest.json and run_results.json. None before `fetch`."""
        folder = self._folder / str(run.run_id)
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def fetch(self, run: Run, target: str, newer: Run | None) -> None:
        """Fetch them.

        Args:
            newer: a later run of the job that waits, too.

        Raises:
            Unfit: the run is not to be pushed.
            CloudError: the API did not give what was asked for.
            OSError: the files cannot be written.
        """
        told = self._told(run)
        self._step("asked")
        if newer and self._did_the_same(newer, told):
            raise Unfit(f"superseded by run {newer.run_id}, which did the same")
        results = {step.index: self._json(run, RESULTS, step.index)[1] for step in wanted(told.steps)}
        try:
            joined = join(results, target)
        except UnfitSteps as error:
            raise Unfit(str(error), is_failure=True) from None
        if not joined:
            raise Unfit("no step ran models")
        partial = self._folder / f"{run.run_id}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        for number, one in enumerate(joined, 1):
            place = partial / str(number)
            place.mkdir(parents=True)
            write(place / MANIFEST, self._json(run, MANIFEST, one.step)[0])
            write(place / RESULTS, orjson.dumps(one.results))
            sync_folder(place)
        sync_folder(partial)
        self._step("written")
        partial.rename(self._folder / str(run.run_id))
        sync_folder(self._folder)

    def keep_only(self, run_ids: Container[int]) -> None:
        """Remove those of every other run, and what a kill left half."""
        for folder in self._folder.iterdir():
            if not (folder.name.isdigit() and int(folder.name) in run_ids):
                shutil.rmtree(folder, ignore_errors=True)

    def _told(self, run: Run) -> CloudRun:
        told = self._cloud.run(run.run_id)
        if told.job_id != run.job_id:
            raise Unfit(f"it is a run of job {told.job_id}", is_failure=True)
        if told.status != SUCCESS:
            raise Unfit("a run without success")
        return told

    def _did_the_same(self, newer: Run, told: CloudRun) -> bool:
        """Then one push for both is enough, for a push goes from the position of each key to the newest snapshot."""
        try:
            later = self._cloud.run(newer.run_id)
        except CloudError:
            return False
        return later.status == SUCCESS and commands(later.steps) == commands(told.steps)

    def _json(self, run: Run, name: str, step: int) -> tuple[bytes, dict[str, Any]]:
        """The file as it came, and what it says: half a file is none, and is fetched again."""
        content = self._cloud.artifact(run.run_id, name, step)
        try:
            read = orjson.loads(content)
        except orjson.JSONDecodeError:
            read = None
        if not isinstance(read, dict):
            raise CloudError(f"{name} of step {step}: no JSON object", final=True)
        return content, read
