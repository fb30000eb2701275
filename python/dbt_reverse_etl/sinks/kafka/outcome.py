"""What became of the messages of a batch, by the names of librdkafka's errors; never their text, which a server may have written.

Names with `_` are the client's own, the others the broker's: https://kafka.apache.org/protocol#protocol_error_codes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, Message

from dbt_reverse_etl.base.outcome import Delivery, Outcome, RowResult
from dbt_reverse_etl.sinks.kafka.topic import name_of

TOO_LARGE, PURGED, _FATAL = "MSG_SIZE_TOO_LARGE", "_PURGE_QUEUE", "_FATAL"
# The broker refuses some messages at once, and does not say which of them is at fault.
REFUSED = frozenset({TOO_LARGE, "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "POLICY_VIOLATION"})
# A repeat would not help.
HOPELESS = frozenset((
        "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION",
        "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "TOPIC_EXCEPTION", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION",
        "INVALID_REQUIRED_ACKS", "INVALID_TIMESTAMP", "UNSUPPORTED_VERSION", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "UNSUPPORTED_COMPRESSION_TYPE",
))  # fmt: skip
_NO_PRODUCER = "CLUSTER_AUTHORIZATION_FAILED"  # asked for its number, without which nothing is sent
NOT_WRITTEN = "_INVALID_DIFFERENT_RECORD"  # refused because of another one
WORDS = {
    TOO_LARGE: "larger than the topic's max.message.bytes allows",
    "INVALID_RECORD": "the broker refuses the record",
    "TOPIC_AUTHORIZATION_FAILED": "a right on the topic is missing",
    "CLUSTER_AUTHORIZATION_FAILED": "no right Write on a topic, and no IdempotentWrite on the cluster",
    "INVALID_TIMESTAMP": "the broker refuses the clock of this machine",
    "UNKNOWN_TOPIC_OR_PART": "the topic is gone",
    "_UNKNOWN_TOPIC": "the topic is gone",
    _FATAL: "the producer cannot go on",
    "UNSUPPORTED_COMPRESSION_TYPE": "the cluster does not take this compression: set compression",
    "_MSG_TIMED_OUT": "no answer in time",
    "_TIMED_OUT": "no answer in time",
    "_AUTHENTICATION": "the login was refused",
    "_SSL": "TLS failed",
    "_INVALID_ARG": "files for TLS that cannot be used",
    "_RESOLVE": "the host is not known",
    "_TRANSPORT": "no connection",
    "_ALL_BROKERS_DOWN": "no broker could be talked to",
}
POLL = 0.05  # seconds
TOGETHER = "refused together with others, to be sent apart"
_IN_PART = ", and a part of it is in the topic"  # of a row of two messages

Fate = tuple[Outcome, str]  # and why


def said(name: str) -> str:
    """An error in our words."""
    return f"{WORDS[name]} ({name})" if name in WORDS else name


def reported(name: str) -> Fate:
    """Of a message whose delivery report has this error: that of its last attempt. One before may have written it, without an answer."""
    if _cause(name) in REFUSED:
        return Outcome.REJECTED, said(_cause(name)) + name[len(_cause(name)) :]
    if name == _NO_PRODUCER:
        return Outcome.FATAL, said(name)
    return (Outcome.RETRYABLE if name == NOT_WRITTEN else Outcome.UNKNOWN), _lacking_write(name)


def _cause(name: str) -> str:
    """The error of a row, without what else is known of it."""
    return name.removesuffix(_IN_PART)


def _lacking_write(name: str) -> str:
    """As `said`, of a message that was sent: there is one right for that."""
    lacks = name == "TOPIC_AUTHORIZATION_FAILED"
    return f"the right Write on the topic is missing ({name})" if lacks else said(name)


def not_taken(name: str) -> Fate:
    """Of a message that the producer did not take, so that it was surely not sent."""
    if name == TOO_LARGE:
        return Outcome.REJECTED, said(name)
    return (Outcome.FATAL if name in HOPELESS or name == _FATAL else Outcome.RETRYABLE), said(name)


def delivery_of(
    rows: int, unsent: Mapping[int, Fate], failed: Mapping[int, str], hopeless: str | None = None
) -> Delivery:
    """The answer for a batch of so many rows; those that are neither `unsent` nor `failed`, which names errors, are in the topic.
    `hopeless` is an error of a message after which no other one need be tried."""
    fates = dict(unsent) | {row: reported(name) for row, name in failed.items()}
    refused = {row for row, name in failed.items() if _cause(name) in REFUSED}
    # Sent again together, they would be refused again, for good: the batch is halved until the guilty row is alone.
    beside = {row for row, name in failed.items() if refused and _cause(name) == NOT_WRITTEN}
    refusals = [row for row, (fate, _) in fates.items() if row in beside or fate is Outcome.REJECTED]
    all_refused = len(refusals) == rows
    if all_refused:
        fates |= {row: (Outcome.REJECTED, fates[row][1]) for row in beside}
    else:
        fates |= {row: (Outcome.RETRYABLE, f"{TOGETHER}: {failed[row]}") for row in refused}
    results = tuple(RowResult(row, *fates[row]) for row in sorted(fates))
    in_part = tuple(row for row in sorted(refused | beside) if failed[row].endswith(_IN_PART))
    stop = _lacking_write(hopeless) if hopeless else None
    whole = all_refused and len(refused | beside) > 1
    return Delivery(results, refused_whole=whole, in_part=in_part, stop=stop)


class Reports:
    """The delivery reports of the messages of one batch that failed; they come in whatever thread polls."""

    def __init__(self) -> None:
        self._failed: list[tuple[bytes, str]] = []
        self._ended_by = ""

    def wait(self, listen: Callable[[float], int]) -> int:
        """Poll or flush for a moment; how much is left. An error that ends the producer is kept: reports of its messages follow."""
        try:
            return listen(POLL)
        except KafkaException as error:
            self._ended_by = name_of(error)
            return 1

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """The client calls this once for each message that is not in the topic, or not surely."""
        if error is not None:
            self._failed.append((bytes(message.key() or b""), error.name()))

    @property
    def hopeless(self) -> str | None:
        """An error that every other message would meet, too."""
        return next((name for name in (self._ended_by, *(name for _, name in self._failed)) if name in HOPELESS), None)

    def failed(self, keys: Callable[[], Iterable[bytes | None]], followed: Collection[int]) -> dict[int, str]:
        """Row -> error; keys are asked for only where something failed. `followed` are rows of two messages: an event and a tombstone."""
        if not self._failed:
            return {}
        row_of = {key: row for row, key in enumerate(keys())}
        names: dict[int, list[str]] = defaultdict(list)
        for key, name in self._failed:
            names[row_of[key]].append(self._ended_by if name == PURGED and self._ended_by in HOPELESS else name)
        return {row: _of_row(found, 2 if row in followed else 1) for row, found in names.items()}


def _of_row(names: Sequence[str], messages: int) -> str:
    """The error of a row whose messages failed with these."""
    # The broker may name one message of the row as the reason to refuse the other.
    own = [name for name in names if name != NOT_WRITTEN] or names
    worst = min(own, key=lambda name: _DOUBT.index(reported(name)[0]))
    # What is in the topic by a part is not surely unwritten.
    return worst if len(names) == messages else worst + _IN_PART


_DOUBT = (Outcome.UNKNOWN, Outcome.FATAL, Outcome.RETRYABLE, Outcome.REJECTED)  # what may be there counts most
