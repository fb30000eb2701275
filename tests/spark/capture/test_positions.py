"""A position never goes beyond a value that was read: random histories with empty reads, late rows, rows without a stamp and stamps in the future."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

from tests.support.dbt.captures import Captures
from tests.support.dbt.project import Project

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))
NOW = datetime.now(timezone.utc)
FUTURE = 10**6  # stamps from here on lie in the future, where the type has one
KEYS = 12
LATE = 3  # how many units a row may come late, with an overlap


@dataclass(frozen=True)
class Stamp:
    """A type of `updated_at` or `sequence`, whose values stand here as whole numbers.

    Attributes:
        overlap: the setting for which a value may be `LATE` behind the newest; None: there is none, and it may not be behind.
        zone: the session's time zone.
        reads_all: nothing is too late.
    """

    type: str
    overlap: str | None = None
    zone: str = "UTC"
    reads_all: bool = False

    @property
    def late(self) -> int:
        return LATE if self.overlap or self.reads_all else 0

    @property
    def has_future(self) -> bool:
        return self.type not in ("bigint", "string", "binary")

    def sql(self, value: int | None) -> str:
        if value is None:
            return f"cast(null as {self.type})"
        if self.type in ("bigint", "double"):
            beyond = ("'NaN'", "'Infinity'")[value % 2]
            return f"cast({beyond if value >= FUTURE else value} as {self.type})"
        if self.type in ("string", "binary"):
            return f"'{value:08}'" if self.type == "string" else f"X'8F{value:08X}'"
        days = {"days": 1} if self.type == "date" else {"minutes": 1}
        start = NOW - timedelta(days=100) if value < FUTURE else NOW + timedelta(days=3)
        local = (start + value % FUTURE * timedelta(**days)).astimezone(ZoneInfo(self.zone))
        if self.type == "date":
            return f"date'{local:%Y-%m-%d}'"
        if self.type == "timestamp_ntz":
            return f"timestamp_ntz'{local:%Y-%m-%d %H:%M:%S.%f}'"
        return f"timestamp'{local.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}Z'"


@dataclass
class History:
    """What a table holds at each capture, and how the changelog must then be: whatever is not older than the newest that was read, less the overlap, is captured."""

    stamp: Stamp
    rng: random.Random
    read: int | None = None
    rows: dict[int, tuple[int | None, str]] = field(default_factory=dict)
    writes: int = 0
    more: str = ""

    def stamps(self) -> Iterator[int | None]:
        """Of rows that have to be captured now: none may be older than the promise."""
        rng, newest = self.rng, self.read
        while True:
            late = max(newest - rng.randint(0, self.stamp.late), 0) if newest is not None else rng.randint(0, 5)
            ahead = FUTURE + rng.randint(0, 5) if self.stamp.has_future else late
            yield rng.choice([late, late + rng.randint(0, 4), late, None, ahead])

    def value(self) -> str:
        self.writes += 1
        return f"v{self.writes}"

    def capture(self, stamps: Sequence[int | None]) -> None:
        """A capture has read these."""
        known = [one for one in [self.read, *stamps] if one is not None and (one < FUTURE or not self.stamp.has_future)]
        self.read = max(known, default=None)


class Table(History):
    """Rows with the time of their last change, for the strategy `timestamp`."""

    def step(self, number: int) -> tuple[list[tuple[str, ...]], dict[int, tuple[str]]]:
        """The rows of the table, and those that the changelog must hold of them."""
        stamps = self.stamps()
        if number == 0:  # nothing that has a time
            self.rows = {key: (None, self.value()) for key in self.rng.sample(range(KEYS), self.rng.choice((0, 2)))}
        elif number == 2 and self.rng.random() < 0.5:  # the newest is gone
            del self.rows[max(self.rows, key=lambda key: self.rows[key][0] or 0)]
        elif number == 2:  # all are gone, and a column more makes everything compared: now nothing is too old
            self.rows, self.more, self.read = {}, ", 1 as more", None
        else:
            for key in self.rng.sample(range(KEYS), 6):
                self.rows[key] = (next(stamps), self.value())
        self.capture([stamp for stamp, _ in self.rows.values()])
        rows = [(str(key), self.stamp.sql(at), f"'{value}'") for key, (at, value) in self.rows.items()]
        return rows, {key: (value,) for key, (_, value) in self.rows.items()}


class Feed(History):
    """Changes with their sequence, in a table that is emptied after each load or kept."""

    keeps: bool = False
    events: list[tuple[int, int | None, str, str]]

    def step(self, number: int) -> tuple[list[tuple[str, ...]], dict[int, tuple[str]]]:
        """The changes in the table, and the rows to which all that were ever there lead."""
        if number == 0:
            self.events, self.log = [], []
        elif not self.keeps:
            self.events = []
        stamps = self.stamps()
        for key in self.rng.sample(range(KEYS), 0 if number in (0, 2) else 6):
            at = next(stamps)
            if (key, at) not in [event[:2] for event in self.log]:
                self.events.append((key, at, self.value(), self.rng.choice("uud")))
                self.log.append(self.events[-1])
        self.capture([event[1] for event in self.events])
        last = {event[0]: event for event in sorted(self.log, key=lambda event: -1 if event[1] is None else event[1])}
        rows = [(str(key), self.stamp.sql(at), f"'{value}'", f"'{op}'") for key, at, value, op in self.events]
        return rows, {key: (value,) for key, (_, _, value, op) in last.items() if op == "u"}


class KeptFeed(Feed):
    keeps = True


HISTORIES: list[tuple[type[Table | Feed], Stamp]] = [
    (Table, Stamp("timestamp", f"{LATE} minutes", "America/New_York")),
    (Table, Stamp("timestamp_ntz", f"{LATE} minutes", "America/Los_Angeles")),
    (Table, Stamp("date", f"{24 * (LATE - 1) + 1} hours", "Pacific/Kiritimati")),
    (Table, Stamp("double", str(LATE))),
    (Table, Stamp("binary")),
    (Feed, Stamp("timestamp", f"{LATE} minutes", "Asia/Kolkata")),
    (Feed, Stamp("date", None, "Pacific/Honolulu")),
    (KeptFeed, Stamp("timestamp_ntz")),
    (KeptFeed, Stamp("bigint", str(LATE))),
    (KeptFeed, Stamp("string", reads_all=True)),
]
STEPS = 4


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize("numbers", [[0, 5], pytest.param(range(len(HISTORIES)), marks=pytest.mark.full)], ids=len)
def test_whatever_is_not_older_than_what_was_read_is_captured_also_after_reads_without_any_stamp(
    project: Project, spark: SparkSession, numbers: Sequence[int]
) -> None:
    captures, expected = Captures(project), {}
    for number in numbers:
        kind, stamp = HISTORIES[number]
        name, rng = f"h{number}", random.Random(SEED + number)
        ansi = f"set spark.sql.ansi.enabled = {str(number % 2 == 0).lower()}"
        columns = ["id", "at", "v"] + (["op"] if issubclass(kind, Feed) else [])
        history, steps = kind(stamp, rng), []
        expected[name] = []
        for step in range(STEPS):
            rows, image = history.step(step)
            expected[name].append(image)
            zone = rng.choice(("UTC", stamp.zone)) if stamp.type == "timestamp" else stamp.zone
            steps.append([f"set time zone '{zone}'", ansi, view(project, name, columns, history, rows)])
        options = {"strategy": "feed", "operation": "op", "sequence": "at"} if issubclass(kind, Feed) else None
        options = options or {"strategy": "timestamp", "updated_at": "at", "full_above": 1}
        capture = options | ({"overlap": stamp.overlap} if stamp.overlap else {})
        captures.changelog(name, f"select * from {project.schema}.{name}_rows", steps, {"capture": capture})
    try:
        said = captures.run()
    finally:
        spark.sql("set time zone 'UTC'")
        spark.sql("set spark.sql.ansi.enabled = false")
    wrong = []
    for number in numbers:
        kind, stamp = HISTORIES[number]
        name = f"h{number}"
        found = captures.images(name, ["v"], said[name])
        for step, image in enumerate(expected[name]):
            # What vanishes without a trace stays until everything is compared; of a feed nothing does.
            seen = {key: row for key, row in found[step].items() if issubclass(kind, Feed) or key in image}
            wrong += [(kind.__name__, stamp, step, said[name])] if seen != image else []
    assert not wrong, (SEED, wrong)


def view(project: Project, name: str, columns: Sequence[str], history: History, rows: Sequence[tuple[str, ...]]) -> str:
    """A statement that makes these the rows of the model."""
    none = tuple(["0", history.stamp.sql(None), "''", "''"][: len(columns)])
    values = ", ".join(f"({', '.join(row)})" for row in [none, *rows])
    query = f"select *{history.more} from values {values} as t({', '.join(columns)}) where id > 0 or v <> ''"
    return f"create or replace view {project.schema}.{name}_rows as {query}"


def test_what_has_no_order_or_no_distances_is_refused_where_a_position_would_need_it(project: Project) -> None:
    feed = {"strategy": "feed", "operation": "op", "sequence": "at"}
    cases: dict[str, tuple[str, dict[str, Any], str]] = {
        "yes_or_no": ("true", {"strategy": "timestamp", "updated_at": "at"}, "found 'at' of type boolean; expected a timestamp"),
        "text": ("'2024'", {"strategy": "timestamp", "updated_at": "at", "overlap": 1}, "overlap with 'at' of type string, which has no distances"),
        "text_feed": ("'2024'", {**feed, "overlap": "1 hour"}, "overlap with 'at' of type string, which has no distances"),
        "missing": ("1 as it, 2", {"strategy": "timestamp", "updated_at": "att"}, "found 'att'; expected a column of the model (id, op, it, at)"),
    }  # fmt: skip
    for name, (expression, capture, _) in cases.items():
        project.changelog(name, f"select 1 as id, 'u' as op, {expression} as at", settings={"capture": capture})
    result = project.run()
    for name, (_, _, message) in cases.items():
        assert result.statuses[name] == "error"
        assert message in result.messages[name], result.messages[name]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_columns_that_only_the_second_capture_would_read_are_checked_by_the_first(project: Project) -> None:
    project.table(
        "log",
        "select id as log_id, 'a' as ulid, timestamp'2024-01-01' as logged_at, 1.5d as part, cast(id as decimal(9, 2)) as cents, cast(id as decimal(20, 0)) as number from range(3)",
    )
    project.table("source", "select id, map('a', id) as attributes, id as at from range(3)")
    tables = [{"name": name} for name in ("log", "source")]
    project.properties("sources", {"sources": [{"name": "app", "schema": project.schema, "tables": tables}]})
    log = {"strategy": "change_table", "table": "app.log", "sequence": "number", "key": {"id": "log_id"}}
    cdf = {"strategy": "cdf", "table": "app.source"}
    by_time = {"strategy": "timestamp", "updated_at": "at"}
    whole = "expected whole numbers that grow"
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "text": ({**log, "sequence": "ulid"}, f"capture.sequence: found 'ulid' of type string in app.log; {whole}"),
        "time": ({**log, "sequence": "logged_at"}, f"capture.sequence: found 'logged_at' of type timestamp in app.log; {whole}"),
        "double": ({**log, "sequence": "part"}, f"capture.sequence: found 'part' of type double in app.log; {whole}"),
        "no_sequence": ({**log, "sequence": "seq"}, "capture.sequence: found 'seq'; expected a column of app.log (log_id, ulid,"),
        "no_key": ({**log, "key": None}, "capture.key: found 'id'; expected a column of app.log (log_id, ulid,"),
        "other_key": ({**log, "key": {"id": "source_id"}}, "capture.key: found 'source_id'; expected a column of app.log (log_id, ulid,"),
        "key_of_none": ({**log, "key": {"idd": "log_id"}}, "capture.key: found 'idd' as a column of unique_key; expected one of id; nothing was captured"),
        "of_cdf": ({**cdf, "key": {"id": "source_id"}}, "capture.key: found 'source_id'; expected a column of app.source (id, attributes, at)"),
        "group": ({**by_time, "recapture_by": ["order_id"]}, "recapture_by: found 'order_id'; expected a column of the model that is no map (id, at)"),
        "map": ({**by_time, "recapture_by": "attributes"}, "recapture_by: found 'attributes'; expected a column of the model that is no map (id, at)"),
    }  # fmt: skip
    query = "-- depends_on: {{ source('app', 'log') }}\nselect * from {{ source('app', 'source') }}"
    right = {"right": (log, ""), "cents": ({**log, "sequence": "cents"}, "")}
    for name, (capture, _) in {**cases, **right}.items():
        project.changelog(name, query, settings={"capture": capture})
    result = project.run()
    for name, (_, message) in cases.items():
        assert result.statuses[name] == "error"
        said = result.messages[name].replace(f"{project.schema}.", "app.")
        assert message in said, said
        assert "nothing was captured" in said
    assert [result.messages[name] for name in right] == ["+3 ~0 -0, snapshot 1"] * 2
