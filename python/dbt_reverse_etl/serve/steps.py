"""Which steps of a run matter, and what they come to together. Pure.

A job may run dbt several times: `dbt run` and then `dbt test`, or one selection after the other. Its steps are joined: the
last result of each node counts, as if one command had brought it, so that one push knows all models and all tests.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from dbt_reverse_etl.base.dbt_options import command_of
from dbt_reverse_etl.serve.event import SUCCESS

Json = Mapping[str, Any]

PUSHING = frozenset({"run", "build", "retry"})
_WANTED = PUSHING | {"test"}
_EXCLUDES = ("exclude", "exclude_resource_types")
_DOCS = "generate"  # what a trailing step writes; no retry that counts does
_BROUGHT = frozenset({"success", "no-op"})
_TESTS = ("test.", "unit_test.")


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
        return command_of(after)


class Unfit(Exception):
    """A run has nothing to push; the text is the reason. `is_failure`: somebody should look at it."""

    def __init__(self, reason: str, *, is_failure: bool = False) -> None:
        super().__init__(reason)
        self.is_failure = is_failure


def wanted(steps: Iterable[Step]) -> list[Step]:
    """The steps that ended well and whose results count; none of them if no step ran models."""
    found = [step for step in steps if step.status == SUCCESS and step.command in _WANTED]
    return found if any(step.command in PUSHING for step in found) else []


def is_of_another_command(read: Json, step: Step) -> bool:
    """Whether these are no results of the step. A retry writes the name of the command that it repeats, which may be any."""
    args = read.get("args")
    which = args.get("which") if isinstance(args, Mapping) else None
    return which == _DOCS if step.command == "retry" else which not in (None, step.command)


def commands(steps: Iterable[Step]) -> list[str]:
    """What the steps did, to tell whether two runs did the same."""
    return [step.name for step in wanted(steps)]


def succeeded(joined: Iterable[tuple[int, Json]]) -> set[str]:
    """The nodes that these results brought."""
    return {row["unique_id"] for _, read in joined for row in read["results"] if row.get("status") in _BROUGHT}


def join(results: Mapping[int, Json], target: str) -> list[tuple[int, Json]]:
    """Results to be pushed together, each with the step whose manifest goes with them: one for each command with its exclusions that
    ran models, nearly always one. Each has the tests of all steps: one of them may be of several models.

    Args:
        results: run_results.json by the number of its step.
        target: the dbt target for which they are to be pushed.

    Raises:
        Unfit: a step ran with another target, or its file is not what dbt writes.
    """
    try:
        counted = {step: read for step, read in sorted(results.items()) if not _holds_no_rows(read)}
        _refuse_other_target(counted, target)
        last = {row["unique_id"]: (step, row) for step, read in counted.items() for row in read["results"]}.values()
        ways = {step: _way(read) for step, read in counted.items()}
        groups = [[step for step in ways if ways[step] == one] for one in dict.fromkeys(ways.values())]
        return [
            (
                group[-1],
                {**counted[group[-1]], "results": [row for step, row in last if step in group or _is_test(row)]},
            )
            for group in groups
            if ways[group[0]][0] in PUSHING and any(step in group for step, _ in last)
        ]
    except (KeyError, TypeError, AttributeError):
        raise Unfit("run_results.json is not what dbt writes", is_failure=True) from None


def _way(read: Json) -> tuple[Any, ...]:
    """Command and exclusions: steps that differ in them push other syncs, although they may run the same models."""
    return (read["args"]["which"], *(_terms(read["args"].get(name) or ()) for name in _EXCLUDES))


def _terms(given: str | Iterable[str]) -> frozenset[str]:
    """Their order says nothing, nor whether they came as one text."""
    return frozenset(" ".join([given] if isinstance(given, str) else map(str, given)).split())


def _is_test(row: Json) -> bool:
    return str(row["unique_id"]).startswith(_TESTS)


def _holds_no_rows(read: Json) -> bool:
    args = read.get("args") or {}
    return bool(args.get("empty") or args.get("sample"))


def _refuse_other_target(counted: Mapping[int, Json], target: str) -> None:
    for step, read in counted.items():
        ran = read["args"].get("target")
        if ran and ran != target:
            raise Unfit(f"step {step} ran with target {ran}, and the job is listed with {target}", is_failure=True)
