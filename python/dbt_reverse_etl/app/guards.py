"""What may not be sent without a word from the operator."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from dbt_reverse_etl.base.errors import GuardBlocked, Problem, raise_if_any
from dbt_reverse_etl.config.guards import Guards
from dbt_reverse_etl.config.validation import LONGEST_SHOWN, closest, described
from dbt_reverse_etl.delivery.counts import PerOperation

# What dbt puts around the name of a test: kind and package, of a unit test the model, too; a hash behind that of a generic one.
_HEAD_AND_HASH = re.compile(r"^test\.[^.]*\.|^unit_test\.[^.]*\.[^.]*\.|\.[0-9a-f]{10}$")
_OVERRIDE = re.compile(r"(.+)@[0-9]{1,18}:\+[0-9]{1,18}~[0-9]{1,18}-[0-9]{1,18}")


def refuse_unknown(overrides: Iterable[str], syncs: Collection[str] | None) -> None:
    """Look at overrides before anything else: one that names no sync would let nothing pass.

    Args:
        syncs: their names; None: nobody knows them yet.

    Raises:
        ConfigurationError: with every one that no blocked push has printed.
    """
    problems = []
    for override in overrides:
        shown = repr(override) if len(override) <= 2 * LONGEST_SHOWN else described(override)
        match = _OVERRIDE.fullmatch(override)
        if match is None:
            expected = "SYNC@SNAPSHOT:+INSERTS~UPDATES-DELETES"
            next_step = "copy it from the message of the blocked push"
            problems.append(Problem("override", shown, expected, next_step))
        elif syncs is not None and match[1] not in syncs:
            expected = f"one of a sync: {', '.join(sorted(syncs)) or 'there is none'}"
            next_step = f"{closest(match[1], sorted(syncs))}Correct or remove it"
            problems.append(Problem("override", shown, expected, next_step))
    raise_if_any(problems)


def check_guards(  # noqa: PLR0913  (each is a fact about the plan)
    sync: str,
    found: Collection[str],
    planned: PerOperation,
    head: int,
    overrides: Collection[str],
    *,
    of_one_row: bool = False,
    retry: bool = False,
) -> str:
    """Look at a plan before its first send. Raises GuardBlocked: the message prints the counts and the exact override.

    Args:
        found: what speaks against the push.
        head: snapshot to deliver.
        overrides: `SYNC@HEAD:+I~U-D`, each lets the push with this head and these counts pass.
        of_one_row: the plan is of one row, which the operator named by its key.
        retry: the plan has the rows that wait, too, which a push leaves out.

    Returns:
        The override that let it pass, or an empty text if none was needed.
    """
    word = f"{sync}@{head}:+{planned.insert}~{planned.update}-{planned.delete}"
    if not found or word in overrides:
        return word if found else ""
    again = f"dbt-reverse-etl push --select {sync} --override '{word}'"
    if of_one_row:  # its key is a row value, which no message repeats
        again = f"DBT_REVERSE_ETL_OVERRIDE='{word}' dbt-reverse-etl test {sync} --key ..."
    elif retry:
        again = f"DBT_REVERSE_ETL_OVERRIDE='{word}' dbt-reverse-etl retry --select {sync}"
    next_step = f"mend the model, or let this one pass: {again}"
    raise GuardBlocked(Problem(sync, "; ".join(found), "a push within its guards; nothing was sent", next_step))


def failed_tests(changelog: str, tests: Collection[str]) -> list[str]:
    """Tests, by unique id, that a changelog has failed and not passed since."""
    names = [_HEAD_AND_HASH.sub("", test) for test in tests]
    return [f"tests not passed of {changelog}: {', '.join(names)}"] if names else []


def asks_for_visible_rows(guards: Guards, planned: PerOperation, *, first: bool) -> bool:
    """Whether it matters how many rows a filter shows: to a share of rows that change, and to a plan of deletes alone, after which there may be none."""
    limited = ((guards.max_deletes, planned.delete), (guards.max_changes, _changes(planned, first)))
    return planned.delete == planned.total or any(limit and limit.percent and rows for limit, rows in limited)


def _changes(planned: PerOperation, first: bool) -> int:
    return planned.update + planned.delete if first else planned.total


def violations(guards: Guards, planned: PerOperation, visible: int, *, first: bool) -> list[str]:
    """What of the plan is more than the guards allow.

    Args:
        visible: rows of the head that the sync sees.
        first: the first load has not come to its end, so that inserts change nothing that is there.
    """
    before = max(1, visible - planned.insert + planned.delete)
    changes = _changes(planned, first)
    found = []
    if planned.delete and not visible:
        found.append(f"no row of the model that the sync sees, and {planned.delete} to be deleted")
    if guards.max_deletes and planned.delete > guards.max_deletes.rows_of(before):
        found.append(f"{planned.delete} deletes, of {before} rows (max_deletes: {guards.max_deletes})")
    if guards.max_changes and changes > guards.max_changes.rows_of(before):
        found.append(f"{changes} changes, of {before} rows (max_changes: {guards.max_changes})")
    return found
