"""What every SQL database promises alike: fences, records, commits without an answer, what has vanished."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.delivery.engine import Engine, WaveResult
from dbt_reverse_etl.delivery.policy import Policy, Retries
from dbt_reverse_etl.delivery.wave import WavePart
from dbt_reverse_etl.sinks.base import Sink
from dbt_reverse_etl.sinks.sql.record import CLAIMS, FENCES
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.delivery.clock import FakeClock
from tests.support.effort import scaled
from tests.support.outcomes import DELIVERED, FATAL, UNKNOWN
from tests.support.sinks.databases import FILES, SERVERS, Losing
from tests.support.sinks.people import a_task, people

TASK = a_task()
commits = pytest.mark.parametrize("after", [True, False], ids=["carried out", "not carried out"])


def count(db: Any, table: str = "people") -> int:
    rows: int = db.rows(f"SELECT count(*) FROM {table}")[0][0]
    return rows


class Meanwhile(FakeClock):
    """While the engine waits for its first repeat, something happens."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self._happens: Callable[[], None] | None = happens

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        happens, self._happens = self._happens, None
        if happens:
            happens()


@contextmanager
def a_run(place: Losing, rows: int) -> Iterator[Any]:
    """Into a table that has these people from the runs before."""
    with opened(place.sink(), TASK) as sink:
        old = people(*(person(number, "old") for number in range(rows)))
        assert not sink.deliver(batch_of(TASK, old, "before")).results
        yield sink


def sent(sink: Sink, clock: FakeClock, retries: Retries) -> WaveResult:
    rows = batch_of(TASK, [("update", person(1, "new")), ("insert", person(7, "new"))]).rows
    engine = Engine(sink, TASK, Policy(retries=retries), clock, lambda: True, random=lambda: 1.0)
    return engine.deliver_wave(WavePart("claim-1", rows))


@pytest.mark.guarantee("Crashes and claims")
@commits
def test_a_batch_whose_commit_had_no_answer_is_applied_once_in_the_same_run(place: Losing, after: bool) -> None:
    def happens() -> None:
        place.is_back()
        place.db.run("UPDATE people SET name = 'somebody else' WHERE id = 1")

    with a_run(place, 3) as sink:
        place.lose(sink, after=after)
        with patch.object(sink, "deliver", wraps=sink.deliver) as called:
            result = sent(sink, Meanwhile(happens), Retries())
        assert (result.failures, called.call_count, result.counts.delivered.total) == ({}, 2, 2)
        assert deliver(sink, TASK, people(person(9)), "other") == [DELIVERED]
    names = dict(place.db.rows("SELECT id, name FROM people"))
    assert names == {0: "old", 1: "somebody else" if after else "new", 2: "old", 7: "new", 9: "Ada"}
    assert place.db.rows(f"SELECT count(*) FROM {CLAIMS} WHERE claim = 'claim-1'") == [(1,)]


@pytest.mark.guarantee("Crashes and claims")
@commits
def test_a_batch_whose_commit_had_no_answer_in_a_run_is_settled_by_the_next_one(place: Losing, after: bool) -> None:
    with a_run(place, 3) as sink:
        place.lose(sink, after=after)
        assert sent(sink, FakeClock(), Retries(seconds=0)).any_unknown
    place.is_back()
    with opened(place.sink(), next_run(TASK)) as sink:
        assert sink.settle(["claim-1"]) == {"claim-1": True if after else None}
    assert place.db.rows("SELECT count(*) FROM people WHERE id = 7") == [(int(after),)]


@pytest.mark.guarantee("SQL databases")
def test_once_a_newer_run_has_settled_a_lost_commit_the_old_run_can_send_it_no_more(place: Losing) -> None:
    with a_run(place, 0) as sink:
        place.lose(sink, after=False)
        assert deliver(sink, TASK, people(person(1))) == [UNKNOWN]
        place.is_back()
        with opened(place.db.sink(), next_run(TASK)) as newer:
            assert newer.settle(["claim-1"]) == {"claim-1": None}
        assert deliver(sink, TASK, people(person(1))) == [FATAL]
    assert count(place.db) == 0


def test_records_are_kept_while_the_ledger_may_ask_and_removed_after(people_db: Any) -> None:
    with opened(people_db.sink(), TASK) as sink:
        for claim in ("a", "b", "c"):
            sink.deliver(batch_of(TASK, people(person(1)), claim))
    with opened(people_db.sink(), next_run(TASK)) as sink:
        for _ in range(2):
            assert sink.settle(["b", "c"]) == {"b": True, "c": True}
        assert set(people_db.rows(f"SELECT claim FROM {CLAIMS}")) == {("b",), ("c",)}
        sink.finish()
    assert count(people_db, CLAIMS) == 0


@pytest.mark.guarantee("SQL databases")
def test_a_claim_in_several_batches_settles_only_if_every_one_is_whole(people_db: Any) -> None:
    with opened(people_db.sink(), TASK) as sink:
        for claim, key in (("whole", 3), ("torn", None)):
            sink.deliver(batch_of(TASK, people(person(1)), claim, last=False))
            sink.deliver(batch_of(TASK, people({"id": key, "name": "b", "score": 1.5}), claim))
    with opened(people_db.sink(), next_run(TASK)) as sink:
        assert sink.settle(["whole", "torn"]) == {"whole": True, "torn": False}


@pytest.mark.guarantee("SQL databases")
def test_a_run_that_lost_the_fence_writes_and_removes_nothing(people_db: Any) -> None:
    with opened(people_db.sink(), TASK) as old, opened(people_db.sink(), next_run(TASK)) as new:
        new.deliver(batch_of(TASK, people(person(1)), "new"))
        assert deliver(old, TASK, people(person(2))) == [FATAL]
        old.finish()
        with pytest.raises(DestinationError, match="another run"):
            old.settle(["new"])
        with pytest.raises(DestinationError, match=r"another run holds this sync \(fence 2\)"):
            people_db.sink().open(TASK)
    assert people_db.rows(f"SELECT claim FROM {CLAIMS}") == [("new",)]
    assert count(people_db) == 1


@pytest.mark.guarantee("SQL databases")
def test_syncs_of_one_database_do_not_see_each_others_records(people_db: Any) -> None:
    other = replace(TASK, sync_id="07")
    with opened(people_db.sink(), TASK) as one, opened(people_db.sink(), other) as two:
        deliver(one, TASK, people(person(1)))
        assert two.settle(["claim-1"]) == {"claim-1": None}
        two.finish()
        assert one.settle(["claim-1"]) == {"claim-1": True}


VANISHED = {
    "DROP TABLE people": ("undefined table (42P01)", "no such table (1146)", "vanished", "CatalogException"),
    "ALTER TABLE people DROP COLUMN score": (
        "undefined column (42703)",
        "bad field error (1054)",
        "vanished",
        "BinderException",
    ),
    f"DELETE FROM {FENCES}": ("lost its record",) * 4,
}


@pytest.mark.guarantee("SQL databases", "A table that is dropped or altered during the run stops it")
@pytest.mark.parametrize("statement", VANISHED)
def test_what_only_a_person_can_mend_is_fatal(statement: str, people_db: Any) -> None:
    with opened(people_db.sink(), TASK) as sink:
        people_db.run(statement)
        delivery = sink.deliver(batch_of(TASK, people(person(1))))
    assert [result.outcome for result in delivery.results] == [FATAL]
    place = [*SERVERS, *FILES].index(people_db.kind)
    assert VANISHED[statement][place] in delivery.results[0].reason


@pytest.mark.guarantee("SQL databases", "What has vanished is named before the next run, which does not make it anew")
@pytest.mark.parametrize("statement", ["DROP TABLE people", f"DROP TABLE {FENCES}", f"DELETE FROM {FENCES}"])
def test_what_has_vanished_is_named_before_the_next_run(statement: str, people_db: Any) -> None:
    with opened(people_db.sink(), TASK):
        pass
    people_db.run(statement)
    missing = people_db.sink().missing(next_run(TASK))
    assert missing is not None
    assert missing.startswith("no "), "it follows the word found"
    assert statement.rsplit(maxsplit=1)[-1] in missing
    assert people_db.sink().missing(TASK) is None, "a first push misses nothing"
    # On a server, the user of the sink may not make the tables of the record.
    with pytest.raises(DestinationError, match=r"resync|denied|privilege"), opened(people_db.sink(), next_run(TASK)):
        pass


keys = st.tuples(st.integers(0, 3), st.sampled_from(["a", "A", "é", " "]))
states = st.lists(st.dictionaries(keys, st.none() | st.integers(0, 9), max_size=6), min_size=1, max_size=6)


@pytest.mark.parametrize("db", [*SERVERS, "sqlite"], indirect=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=scaled(15))
@given(history=states)
def test_any_history_over_a_composite_key_ends_in_its_last_state(history: Any, db: Any) -> None:
    schema = pa.schema([("n", pa.int64()), ("at", pa.string()), ("v", pa.int64())])
    task = a_task(schema, key=("at", "n"), sync_id=uuid.uuid4().hex)
    model = dict[tuple[int, str], int]()
    db.run("DROP TABLE IF EXISTS people")
    db.make(task)
    with opened(db.sink(), task) as sink:
        for state in history:
            changes = [
                ("delete" if v is None else "update", {"n": key[0], "at": key[1], "v": v}) for key, v in state.items()
            ]
            assert set(deliver(sink, task, changes)) <= {DELIVERED}
            model = {key: v for key, v in (model | state).items() if v is not None}
    assert {(n, at): v for n, at, v in db.rows("SELECT * FROM people")} == model
