"""Artifacts of a run, from the API into a folder: complete, or not there."""

from __future__ import annotations

import shutil
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from dbt_reverse_etl.base.durable import sync_directory, write
from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.base.sql import plain_relation
from dbt_reverse_etl.config.artifacts import run as invocation_of
from dbt_reverse_etl.config.manifest import LEDGER_NODE, sync_ids, syncs
from dbt_reverse_etl.delivery.progress import Step as FaultPoint
from dbt_reverse_etl.delivery.progress import no_step
from dbt_reverse_etl.serve.cloud import Cloud, CloudError, CloudRun
from dbt_reverse_etl.serve.event import SUCCESS
from dbt_reverse_etl.serve.position import Run
from dbt_reverse_etl.serve.steps import Json, Step, Unfit, commands, is_of_another_command, join, succeeded, wanted

MANIFEST, RESULTS = "manifest.json", "run_results.json"


def ledger_of(folder: Path) -> str:
    """The relation of the ledger that a manifest names, without quotes; empty if it names none."""
    return _ledger_in(orjson.loads((folder / MANIFEST).read_bytes()))


def syncs_of(folders: Sequence[Path]) -> tuple[frozenset[str], frozenset[str]]:
    """The syncs that a push of these folders has to deliver, and those that other commands push.

    Where one sync is wrong, each counts as one to deliver: a failure must not pass because of what cannot be told. A folder that
    cannot be read counts for nothing: its push says what is wrong.
    """
    due, known = set[str](), set[str]()
    for folder in folders:
        try:
            manifest, read = (orjson.loads((folder / name).read_bytes()) for name in (MANIFEST, RESULTS))
            try:
                due |= {sync.unique_id for sync in invocation_of(read, manifest).push}
                known |= {sync.unique_id for sync in syncs(manifest) if sync.enabled and sync.settings.push_on}
            except ReverseEtlError:
                due |= sync_ids(manifest)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return frozenset(due), frozenset(known - due)


def _ledger_in(manifest: Mapping[str, Any]) -> str:
    nodes = manifest.get("nodes") or {}
    return plain_relation(str((nodes.get(LEDGER_NODE) or {}).get("relation_name") or ""))


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

    def fetch(self, run: Run, target: str, newest: Run) -> None:
        """Fetch them.

        Args:
            newest: of the runs of the job that wait.

        Raises:
            Unfit: the run is not to be pushed.
            CloudError: the API did not give what was asked for.
            OSError: the files cannot be written.
        """
        now = self._as_it_is(run)
        self._step("asked")
        joined = self._joined(run, now, target)
        if not joined:
            raise Unfit("no step ran models")
        if newest.run_id != run.run_id and self._does_the_same(newest, run, now, target):
            raise Unfit(f"superseded by run {newest.run_id}, which did the same")
        partial = self._folder / f"{run.run_id}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        for number, (step, content) in enumerate(joined, 1):
            place = partial / str(number)
            place.mkdir(parents=True)
            write(place / MANIFEST, self._json(run, MANIFEST, step)[0])
            write(place / RESULTS, orjson.dumps(content))
            sync_directory(place)
        sync_directory(partial)
        self._step("written")
        partial.rename(self._folder / str(run.run_id))
        sync_directory(self._folder)

    def remove(self, run: Run) -> None:
        """Remove those of a run that nobody may push."""
        shutil.rmtree(self._folder / str(run.run_id), ignore_errors=True)

    def keep_only(self, run_ids: Container[int]) -> None:
        """Remove those of every other run, and what a kill left half."""
        for folder in self._folder.iterdir():
            if not (folder.name.isdigit() and int(folder.name) in run_ids):
                shutil.rmtree(folder, ignore_errors=True)

    def _as_it_is(self, run: Run) -> CloudRun:
        now = self._cloud.run(run.run_id)
        if now.job_id != run.job_id:
            raise Unfit(f"it is a run of job {now.job_id}", is_failure=True)
        if now.status != SUCCESS:
            raise Unfit("a run without success")
        if now.override:
            found, expected = f"a run with {now.override}", "one that writes to the tables of production"
            next_step = "run pull requests and tries in a job that is not listed"
            raise Unfit(f"found {found}; expected {expected}. Next: {next_step}", is_failure=True)
        return now

    def _joined(self, run: Run, now: CloudRun, target: str) -> list[tuple[int, Json]]:
        return join({step.index: self._results(run, step) for step in wanted(now.steps)}, target)

    def _results(self, run: Run, step: Step) -> Json:
        """Of this very step: an API that does not heed its number gives those of the last one."""
        read = self._json(run, RESULTS, step.index)[1]
        if is_of_another_command(read, step):
            raise CloudError(f"{RESULTS} of step {step.index}: results of another command than dbt {step.command}")
        return read

    def _does_the_same(self, newest: Run, run: Run, now: CloudRun, target: str) -> bool:
        """Then one push for both is enough: a push goes from the position of each key to the newest snapshot. What a selector such as
        `state:modified` selects may differ from run to run.
        """
        try:
            later = self._cloud.run(newest.run_id)
            is_fit = later.status == SUCCESS and not later.override
            if not is_fit or commands(later.steps) != commands(now.steps):
                return False
            here, there = self._joined(run, now, target), self._joined(newest, later, target)
            return succeeded(here) <= succeeded(there) and self._ledger(run, here) == self._ledger(newest, there)
        except (CloudError, Unfit):
            return False

    def _ledger(self, run: Run, joined: Sequence[tuple[int, Json]]) -> str:
        """Of its last step. One with another ledger than that of the target is refused, and must replace no other run."""
        return _ledger_in(self._json(run, MANIFEST, joined[-1][0])[1])

    def _json(self, run: Run, name: str, step: int) -> tuple[bytes, dict[str, Any]]:
        """The file as it came, and its content: half a file counts as none, and is fetched again."""
        content = self._cloud.artifact(run.run_id, name, step)
        try:
            read = orjson.loads(content)
        except orjson.JSONDecodeError:
            read = None
        if not isinstance(read, dict):
            raise CloudError(f"{name} of step {step}: no JSON object")
        return content, read
