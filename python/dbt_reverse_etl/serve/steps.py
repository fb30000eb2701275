"""Which steps of a run matter, and what they come to together. Pure.

A job may run dbt several times: `dbt run` and then `dbt test`, or one selection after the other. Its steps are joined: the
last result of each node counts, as if one command had brought it, so that one push knows all models and all tests.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from dbt_reverse_etl.serve.event import SUCCESS

Json = Mapping[str, Any]

PUSHING = frozenset({"run", "build", "retry"})
_WANTED = PUSHING | {"test"}
_COMMANDS = _WANTED | {
    "clean", "clone", "compile", "debug", "deps", "docs", "init", "list", "ls", "parse", "run-operation", "seed", "show",
    "snapshot", "source",
}  # fmt: skip


class Step(BaseModel, frozen=True):
    """A step of a run: its number, from 1, its name, such as "Invoke dbt with `dbt run`", and how it ended."""

    index: int
    name: str
    status: int

    @property
    def command(self) -> str:
        """What dbt did: `run`, `test` ...; empty if it is no command of dbt."""
        text = self.name.partition("`")[2].rpartition("`")[0] or self.name
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        after = words[words.index("dbt") + 1 :] if "dbt" in words else []
        return next((word for word in after if word in _COMMANDS), "")


class UnfitSteps(Exception):
    """The steps cannot be pushed; the text says why."""


@dataclass(frozen=True)
class Joined:
    """Results to be pushed together, and the step whose manifest goes with them."""

    step: int
    results: dict[str, Any]


def wanted(steps: Iterable[Step]) -> list[Step]:
    """The steps that ended well and whose results count; none of them if no step ran models."""
    found = [step for step in steps if step.status == SUCCESS and step.command in _WANTED]
    return found if any(step.command in PUSHING for step in found) else []


def commands(steps: Iterable[Step]) -> list[str]:
    """What the steps did, to tell whether two runs did the same."""
    return [step.name for step in wanted(steps)]


def join(results: Mapping[int, Json], target: str) -> list[Joined]:
    """One `Joined` for each command that ran models; nearly always one.

    Args:
        results: run_results.json by the number of its step.
        target: the dbt target for which they are to be pushed.

    Raises:
        UnfitSteps: a step ran with another target, or its file is not what dbt writes.
    """
    try:
        counted = {step: read for step, read in sorted(results.items()) if not _holds_no_rows(read)}
        _refuse_other_target(counted, target)
        last = {result["unique_id"]: step for step, read in counted.items() for result in read["results"]}
        which = {step: read["args"]["which"] for step, read in counted.items()}
        tests = {step for step, command in which.items() if command not in PUSHING}
        grouped = {command: step for step, command in which.items() if step not in tests}
        groups = ({step for step, command in which.items() if command == one} for one in grouped)
        joined = [_joined(counted, group, tests, last) for group in groups]
    except (KeyError, TypeError, AttributeError):
        raise UnfitSteps("run_results.json is not what dbt writes") from None
    return [one for one in joined if one is not None]


def _joined(counted: Mapping[int, Json], group: set[int], tests: set[int], last: Mapping[str, int]) -> Joined | None:
    rows = {
        step: [result for result in counted[step]["results"] if last[result["unique_id"]] == step]
        for step in sorted(group | tests)
    }
    if not any(rows[step] for step in group):
        return None
    newest = max(group)
    return Joined(newest, {**counted[newest], "results": [row for step in rows for row in rows[step]]})


def _holds_no_rows(read: Json) -> bool:
    args = read.get("args") or {}
    return bool(args.get("empty") or args.get("sample"))


def _refuse_other_target(counted: Mapping[int, Json], target: str) -> None:
    for step, read in counted.items():
        ran = read["args"].get("target")
        if ran and ran != target:
            raise UnfitSteps(f"step {step} ran with target {ran}, and the job is listed with {target}")
