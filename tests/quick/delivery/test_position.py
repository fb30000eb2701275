"""Facts fold to a state: positions cover all buckets, only the newest fence counts, doubts survive every order."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.delivery.counts import NO_COUNTS, NO_ROWS, Counts, PerOperation
from dbt_reverse_etl.delivery.facts import (
    BUCKETS,
    Abandoned,
    Claim,
    ClaimsSettled,
    DoubtRecorded,
    Fact,
    Heartbeat,
    Range,
    RunFinished,
    RunStarted,
    Undelivered,
    WaveAcknowledged,
)
from dbt_reverse_etl.delivery.position import State, close, fold, move, normalise, oldest_needed

NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)
LATER = NOW + timedelta(minutes=10)
ALL = Range(0, BUCKETS, 0, "a")

buckets = st.integers(0, BUCKETS)
spans = st.tuples(buckets, buckets).filter(lambda span: span[0] != span[1]).map(lambda span: (min(span), max(span)))
ranges = st.builds(lambda span, at, spec: Range(*span, at, spec), spans, st.integers(0, 9), st.sampled_from("ab"))
per_operation = st.builds(PerOperation, *[st.integers(0, 99)] * 3)


def claim(name: str, lo: int = 0, hi: int = BUCKETS, snapshot: int = 5) -> Claim:
    return Claim(name, lo, hi, snapshot, "a")


def started(fence: int = 1, claims: tuple[Claim, ...] = (), undelivered: tuple[Undelivered, ...] = ()) -> RunStarted:
    run = f"run{fence}"
    return RunStarted(
        "s", fence, run, NOW, 5, "a", {"a": "{}"}, (ALL,), claims, undelivered, LATER, "host", "name", "uuid"
    )


def acknowledged(
    lo: int, hi: int, seq: int, *, fence: int = 1, closes: tuple[str, ...] = (), left: tuple[Undelivered, ...] = ()
) -> WaveAcknowledged:
    return WaveAcknowledged("s", fence, seq, NOW, lo, hi, 5, "a", NO_COUNTS, left, closes, (), LATER)


def undelivered(key: str, bucket: int, *, changed: int = 5) -> Undelivered:
    return Undelivered(key, bucket, None, 1, False, False, changed, "insert", "rejected", "why", 1, NOW, None)


def finished(status: str = "succeeded", releases: tuple[str, ...] = ()) -> RunFinished:
    return RunFinished("s", 1, 99, NOW, status, NO_COUNTS, NO_ROWS, "said", releases)


@settings(deadline=None)
@given(st.lists(ranges, max_size=12))
def test_positions_always_cover_all_buckets_once_and_equal_neighbours_are_merged(moves: list[Range]) -> None:
    positions: tuple[Range, ...] = (ALL,)
    truth = {bucket: (0, "a") for place in moves for bucket in (place.lo, place.hi - 1)}
    for place in moves:
        positions = move(positions, place)
        truth.update({b: (place.snapshot, place.spec) for b in truth if place.lo <= b < place.hi})
    assert positions == normalise(positions)
    assert positions[0].lo == 0
    assert positions[-1].hi == BUCKETS
    for left, right in pairwise(positions):
        assert left.hi == right.lo
        assert (left.snapshot, left.spec) != (right.snapshot, right.spec)
    for bucket, at in truth.items():
        place = next(place for place in positions if place.lo <= bucket < place.hi)
        assert (place.snapshot, place.spec) == at


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([], id="nothing"),
        pytest.param([Range(0, 9, 1, "a")], id="a gap at the end"),
        pytest.param([Range(1, BUCKETS, 1, "a")], id="a gap at the start"),
        pytest.param([Range(0, 9, 1, "a"), Range(8, BUCKETS, 1, "a")], id="an overlap"),
    ],
)
def test_positions_with_a_gap_or_an_overlap_are_refused(places: list[Range]) -> None:
    with pytest.raises(ValueError, match="exactly once"):
        normalise(places)


@settings(deadline=None)
@given(st.lists(st.tuples(spans, st.sampled_from("xyz")), max_size=6), st.sets(st.sampled_from("xyz")), spans)
def test_closing_takes_exactly_the_range_out_of_exactly_the_named_claims(
    open_claims: list[tuple[tuple[int, int], str]], ids: set[str], span: tuple[int, int]
) -> None:
    claims = [claim(name, *place) for place, name in open_claims]
    rest = close(claims, ids, *span)
    for bucket in {b for c in claims for b in (c.lo, c.hi - 1)} | {span[0], span[1] - 1}:
        before = sorted(c.id for c in claims if c.lo <= bucket < c.hi)
        after = sorted(c.id for c in rest if c.lo <= bucket < c.hi)
        closed = span[0] <= bucket < span[1]
        assert after == [name for name in before if not (closed and name in ids)]
    assert all(c.lo < c.hi for c in rest)


def test_no_facts_are_position_zero_everywhere_with_the_current_spec() -> None:
    state = fold([]).for_spec("b", "{}")
    assert state == State(positions=(Range(0, BUCKETS, 0, "b"),), specs={"b": "{}"})
    assert state.first
    assert state.finished
    assert state.is_at(0, "b")


def test_a_state_keeps_the_text_of_every_spec_that_a_position_or_a_claim_needs_and_no_other() -> None:
    old = replace(started(claims=(replace(claim("x"), spec="c"),)), specs={"a": "1", "b": "2", "c": "3"})
    assert fold([old]).for_spec("d", "4").specs == {"a": "1", "c": "3", "d": "4"}


def test_an_acknowledgement_replaces_the_undelivered_rows_of_its_range_and_no_other() -> None:
    before = (undelivered("in", 10), undelivered("edge", 20), undelivered("out", 30))
    state = fold([started(undelivered=before), acknowledged(10, 20, 1, left=(undelivered("new", 11),))])
    assert set(state.undelivered) == {"edge", "out", "new"}
    assert state.positions == (Range(0, 10, 0, "a"), Range(10, 20, 5, "a"), Range(20, BUCKETS, 0, "a"))


def test_an_acknowledgement_closes_only_claims_that_its_run_knew_and_only_within_its_range() -> None:
    start = started(claims=(claim("known"), claim("foreign")))
    state = fold([start, acknowledged(0, 100, 1, closes=("known",))])
    assert state.claims == (claim("known", 100), claim("foreign"))


@pytest.mark.guarantee("Leases and rivals")
def test_a_late_acknowledgement_of_an_older_fence_never_acknowledges() -> None:
    facts: list[Fact] = [started(1), started(2, claims=(claim("x"),)), acknowledged(0, BUCKETS, 1, closes=("x",))]
    assert fold(facts) == fold([started(2, claims=(claim("x"),))])


def test_a_doubt_stays_open_even_where_the_acknowledgement_of_its_range_is_read_after_it() -> None:
    doubt = replace(claim("d"), everything=True)
    recorded = DoubtRecorded("s", 1, NOW, ("x",), (doubt,), {"b": "2"})
    facts: list[Fact] = [started(claims=(claim("x"), doubt)), recorded, acknowledged(0, BUCKETS, 1, closes=("d", "x"))]
    state = fold(facts)
    assert state.claims == (doubt,)
    assert state.specs == {"a": "{}", "b": "2"}


def test_a_settled_claim_moves_the_position_and_takes_the_undelivered_rows_with_it() -> None:
    place = Range(0, 100, 4, "a")
    start = started(claims=(claim("done"), claim("gone")), undelivered=(undelivered("k", 3), undelivered("o", 300)))
    settled = ClaimsSettled("s", 1, 1, NOW, (place,), ("done", "gone"), (claim("next"),), {})
    state = fold([start, settled])
    assert (state.positions[0], state.claims, set(state.undelivered)) == (place, (claim("next"),), {"o"})


def test_a_finished_run_releases_what_it_surely_did_not_apply() -> None:
    state = fold([started(claims=(claim("old"), claim("unsent"))), finished("failed", releases=("unsent",))])
    assert state.claims == (claim("old"),)
    assert (state.finished, state.status, state.message) == (True, "failed", "said")


def test_a_heartbeat_only_ever_lengthens_the_lease() -> None:
    beats = [Heartbeat("s", 1, NOW, LATER + timedelta(minutes=m)) for m in (5, 1)]
    assert fold([started(), *beats]).lease_until == LATER + timedelta(minutes=5)


def test_a_run_is_running_until_it_finished() -> None:
    assert (fold([started()]).finished, fold([started()]).status) == (False, "running")


@pytest.mark.guarantee("Leases and rivals")
@settings(deadline=None)
@given(st.data())
def test_the_order_in_which_facts_are_read_does_not_matter(data: st.DataObject) -> None:
    doubt = DoubtRecorded("s", 2, NOW, ("w0",), (replace(claim("d"), everything=True),), {})
    facts: list[Fact] = [started(1), acknowledged(0, 9, 1), started(2, claims=(claim("w0", 0, 50),)), doubt]
    cuts = [0, 50, 700, BUCKETS]
    for seq, (lo, hi) in enumerate(pairwise(cuts), 1):
        wave = acknowledged(lo, hi, seq, fence=2, closes=(f"w{seq - 1}",))
        facts.append(replace(wave, snapshot=seq, claims=(claim(f"w{seq}", hi),) if hi < BUCKETS else ()))
    facts += [replace(finished(), fence=2), Heartbeat("s", 2, NOW, LATER)]
    assert fold(data.draw(st.permutations(facts))) == fold(facts)


def test_pruning_keeps_what_positions_claims_undelivered_rows_and_unfinished_runs_still_need() -> None:
    at_five = replace(started(), positions=(replace(ALL, snapshot=5),))
    done = [finished()]
    assert oldest_needed(fold([at_five, *done])) == 5
    assert oldest_needed(fold([at_five, acknowledged(0, 10, 1), *done])) == 5
    assert oldest_needed(fold([replace(at_five, claims=(claim("x", snapshot=4),)), *done])) == 4
    assert oldest_needed(fold([replace(at_five, undelivered=(undelivered("k", 1, changed=3),)), *done])) == 3
    assert oldest_needed(fold([replace(at_five, head=2)])) == 2
    assert oldest_needed(fold([replace(at_five, head=2), *done])) == 5
    assert oldest_needed(fold([replace(at_five, abandoned=(Abandoned(0, 1, NOW),)), *done])) == 1


def test_pruning_keeps_what_an_unfinished_run_began_with_because_a_row_may_have_changed_before_what_is_left() -> None:
    places = (Range(0, 100, 0, "x"), Range(100, 200, 3, "x"), Range(200, BUCKETS, 5, "x"))
    begun = [replace(started(), positions=places, head=9), replace(acknowledged(0, 300, 1), snapshot=9)]
    assert oldest_needed(fold(begun)) == 3, "position 0 holds nothing"
    assert oldest_needed(fold([*begun, finished()])) == 5
    claimed = replace(started(), positions=(replace(ALL, snapshot=5),), claims=(claim("x", snapshot=4),), head=9)
    over = replace(acknowledged(0, BUCKETS, 1, closes=("x",)), snapshot=9)
    assert oldest_needed(fold([claimed, over])) == 4
    listed = replace(claimed, claims=(), undelivered=(undelivered("k", 1, changed=2),))
    assert oldest_needed(fold([listed, over])) == 2


@settings(deadline=None)
@given(per_operation, per_operation, per_operation, per_operation)
def test_counts_balance_when_every_planned_row_is_accounted_for_and_only_then(
    delivered: PerOperation, rejected: PerOperation, failed: PerOperation, skipped: PerOperation
) -> None:
    planned = delivered + rejected + failed + skipped
    counts = Counts(planned, delivered, rejected, failed, skipped)
    assert counts.balanced
    assert (counts + counts).balanced
    assert not replace(counts, planned=planned + PerOperation(update=1)).balanced
    # A row that changes its operation on the way is a lost row and an invented one.
    assert not replace(counts, planned=planned + PerOperation(1, 0, 0) - PerOperation(0, 0, 1)).balanced


def test_an_unknown_operation_is_not_counted_silently() -> None:
    with pytest.raises(TypeError):
        PerOperation.of(["insert", "upsert"])


def test_a_row_waits_until_its_next_attempt_and_a_parked_row_for_ever() -> None:
    row = undelivered("k", 1)
    assert not row.waits(NOW)
    assert replace(row, next_attempt_at=LATER).waits(NOW)
    assert not replace(row, next_attempt_at=LATER).waits(LATER)
    assert replace(row, outcome="parked").waits(LATER)
    assert not replace(row, next_attempt_at=NOW + timedelta(days=365)).waits(NOW), "told by a clock that was ahead"


def test_a_run_sends_every_row_where_all_that_was_delivered_is_in_doubt_or_asked_for_by_an_earlier_build() -> None:
    state = State().for_spec("a", "{}")
    assert state.sends_all
    reached = replace(state, fence=1, positions=(Range(0, BUCKETS, 5, "a"),))
    whole = Claim("resync-0", 0, BUCKETS, 5, "a", everything=True)
    found = [replace(reached, claims=(one,)).sends_all for one in (whole, replace(whole, hi=9))]
    assert (found, reached.sends_all) == ([True, False], False)
