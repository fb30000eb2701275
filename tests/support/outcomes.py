"""The outcomes of a row, each by its own name."""

from dbt_reverse_etl.base.outcome import Outcome

DELIVERED, FATAL, NO_MATCH = Outcome.DELIVERED, Outcome.FATAL, Outcome.NO_MATCH
REJECTED, RETRYABLE, UNKNOWN = Outcome.REJECTED, Outcome.RETRYABLE, Outcome.UNKNOWN
