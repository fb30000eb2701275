"""Full loads on a real Postgres and a real MariaDB: by a rename and by replacing the contents, with kills, locks and lost answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.database import FENCES, OURS, beside
from dbt_reverse_etl.testing import batch_of, deliver, next_run, opened, person
from tests.support.servers.proxy import Proxy, proxy_before
from tests.support.sinks.full_load_child import Child, loading_child
from tests.support.sinks.people import a_task, people

DELIVERED, FATAL, REJECTED, RETRYABLE = Outcome.DELIVERED, Outcome.FATAL, Outcome.REJECTED, Outcome.RETRYABLE
FULL = replace(next_run(a_task()), full_load=True)
OLD, NEW = [(1, "old"), (2, "old")], [(2, "new"), (3, "new")]


@dataclass(frozen=True)
class World:
    """A table `people` with two rows in a database, and how full loads go there."""

    kind: str
    db: Any
    renames: bool

    def names(self) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = self.db.rows("SELECT id, name FROM people ORDER BY id")
        return found

    def full_load(self, *rows: dict[str, Any], task: SinkTask = FULL, claim: str = "whole") -> bool:
        """One full load; whether it was swapped by a rename."""
        before = self.db.storage()
        with opened(self.db.sink(), task) as sink:
            assert deliver(sink, task, people(*rows), claim, last=False) == [DELIVERED] * len(rows)
            sink.swap(claim)
            sink.finish(claim)
        return bool(self.db.storage() != before)

    def leftovers(self) -> list[Any]:
        """Tables of ours beside those of the record."""
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = "
        found = self.db.rows(f"{query}{'current_schema()' if self.kind == 'postgres' else 'database()'}")
        return [name for (name,) in found if name.startswith((f"{OURS}load", f"{OURS}old"))]


WAYS = [("postgres", True), ("postgres", False), ("mysql", True), ("mysql", False)]


def named(way: tuple[str, bool]) -> str:
    return f"{way[0]} {'rename' if way[1] else 'replace'}"


@pytest.fixture(params=WAYS, ids=named)
def world(request: pytest.FixtureRequest) -> World:
    kind, renames = request.param
    db = request.getfixturevalue("people_db" if kind == "postgres" else "mysql_db")
    db.may_load(renames=renames)
    with opened(db.sink(), a_task()) as sink:
        deliver(sink, a_task(), people(person(1, "old"), person(2, "old")))
        sink.finish()
    return World(kind, db, renames)


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    with proxy_before(world.db.socket_file) as proxy:
        yield proxy


def settled(world: World, fence: int = 3) -> bool | None:
    with opened(world.db.sink(), next_run(a_task(), fence)) as sink:
        return sink.settle(["whole"])["whole"]


@pytest.mark.guarantee("Full loads")
def test_the_documented_rights_are_enough_and_decide_the_way(world: World) -> None:
    assert world.full_load(person(2, "new"), person(3, "new")) is world.renames
    assert world.names() == NEW
    assert world.leftovers() == []
    assert settled(world) is True


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_without_the_right_to_make_a_table_a_full_load_is_refused_and_nothing_changes(
    kind: str, request: pytest.FixtureRequest
) -> None:
    db = request.getfixturevalue("people_db" if kind == "postgres" else "mysql_db")
    with opened(db.sink(), a_task()) as sink:
        deliver(sink, a_task(), people(person(1, "old")))
    with pytest.raises(DestinationError, match=r"denied|insufficient privilege"), opened(db.sink(), FULL):
        pass
    assert World(kind, db, renames=False).names() == [(1, "old")]


@pytest.mark.parametrize("wrong", [Mode.INSERT_ONLY, Mode.UPDATE_ONLY, "soft_delete"])
def test_a_full_load_against_the_users_word_is_refused_before_anything_is_sent(wrong: Any, world: World) -> None:
    options = world.db.sink().options_model(soft_delete="gone")
    task = replace(FULL, options=options) if wrong == "soft_delete" else replace(FULL, mode=wrong)
    with pytest.raises(ConfigurationError, match="owns_object"):
        world.db.sink().validate(task)


UNIQUE = {"postgres": "unique violation (23505), constraint one_name", "mysql": "duplicate entry (1062), one_name"}


@pytest.mark.guarantee("Full loads")
def test_a_row_that_a_constraint_refuses_is_found_while_loading_and_the_claim_is_not_whole(world: World) -> None:
    world.db.run("UPDATE people SET score = id")
    world.db.run("CREATE UNIQUE INDEX one_name ON people (score)")
    with opened(world.db.sink(), FULL) as sink:
        rows = people(person(2, "new", 7.0), person(3, "new", 8.0), person(4, "twice", 8.0))
        (refused,) = sink.deliver(batch_of(FULL, rows, "whole", last=False)).results
        assert (refused.index, refused.outcome, refused.reason) == (2, REJECTED, UNIQUE[world.kind])
        later = sink.deliver(batch_of(FULL, people(person(5, "twice", 7.0)), "whole")).results
        assert [result.outcome for result in later] == [REJECTED], "also against a row of another batch"
        sink.swap("whole")
    assert world.names() == NEW
    assert settled(world) is False


def test_foreign_rows_go_and_columns_that_are_not_mapped_get_their_default(world: World) -> None:
    world.db.run("ALTER TABLE people ADD COLUMN note varchar(9) DEFAULT 'none'")
    world.db.run("UPDATE people SET note = 'kept'")
    world.db.run("INSERT INTO people (id, name) VALUES (99, 'foreign')")
    world.full_load(person(2, "new"), person(3, "new"))
    assert world.db.rows("SELECT id, note FROM people ORDER BY id") == [(2, "none"), (3, "none")]


def test_a_batch_that_is_sent_again_while_loading_is_there_once(world: World, proxy: Proxy) -> None:
    with opened(world.db.behind(proxy.port), FULL) as sink:
        rows = people(person(2, "new"), person(3, "new"))
        proxy.cut_at(world.db.COMMIT, after=True)
        assert deliver(sink, FULL, rows, "whole", last=False) == [RETRYABLE] * 2
        assert deliver(sink, FULL, rows, "whole", last=False) == [DELIVERED] * 2
        sink.swap("whole")
    assert world.names() == NEW


def test_an_object_with_the_longest_name_has_a_table_beside_it(world: World) -> None:
    longest = "x" * 63
    assert len(beside(longest, "load", 63)) == 63
    assert beside(longest, "load", 63) != beside("x" * 62 + "y", "load", 63)
    assert beside("ä" * 31, "load", 63).encode()[:63].decode() == beside("ä" * 31, "load", 63)
    assert beside("people", "load", 63) == f"{OURS}load_people"
    world.full_load()
    assert world.names() == [], "a model without rows empties the object"


LAST_WORDS = {  # of the swap's own transaction, or what stands for it
    ("postgres", True): "DROP TABLE",
    ("postgres", False): "DELETE FROM",
    ("mysql", False): "DELETE t",
}


def child(world: World, proxy: Proxy) -> AbstractContextManager[Child]:
    """A process that loads, to be killed."""
    tls = {"ssl_mode": "disabled"} if world.kind == "mysql" else {}
    return loading_child(world.kind, world.db.settings(host="127.0.0.1", port=proxy.port, **tls))


def is_all_or_nothing(world: World, *, swapped: bool) -> None:
    """What a run that was killed has left, for the next one and the one after it."""
    assert settled(world) is (True if swapped else None)
    assert world.names() == (NEW if swapped else OLD)
    assert world.leftovers() == []
    world.full_load(person(7, "later"), task=replace(FULL, fence=4), claim="later")
    assert world.names() == [(7, "later")]


@pytest.mark.guarantee("Full loads")
def test_a_process_killed_in_the_load_leaves_the_object_as_it_was(world: World, proxy: Proxy) -> None:
    with child(world, proxy) as process:
        proxy.cut_and_stall_at("COPY" if world.kind == "postgres" else "ON DUPLICATE", process.kill)
        assert process.heard() is None
    assert proxy.cuts == 1
    is_all_or_nothing(world, swapped=False)


@pytest.mark.guarantee("Full loads")
def test_a_process_killed_before_the_swap_leaves_the_object_as_it_was(world: World, proxy: Proxy) -> None:
    with child(world, proxy) as process:
        assert process.heard() == "loaded"
    assert world.names() == OLD
    is_all_or_nothing(world, swapped=False)


@pytest.mark.guarantee("Full loads")
def test_a_process_killed_inside_the_swap_has_swapped_all_or_nothing(world: World, proxy: Proxy) -> None:
    word = LAST_WORDS.get((world.kind, world.renames), "RENAME TABLE")
    with child(world, proxy) as process:
        assert process.heard() == "loaded"
        proxy.cut_and_stall_at(word, process.kill)  # the server still carries it out
        process.go_on()
        assert process.heard() is None
    assert proxy.cuts == 1
    is_all_or_nothing(world, swapped=word == "RENAME TABLE")


@pytest.mark.guarantee("Full loads")
def test_a_process_killed_while_the_swap_is_committed_has_swapped(world: World, proxy: Proxy) -> None:
    word = "SET closed" if (world.kind, world.renames) == ("mysql", True) else world.db.COMMIT
    with child(world, proxy) as process:
        assert process.heard() == "loaded"
        proxy.cut_and_stall_at(word, process.kill)
        process.go_on()
        assert process.heard() is None
    assert proxy.cuts == 1
    is_all_or_nothing(world, swapped=True)


@pytest.mark.guarantee("Full loads")
def test_a_process_killed_after_the_swap_before_the_acknowledgement_has_swapped(world: World, proxy: Proxy) -> None:
    with child(world, proxy) as process:
        assert process.heard() == "loaded"
        process.go_on()
        assert process.heard() == "swapped"
    is_all_or_nothing(world, swapped=True)


@pytest.mark.guarantee("Full loads")
def test_a_swap_without_an_answer_is_settled_by_the_record(world: World, proxy: Proxy) -> None:
    word = "RENAME TABLE" if (world.kind, world.renames) == ("mysql", True) else world.db.COMMIT
    for after, expected, fence in ((False, OLD, 2), (True, NEW, 3)):
        task = replace(FULL, fence=fence)
        with opened(world.db.behind(proxy.port), task) as sink:
            deliver(sink, task, people(person(2, "new"), person(3, "new")), f"c{fence}", last=False)
            proxy.cut_at(word, after=after)
            if after:
                sink.swap(f"c{fence}")
            else:
                with pytest.raises(DestinationError, match="lost"):
                    sink.swap(f"c{fence}")
        assert world.names() == expected
    assert proxy.cuts == 2


@contextmanager
def in_use(world: World) -> Iterator[None]:
    """Another session reads the table, or writes into it where a reader is not waited for."""
    statement = "SELECT * FROM people" if world.renames else "UPDATE people SET score = 0"
    if world.kind == "postgres":
        with world.db.owner() as other, other.transaction():
            other.execute(statement)
            yield
        return
    with closing(world.db.owner()) as other, other.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute(statement)
        yield
        cursor.execute("ROLLBACK")


@pytest.mark.guarantee("Full loads")
def test_a_swap_that_gets_no_lock_leaves_the_object_as_it_was_and_the_next_run_swaps(world: World) -> None:
    with opened(world.db.sink(lock_timeout=1), FULL) as sink:
        deliver(sink, FULL, people(person(2, "new"), person(3, "new")), "whole", last=False)
        with in_use(world), pytest.raises(DestinationError, match="lock"):
            sink.swap("whole")
    assert world.names() == OLD
    is_all_or_nothing(world, swapped=False)


@pytest.mark.guarantee("Full loads")
def test_an_older_run_neither_loads_nor_swaps_once_a_newer_one_has_begun(world: World) -> None:
    with opened(world.db.sink(), FULL) as old:
        deliver(old, FULL, people(person(2, "late")), "whole", last=False)
        with opened(world.db.sink(), next_run(a_task(), 3)):
            pass
        with pytest.raises(DestinationError):
            old.swap("whole")
        assert set(deliver(old, FULL, people(person(3, "late")), "whole", last=False)) <= {FATAL, RETRYABLE}
    assert world.names() == OLD
    assert world.leftovers() == []


@pytest.mark.guarantee("Full loads")
def test_loaded_rows_that_vanished_are_never_swapped_in(world: World) -> None:
    with opened(world.db.sink(), FULL) as sink:
        deliver(sink, FULL, people(person(2, "new"), person(3, "new")), "whole", last=False)
        world.db.run(f"DELETE FROM {OURS}load_people WHERE id = 3")
        with pytest.raises(DestinationError, match="not all there"):
            sink.swap("whole")
    is_all_or_nothing(world, swapped=False)


def test_the_record_of_the_sync_must_be_there_for_a_swap(world: World) -> None:
    with opened(world.db.sink(), FULL) as sink:
        deliver(sink, FULL, people(person(2, "new")), "whole", last=False)
        world.db.run(f"DELETE FROM {FENCES}")
        with pytest.raises(DestinationError, match="lost its record"):
            sink.swap("whole")
    assert world.names() == OLD
