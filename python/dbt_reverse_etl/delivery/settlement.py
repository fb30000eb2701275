"""What the record of a transactional sink says of the claims of earlier runs, in the words of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dbt_reverse_etl.delivery.facts import Claim, Range
from dbt_reverse_etl.sinks.base import Applied
from dbt_reverse_etl.sinks.ranges import coarse, common, minus

_MOST_DOUBTS = 256  # ranges of one claim; the query that plans the next push compares each row with all of them


@dataclass(frozen=True)
class Settlement:
    """What a run found out about earlier claims.

    Attributes:
        delivered: surely, and with nothing left out.
        in_doubt: what stays open of claims of which the rest is over.
        closes: ids of the claims that are over, wherever they lie, but for what is in doubt.
    """

    delivered: tuple[Range, ...] = ()
    in_doubt: tuple[Claim, ...] = ()
    closes: tuple[str, ...] = ()


def settlement(claims: Sequence[Claim], answers: Mapping[str, bool | Applied | None]) -> Settlement:
    """By the answers of `Sink.settle`; a claim without one stays open."""
    delivered, in_doubt, closes = list[Range](), list[Claim](), list[str]()
    for claim in claims:
        answer = answers.get(claim.id, False)
        if answer is not None and not answer:  # a database may say 0
            continue
        closes.append(claim.id)
        known = _within(claim, answer)
        delivered += [Range(lo, hi, claim.snapshot, claim.spec) for lo, hi in known.delivered]
        in_doubt += [replace(claim, lo=lo, hi=hi) for lo, hi in known.in_doubt]
    return Settlement(tuple(delivered), tuple(in_doubt), tuple(dict.fromkeys(closes)))


def _within(claim: Claim, answer: bool | Applied | None) -> Applied:
    place = ((claim.lo, claim.hi),)
    if not isinstance(answer, Applied):
        return Applied(place if answer else ())
    in_doubt = coarse(common(answer.in_doubt, place), _MOST_DOUBTS)
    return Applied(minus(common(answer.delivered, place), in_doubt), in_doubt)
