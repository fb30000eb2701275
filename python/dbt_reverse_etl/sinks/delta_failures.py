"""What an error of Spark says about the rows of a commit to a Delta table."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, UnsupportedOperationException

from dbt_reverse_etl.base.outcome import Outcome

SPARK_ERRORS = (PySparkException, Py4JError)
_PERMANENT = (AnalysisException, UnsupportedOperationException)
_OF_A_ROW = ("DELTA_VIOLATE_CONSTRAINT", "DELTA_NOT_NULL_CONSTRAINT_VIOLATED", "DELTA_EXCEED_CHAR_VARCHAR_LIMIT")
# In the text, because Spark may wrap the error of a task in one without a condition.
_OF_A_VALUE = re.compile(
    r"\[((?:CAST_INVALID_INPUT|CAST_OVERFLOW|CONVERSION_INVALID_INPUT|CANNOT_PARSE_|DATETIME_|NUMERIC_|(?:BINARY_|INTERVAL_)?ARITHMETIC_OVERFLOW"
    r"|DIVIDE_BY_ZERO|INTERVAL_DIVIDED_BY_ZERO|REMAINDER_BY_ZERO|INVALID_ARRAY_INDEX)[A-Z_]*)[.\]]"
)


def judge(error: Exception) -> tuple[Outcome, str]:
    """The outcome of a statement that failed and committed nothing."""
    if any(word in str(error) for word in _OF_A_ROW):
        return Outcome.REJECTED, "a constraint of the table refused the row"
    if not isinstance(error, _PERMANENT) and (found := _OF_A_VALUE.search(str(error))):
        reason = f"an expression over the row failed, as of a constraint or a generated column: {found[1]}"
        return Outcome.REJECTED, reason
    outcome = Outcome.FATAL if isinstance(error, _PERMANENT) else Outcome.RETRYABLE
    return outcome, f"Spark failed: {kind_of(error)}"


def kind_of(error: Exception) -> str:
    """Its type and condition, for Spark's text may quote values."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return f"{type(error).__name__}{f' ({condition})' if condition else ''}"
