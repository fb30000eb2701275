"""A source table that changes at random, and what Debezium's connectors tell of it in JSON."""

from __future__ import annotations

import base64
import json
import random
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# What `columns` of reverse_etl.debezium says of the table, for each connector's encoding of it.
MYSQL = {
    "id": "bigint", "name": "string", "price": "decimal(10,2)", "paid": "boolean", "day": "date",
    "changed_at": "timestamp_millis", "raw": "binary",
}  # fmt: skip
POSTGRES = MYSQL | {"changed_at": "timestamp"}
LSN = 9_950_000
COMPARED = "id, name, price, paid, day, unix_millis(changed_at), hex(raw)"

Row = dict[str, Any]
Event = tuple[str, str | None]  # key and value of a message; a tombstone has no value


@dataclass
class SourceTable:
    """Its rows, and its log: each change has a place there, some share their position and differ by row."""

    rng: random.Random
    connector: str
    wrapped: bool = False
    rows: dict[int, Row] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    _position: int = 100
    _committed: int | None = (
        None  # where the transaction before this one ended; unknown to a connector that has just begun
    )

    def snapshot(self) -> list[Event]:
        """What the connector reads first."""
        self._committed = None
        return self._tell([event for key in self.rows for event in self._event("r", key, None, self.rows[key], 0)])

    def change(self, times: int, keys: int) -> list[Event]:
        """A transaction with some inserts, updates and deletes, and a message that is no change."""
        events = self._changes(times, keys)
        self._commit()
        return self._tell(events)

    def read_meanwhile(self, times: int, keys: int) -> list[Event]:
        """Of all rows, what an incremental snapshot reads while such a transaction is open; then what that one did."""
        before = dict(self.rows)
        events = self._changes(times, keys)
        read = [event for key, row in before.items() for event in self._event("r", key, None, row, 0)]
        self._commit()
        return self._tell(read + events)

    def _commit(self) -> None:
        self._position += 1
        self._committed = self._position

    def _changes(self, times: int, keys: int) -> list[Event]:
        events: list[Event] = []
        self._position += 1
        for number in range(times):
            key = self.rng.randrange(keys)
            before = self.rows.pop(key, None)
            after = None if before and self.rng.random() < 0.4 else self._row(key)
            if after:
                self.rows[key] = after
            self._position += self.rng.choice((0, 7, 900))
            events += self._event("u" if before and after else "c" if after else "d", key, before, after, number)
        if self.connector == "postgresql":
            events.append((self._wrap({"prefix": "x"}), self._wrap(self._envelope("m", None, None, 0))))
        return events

    def delete(self) -> list[Event]:
        """The delete of one row, and its tombstone."""
        key = next(iter(self.rows))
        self._position += 1
        return self._tell(self._event("d", key, self.rows.pop(key), None, 0))

    def again(self, events: int) -> list[Event]:
        """The end of the log once more, as after a crash of the connector; a tombstone goes with its delete."""
        start = len(self.log) - events
        while self.log[start][1] is None:
            start -= 1
        return self.log[start:]

    def expected(self) -> list[tuple[Any, ...]]:
        """The rows as COMPARED shows them."""
        return [tuple(_shown(value) for value in self.rows[key].values()) for key in sorted(self.rows)]

    def _tell(self, events: list[Event]) -> list[Event]:
        self.log += events
        return events

    def _row(self, key: int) -> Row:
        rng = self.rng
        return {
            "id": key,
            "name": rng.choice([None, "", "'\"\\ü\n", "__debezium", "1"]),
            "price": rng.choice([None, Decimal("-0.05"), Decimal("99999999.99"), Decimal(rng.randrange(10**6)) / 100]),
            "paid": rng.choice([None, True, False]),
            "day": rng.choice([None, (EPOCH + timedelta(days=rng.randrange(-(10**5), 10**5))).date()]),
            "changed_at": rng.choice([None, EPOCH + timedelta(milliseconds=rng.randrange(-(10**12), 2 * 10**12))]),
            "raw": rng.choice([None, b"", bytes([0, 255]), b"canary"]),
        }

    def _event(self, op: str, key: int, before: Row | None, after: Row | None, number: int) -> list[Event]:
        told = self._wrap({"id": key})
        if before and self.connector == "postgresql":  # replica identity default: the key alone
            before = dict.fromkeys(before) | {"id": key}
        event = (told, self._wrap(self._envelope(op, before, after, number)))
        return [event, (told, None)] if op == "d" else [event]

    def _envelope(self, op: str, before: Row | None, after: Row | None, number: int) -> dict[str, Any]:
        source: dict[str, Any] = {
            "connector": self.connector,
            "version": "3.1.0.Final",
            "db": "shop",
            "table": "orders",
        }
        if self.connector == "postgresql":
            self._position += 1  # a position of its own for each change; it gets one digit more now and then
            lsn = self._position + LSN
            committed = None if self._committed is None else str(self._committed + LSN)
            source |= {"lsn": lsn, "sequence": json.dumps([committed, str(lsn)]), "txId": 7, "schema": "public"}
        else:  # a file ends now and then; rows of one statement share its position
            source |= {
                "file": f"mysql-bin.{self._position // 3000 + 999984:06}",
                "pos": self._position % 3000,
                "row": number,
            }
        return {"before": self._encoded(before), "after": self._encoded(after), "source": source, "op": op, "ts_ms": 1}

    def _encoded(self, row: Row | None) -> Row | None:
        if row is None:
            return None
        encoded = dict(row)
        if row["price"] is not None:
            encoded["price"] = f"{row['price']:.2f}"
        if row["paid"] is not None and self.connector == "mysql":
            encoded["paid"] = int(row["paid"])
        if row["day"] is not None:
            encoded["day"] = (row["day"] - EPOCH.date()).days
        if row["raw"] is not None:
            encoded["raw"] = base64.b64encode(row["raw"]).decode()
        if at := row["changed_at"]:
            millis = (at - EPOCH) // timedelta(milliseconds=1)
            encoded["changed_at"] = millis if self.connector == "mysql" else at.isoformat().replace("+00:00", "Z")
        return encoded

    def _wrap(self, payload: dict[str, Any]) -> str:
        return json.dumps({"schema": {"type": "struct"}, "payload": payload} if self.wrapped else payload)


def compacted(events: list[Event]) -> list[Event]:
    """What compaction leaves of messages: the last one of each key."""
    last = {key: number for number, (key, _) in enumerate(events)}
    return [event for number, event in enumerate(events) if last[event[0]] == number]


def _shown(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(milliseconds=1)
    return value.hex().upper() if isinstance(value, bytes) else value


@dataclass
class Topic:
    """A topic of such events, and a table to which another job copies its messages: some partitions lag behind others.

    Attributes:
        messages: by partition: offset, place in the log of the source, key, value.
        copied: by partition: up to which offset.
    """

    source: SourceTable
    rng: random.Random
    messages: list[list[tuple[int, int, str, str | None]]]
    copied: list[int]
    seen: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    lone_tombstones: int = 0
    _next: int = 0

    @staticmethod
    def of(source: SourceTable, rng: random.Random, partitions: int) -> Topic:
        return Topic(source, rng, [[] for _ in range(partitions)], [0] * partitions)

    def send(self, events: list[Event]) -> None:
        """What the source told last, or tells again; all of a key go to one partition."""
        for place, (key, value) in enumerate(events, len(self.source.log) - len(events)):
            partition = int(re.sub(r"\D", "", key) or 0) % len(self.messages)
            self.messages[partition].append((self._next, place, key, value))
            self._next += 1

    def compact(self) -> None:
        """Of older messages only the last of each key is left."""
        for partition, messages in enumerate(self.messages):
            cut = self.rng.randint(0, len(messages))
            last = {message[2]: message for message in messages[:cut]}
            self.messages[partition] = [one for one in messages[:cut] if last[one[2]] is one] + messages[cut:]

    def copy(self, *, all_of_them: bool = False) -> list[tuple[str, str | None, int, int]]:
        """The next messages of each partition, in any order: key, value, partition, offset."""
        rows = []
        for partition, messages in enumerate(self.messages):
            left = [message for message in messages if message[0] >= self.copied[partition]]
            for offset, place, key, value in left if all_of_them else left[: self.rng.randint(0, len(left))]:
                rows.append((key, value, partition, offset))
                self.copied[partition] = offset + 1
                before = self.seen.get(key, (-1, None))
                self.lone_tombstones += value is None and before[1] is not None and '"op": "d"' not in before[1]
                self.seen[key] = max(before, (place, value), key=lambda told: told[0])
        self.rng.shuffle(rows)
        return rows

    def names(self) -> dict[int, tuple[str | None]]:
        """What the messages that were copied lead to: id -> its name."""
        rows = {}
        for key, (_, value) in self.seen.items():
            after = json.loads(value or "{}").get("after")
            if after:
                rows[json.loads(key)["id"]] = (after["name"],)
        return rows
