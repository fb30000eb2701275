"""What the answers of a destination's record close, deliver and leave in doubt."""

from __future__ import annotations

import pytest

from dbt_reverse_etl.delivery.facts import Claim
from dbt_reverse_etl.delivery.settlement import settlement
from dbt_reverse_etl.sinks.base import Applied

CLAIM = Claim("run1-0", 10, 20, snapshot=3, spec="spec")


@pytest.mark.guarantee("Crashes and claims")
@pytest.mark.parametrize(
    ("answer", "closes", "delivered", "in_doubt"),
    [
        (True, True, [(10, 20)], []),
        (None, True, [], []),
        (False, False, [], []),
        (0, False, [], []),
        (1, True, [(10, 20)], []),
        (Applied(((0, 14),), ((14, 16),)), True, [(10, 14)], [(14, 16)]),
        (Applied(((18, 30),), ((0, 65536),)), True, [], [(10, 20)]),
        (Applied(), True, [], []),
    ],
    ids=[
        "whole",
        "no record",
        "records that say too little",
        "0 of a database",
        "1 of a database",
        "a part",
        "doubt beats delivery",
        "nothing of it",
    ],
)
def test_a_claim_is_closed_where_its_record_says_what_became_of_it_and_only_then(
    answer: bool | Applied | None, closes: bool, delivered: list[tuple[int, int]], in_doubt: list[tuple[int, int]]
) -> None:
    found = settlement([CLAIM], {CLAIM.id: answer})
    assert found.closes == ((CLAIM.id,) if closes else ())
    assert [(place.lo, place.hi, place.snapshot, place.spec) for place in found.delivered] == [
        (lo, hi, CLAIM.snapshot, CLAIM.spec) for lo, hi in delivered
    ]
    assert [(claim.lo, claim.hi, claim.id) for claim in found.in_doubt] == [(lo, hi, CLAIM.id) for lo, hi in in_doubt]


def test_a_claim_of_which_the_destination_was_not_asked_stays_open() -> None:
    assert settlement([CLAIM], {}).closes == ()
