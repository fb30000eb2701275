"""What is due beside the newest artifacts of dbt, and what of artifacts that come again was pushed before or overtaken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dbt_reverse_etl.app.identity import id_of, requests_of
from dbt_reverse_etl.app.push import Pusher, Say
from dbt_reverse_etl.app.push_report import OVERTAKEN, Report
from dbt_reverse_etl.app.sync import OneSync
from dbt_reverse_etl.base.errors import ExitCode, Problem, ReverseEtlError
from dbt_reverse_etl.config.artifacts import Invocation
from dbt_reverse_etl.config.destinations import ResolvedSync
from dbt_reverse_etl.delivery.health import ended, reached_its_end
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.warehouse.overview import OVER, Overview, Refusal


def left_behind(resolved: Iterable[ResolvedSync], overview: Overview) -> set[str]:
    """The names of the syncs whose newest push did not end well or left a row, or of whose recovery nobody has heard."""

    def is_left(one: ResolvedSync) -> bool:
        name, sync_id = one.sync.name, id_of(one)
        state = overview.states.get(sync_id, State())
        is_bad = not ended(state) or bool(state.undelivered or state.claims)
        is_refused = overview.refused(name, sync_id) is not None or _is_refused_elsewhere(one, state, overview)
        return is_bad or is_refused or overview.must_tell(name)

    return {one.sync.name for one in resolved if is_left(one)}


def _is_refused_elsewhere(one: ResolvedSync, state: State, overview: Overview) -> bool:
    """Who corrects the address of a destination repeats the push that did not reach it."""
    found = overview.refusals.get(one.sync.name, Refusal(OVER))
    is_newer = state.started_at is None or found.at is None or found.at > state.started_at
    return found.status != OVER and found.sync_id != id_of(one) and is_newer


def behind(resolved: Iterable[ResolvedSync], overview: Overview, pusher: Pusher) -> set[str]:
    """The names of the syncs for which a push has something to do or to say."""
    return left_behind(resolved, overview) | {one.sync.name for one in resolved if pusher.is_behind(one, overview)}


def still_due(
    invocation: Invocation, due: Sequence[ResolvedSync], overview: Overview, pusher: Pusher, say: Say
) -> tuple[list[ResolvedSync], list[Report]]:
    """Of artifacts that may come twice, or late: the syncs that are neither delivered nor overtaken, and reports of those that are overtaken: their
    rows have not arrived, and a later run has captured the changelog, so that only its results can tell whether they may be pushed.
    """
    pushed = _pushed_before(invocation, due, overview, pusher)
    left: list[ResolvedSync] = []
    overtaken: list[Report] = []
    for one in due:
        if one.sync.name in pushed:
            say(f"{one.sync.name}: pushed before with these results", "info")
        elif _overtaken(one, pusher) is None:
            left.append(one)
        elif _is_delivered(one, overview, pusher):
            say(f"{one.sync.name}: delivered with the results of a later run", "info")
        else:
            message = "not pushed: a later run has captured more, and not all of its rows have arrived yet"
            say(f"{one.sync.name}: {message}", "warn")
            overtaken.append(OneSync(pusher, one, overview).untouched(OVERTAKEN, ExitCode.OVERTAKEN, message))
    return left, overtaken


def refuse_older(due: Iterable[ResolvedSync], pusher: Pusher) -> None:
    """A later run captured more: pushing its changes under the older results' tests would be a lie."""
    for one in due:
        if found := _overtaken(one, pusher):
            expected = "the results of the newest run"
            raise ReverseEtlError(Problem("run_results.json", found, expected, "dbt run, then push"))


def _pushed_before(invocation: Invocation, due: Iterable[ResolvedSync], overview: Overview, pusher: Pusher) -> set[str]:
    def is_pushed(one: ResolvedSync) -> bool:
        started = overview.started.get(id_of(one))
        same = started is not None and started.invocation_id == invocation.invocation_id
        is_open = bool(requests_of(one, overview, pusher.resolved)) or overview.must_tell(one.sync.name)
        ran = reached_its_end(overview.states.get(id_of(one), State()).status)  # an operation sends nothing
        return same and ran and not is_open and pusher.health(one, overview).is_well

    return {one.sync.name for one in due if is_pushed(one)}


def _is_delivered(one: ResolvedSync, overview: Overview, pusher: Pusher) -> bool:
    """Whether pushes of a later run have brought the destination as far as these results."""
    known, state = pusher.known[one.sync.changelog.unique_id], overview.states.get(id_of(one), State())
    reached = state.changelog == known.changelog and all(place.snapshot >= known.snapshot for place in state.positions)
    return reached and ended(state) and not state.claims and pusher.health(one, overview).is_well


def _overtaken(one: ResolvedSync, pusher: Pusher) -> str | None:
    changelog = one.sync.changelog
    known, head = pusher.known.get(changelog.unique_id), pusher.head(changelog.relation_name)
    if known and head and (known.snapshot, known.changelog) != (head.snapshot, head.changelog):
        return f"snapshot {known.snapshot} of {changelog.name}; its changelog is at {head.snapshot}"
    return None
