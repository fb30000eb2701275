"""What the sinks of database servers promise alike, on a real Postgres and a real MariaDB: fences, records, lost commits, soft deletes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.sql.database import CLAIMS, FENCES
from dbt_reverse_etl.testing import PEOPLE, batch_of, deliver, next_run, opened, person
from tests.support.effort import scaled
from tests.support.servers.proxy import Proxy, proxy_before
from tests.support.sinks.people import a_task, people

DELIVERED, FATAL, REJECTED = Outcome.DELIVERED, Outcome.FATAL, Outcome.REJECTED
RETRYABLE, UNKNOWN = Outcome.RETRYABLE, Outcome.UNKNOWN
TASKS = 4


@pytest.fixture(params=["postgres", "mysql"])
def db(request: pytest.FixtureRequest) -> Any:
    """A database with the table `people`."""
    return request.getfixturevalue({"postgres": "people_db", "mysql": "mysql_db"}[request.param])


@pytest.fixture
def proxy(db: Any) -> Iterator[Proxy]:
    with proxy_before(db.socket_file) as proxy:
        yield proxy


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(TASKS) as pool:
        yield pool


def count(db: Any, table: str = "people") -> int:
    rows: int = db.rows(f"SELECT count(*) FROM {table}")[0][0]
    return rows


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize(("after", "outcome"), [(True, DELIVERED), (False, RETRYABLE)])
def test_after_a_commit_without_an_answer_the_record_tells_what_became_of_it(
    after: bool, outcome: Outcome, db: Any, proxy: Proxy
) -> None:
    with opened(db.behind(proxy.port), a_task()) as sink:
        proxy.cut_at(db.COMMIT, after=after)
        assert deliver(sink, a_task(), people(person(1))) == [outcome]
    assert proxy.cuts == 1
    assert count(db) == count(db, CLAIMS) == int(outcome is DELIVERED)


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("after", [True, False])
def test_a_commit_without_an_answer_is_unknown_until_the_next_run_settles_it(
    after: bool, db: Any, proxy: Proxy
) -> None:
    with opened(db.behind(proxy.port), a_task()) as sink:
        proxy.cut_at(db.COMMIT, after=after)
        proxy.down = True
        assert deliver(sink, a_task(), people(person(1))) == [UNKNOWN]
    with opened(db.sink(), next_run(a_task())) as sink:
        assert sink.settle(["claim-1"]) == {"claim-1": True if after else None}
    assert count(db) == int(after)


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("after", [True, False])
def test_a_batch_that_comes_again_after_a_commit_without_an_answer_is_applied_once(
    after: bool, db: Any, proxy: Proxy
) -> None:
    with opened(db.behind(proxy.port), a_task()) as sink:
        proxy.cut_at(db.COMMIT, after=after)
        proxy.down = True
        assert deliver(sink, a_task(), people(person(1), person(2))) == [UNKNOWN] * 2
        proxy.down = False
        # Somebody else deletes one: it comes back only if the batch is applied now.
        db.run("DELETE FROM people WHERE id = 1")
        assert deliver(sink, a_task(), people(person(1), person(2))) == [DELIVERED] * 2
        assert count(db) == (1 if after else 2)
        assert deliver(sink, a_task(), people(person(3))) == [DELIVERED]
    assert count(db, CLAIMS) == 2


@pytest.mark.guarantee("Postgres")
def test_once_a_newer_run_has_settled_a_lost_commit_the_old_run_can_send_it_no_more(db: Any, proxy: Proxy) -> None:
    with opened(db.behind(proxy.port), a_task()) as sink:
        proxy.cut_at(db.COMMIT, after=False)
        proxy.down = True
        assert deliver(sink, a_task(), people(person(1))) == [UNKNOWN]
        proxy.down = False
        with opened(db.sink(), next_run(a_task())) as newer:
            assert newer.settle(["claim-1"]) == {"claim-1": None}
        assert deliver(sink, a_task(), people(person(1))) == [FATAL]
    assert count(db) == 0


@pytest.mark.guarantee("Postgres", "A table that is dropped or altered during the run stops it")
@pytest.mark.parametrize(
    ("statement", "reasons"),
    [
        ("DROP TABLE people", ("undefined table (42P01)", "no such table (1146)")),
        (
            "REVOKE INSERT ON people FROM crm_push",
            ("insufficient privilege (42501)", "tableaccess denied error (1142)"),
        ),
        ("ALTER TABLE people DROP COLUMN score", ("undefined column (42703)", "bad field error (1054)")),
        (f"DELETE FROM {FENCES}", ("lost its record", "lost its record")),
    ],
)
def test_what_only_a_person_can_mend_is_fatal(statement: str, reasons: tuple[str, str], db: Any) -> None:
    with opened(db.sink(), a_task()) as sink:
        db.run(statement)
        delivery = sink.deliver(batch_of(a_task(), people(person(1))))
    assert [r.outcome for r in delivery.results] == [FATAL]
    assert reasons[sink.type == "mysql"] in delivery.results[0].reason


@pytest.mark.parametrize("statement", ["DROP TABLE people", f"DROP TABLE {FENCES}", f"DELETE FROM {FENCES}"])
def test_what_has_vanished_is_named_before_the_next_run(statement: str, db: Any) -> None:
    with opened(db.sink(), a_task()):
        pass
    db.run(statement)
    missing = db.sink().missing(next_run(a_task()))
    assert missing is not None
    assert statement.rsplit(maxsplit=1)[-1] in missing


def test_records_are_kept_while_the_ledger_may_ask_and_removed_after(db: Any) -> None:
    with opened(db.sink(), a_task()) as sink:
        for claim in ("a", "b", "c"):
            sink.deliver(batch_of(a_task(), people(person(1)), claim))
    with opened(db.sink(), next_run(a_task())) as sink:
        for _ in range(2):
            assert sink.settle(["b", "c"]) == {"b": True, "c": True}
        assert set(db.rows(f"SELECT claim FROM {CLAIMS}")) == {("b",), ("c",)}
        sink.finish()
    assert count(db, CLAIMS) == 0


def test_a_claim_in_several_batches_settles_only_if_every_one_is_whole(db: Any) -> None:
    with opened(db.sink(), a_task()) as sink:
        for claim, key in (("whole", 3), ("torn", None)):
            sink.deliver(batch_of(a_task(), people(person(1)), claim, last=False))
            sink.deliver(batch_of(a_task(), people({"id": key, "name": "b", "score": 1.5}), claim))
    with opened(db.sink(), next_run(a_task())) as sink:
        assert sink.settle(["whole", "torn"]) == {"whole": True, "torn": False}


def test_a_run_that_lost_the_fence_writes_and_removes_nothing(db: Any) -> None:
    with opened(db.sink(), a_task()) as old, opened(db.sink(), next_run(a_task())) as new:
        new.deliver(batch_of(a_task(), people(person(1)), "new"))
        assert deliver(old, a_task(), people(person(2))) == [FATAL]
        old.finish()
        with pytest.raises(DestinationError, match="another run"):
            old.settle(["new"])
    assert db.rows(f"SELECT claim FROM {CLAIMS}") == [("new",)]
    assert count(db) == 1


@pytest.mark.guarantee("Postgres")
def test_syncs_of_one_database_do_not_see_each_others_records(db: Any) -> None:
    other = replace(a_task(), sync_id="07")
    with opened(db.sink(), a_task()) as one, opened(db.sink(), other) as two:
        deliver(one, a_task(), people(person(1)))
        assert two.settle(["claim-1"]) == {"claim-1": None}
        two.finish()
        assert one.settle(["claim-1"]) == {"claim-1": True}


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize("stored", [None, 1, 2], ids=["no fence", "an older fence", "the own fence"])
def test_tasks_of_one_run_that_open_at_once_never_hinder_each_other(
    stored: int | None, db: Any, threads: ThreadPoolExecutor
) -> None:
    if stored is not None:
        with opened(db.sink(), a_task(fence=stored)):
            pass
    task = a_task(fence=2)

    def work(number: int) -> list[Outcome]:
        said: list[Outcome] = []
        for turn in range(8):
            with opened(db.sink(), task) as sink:
                said += deliver(sink, task, people(person(8 * number + turn)))
        return said

    assert [set(said) for said in threads.map(work, range(TASKS))] == [{DELIVERED}] * TASKS
    assert count(db) == 8 * TASKS


@pytest.mark.guarantee("Postgres")
def test_an_older_run_is_refused_at_once_even_while_the_newer_one_delivers(
    db: Any, threads: ThreadPoolExecutor
) -> None:
    with opened(db.sink(), a_task(fence=7)) as newer:
        with db.held_up():
            busy = threads.submit(deliver, newer, a_task(), people(person(1)))
            db.wait_for_waiters(1)
            with pytest.raises(DestinationError, match=r"another run holds this sync \(fence 7\)"):
                db.sink(lock_timeout=1).open(a_task(fence=6))
        assert busy.result() == [DELIVERED]


@pytest.mark.guarantee("Postgres")
def test_a_newer_run_waits_for_the_batch_of_an_older_one_whose_late_writes_overwrite_nothing(
    db: Any, threads: ThreadPoolExecutor
) -> None:
    task = a_task()
    with opened(db.sink(), task) as old, closing(db.sink()) as new:
        with db.held_up():
            late = threads.submit(deliver, old, task, people(person(1, "old")))
            db.wait_for_waiters(1)
            opening = threads.submit(new.open, next_run(task))
            db.wait_for_waiters(2)
            assert not opening.done()
        assert late.result() == [DELIVERED]
        opening.result()
        assert new.settle(["claim-1"]) == {"claim-1": True}, "what the older run did is known to the newer one"
        assert deliver(new, task, [("update", person(1, "new"))]) == [DELIVERED]
        assert deliver(old, task, [("update", person(1, "old"))]) == [FATAL]
        with pytest.raises(DestinationError, match="another run"):
            db.sink().open(task)
    assert db.rows("SELECT name FROM people") == [("new",)]


def apply(db: Any, changes: list[tuple[str, dict[str, Any]]], **task: Any) -> None:
    the_task = a_task(**task)
    with opened(db.sink(), the_task) as sink:
        assert set(deliver(sink, the_task, changes)) <= {DELIVERED}


def test_soft_delete_keeps_the_row_and_a_later_write_revives_it(db: Any) -> None:
    options = db.sink().options_model(soft_delete="deleted_at")
    db.run(f"ALTER TABLE people ADD COLUMN deleted_at {db.MOMENT}")
    apply(db, people(person(1), person(2)), options=options)
    apply(db, [("delete", {"id": 1}), ("delete", {"id": 9})], options=options, fence=2)
    first = db.rows("SELECT deleted_at FROM people WHERE id = 1")
    said = first[0][0].replace(tzinfo=first[0][0].tzinfo or timezone.utc)
    assert abs((datetime.now(timezone.utc) - said).total_seconds()) < 60
    apply(db, [("delete", {"id": 1})], options=options, fence=3)
    assert db.rows("SELECT deleted_at FROM people WHERE id = 1") == first, "a repeat changes nothing"
    apply(db, people(person(1)), options=options, fence=4)
    assert db.rows("SELECT count(*) FROM people WHERE deleted_at IS NULL") == [(2,)]


def test_soft_delete_needs_mirror_and_a_column_of_its_own(db: Any) -> None:
    options = db.sink().options_model
    for wrong in ({"mode": Mode.UPSERT}, {"options": options(soft_delete="name")}):
        task = a_task(**({"options": options(soft_delete="deleted_at")} | wrong))
        with pytest.raises(ConfigurationError, match="soft_delete"):
            db.sink().validate(task)
    with pytest.raises(DestinationError, match="no column deleted_at"):
        apply(db, [], options=options(soft_delete="deleted_at"))


def test_a_table_is_made_and_columns_added_only_where_that_is_asked_for(db: Any) -> None:
    db.run("DROP TABLE people")
    db.may_create()
    wider = a_task(pa.schema([*PEOPLE, ("more", pa.decimal128(9, 2))]), fence=2)
    with opened(db.sink(create_object=True), a_task()) as sink:
        assert deliver(sink, a_task(), people(person(1))) == [DELIVERED]
    with pytest.raises(DestinationError, match="no column more"), opened(db.sink(create_object=True), wider):
        pass
    with opened(db.sink(create_object=True, on_new_column="add"), wider) as sink:
        assert deliver(sink, wider, [("update", {**person(1), "more": Decimal("1.50")})]) == [DELIVERED]
    assert db.rows("SELECT name, more FROM people") == [("Ada", Decimal("1.50"))]


keys = st.tuples(st.integers(0, 3), st.sampled_from(["a", "A", "é", " "]))
states = st.lists(st.dictionaries(keys, st.none() | st.integers(0, 9), max_size=6), min_size=1, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=scaled(25))
@given(history=states)
def test_any_history_over_a_composite_key_ends_in_its_last_state(history: Any, db: Any) -> None:
    schema = pa.schema([("n", pa.int64()), ("at", pa.string()), ("v", pa.int64())])
    task, model = a_task(schema, key=("at", "n")), dict[tuple[int, str], int]()
    for statement in ("DROP TABLE IF EXISTS people", f"DELETE FROM {FENCES}", f"DELETE FROM {CLAIMS}"):
        db.run(statement)
    db.make(task)
    with opened(db.sink(), task) as sink:
        for state in history:
            changes = [
                ("delete" if v is None else "update", {"n": key[0], "at": key[1], "v": v}) for key, v in state.items()
            ]
            assert set(deliver(sink, task, changes)) <= {DELIVERED}
            model = {key: v for key, v in (model | state).items() if v is not None}
    assert {(n, at): v for n, at, v in db.rows("SELECT * FROM people")} == model
