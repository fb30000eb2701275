"""What `check` says of the rights on a real Postgres and a real MariaDB: what is missing, a grant that cures it, and nothing written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.sql.dialects.mysql.rights import may
from dbt_reverse_etl.sinks.sql.record import CLAIMS, FENCES
from dbt_reverse_etl.testing import deliver, next_run, opened, person
from tests.support.outcomes import DELIVERED, NO_MATCH
from tests.support.sinks.databases import SERVERS
from tests.support.sinks.people import a_task, people

TASK = a_task()
OF_MODES = [
    (Mode.MIRROR, "SELECT, INSERT, UPDATE, DELETE"),
    (Mode.UPSERT, "SELECT, INSERT, UPDATE"),
    (Mode.INSERT_ONLY, "SELECT, INSERT"),
    (Mode.UPDATE_ONLY, "SELECT, UPDATE"),
]
servers = pytest.mark.parametrize("db", SERVERS, indirect=True)


class World:
    """A database whose table `people` belongs to somebody else."""

    def __init__(self, db: Any) -> None:
        self.kind, self.db = db.kind, db
        self.schema = "public" if db.kind == "postgres" else db.name
        self.on = lambda name: f"{self.schema}.{name}"

    def lacks(self, task: SinkTask = TASK, **settings: Any) -> list[str]:
        sink = self.db.sink(**settings)
        return [problem.found for problem in sink.rights(task).missing]

    def grants(self, task: SinkTask = TASK, **settings: Any) -> list[str]:
        """What the problems say to run."""
        texts = [problem.next_step for problem in self.db.sink(**settings).rights(task).missing]
        return [text.partition(", or ")[0].replace("'@...", "'@'%'") for text in texts]

    def revoke(self, rights: str, on: str) -> None:
        self.db.run(f"REVOKE {rights} ON {on} FROM crm_push")

    def tables(self) -> dict[str, int]:
        query = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{self.schema}'"
        return {name: self.db.rows(f"SELECT count(*) FROM {self.on(name)}")[0][0] for (name,) in self.db.rows(query)}


@pytest.fixture
def world(people_db: Any) -> Iterator[World]:
    found = World(people_db)
    before = found.tables()
    yield found
    assert found.tables() == before, "nothing was written"


@pytest.mark.guarantee("Configuration", "With the documented rights `check` finds none missing")
@servers
def test_with_the_documented_rights_none_is_missing(world: World) -> None:
    for mode, _ in OF_MODES:
        assert world.lacks(a_task(mode=mode)) == []


@pytest.mark.guarantee(
    "Configuration", "`check` names each right that a push lacks, with a grant that cures it, and writes nothing"
)
@pytest.mark.parametrize(("mode", "rights"), OF_MODES)
@servers
def test_each_mode_names_the_rights_that_it_lacks_on_the_object_and_the_grant_cures_it(
    world: World, mode: Mode, rights: str
) -> None:
    world.revoke("ALL" if world.kind == "postgres" else "SELECT, INSERT, UPDATE, DELETE", world.on("people"))
    task = a_task(mode=mode)
    if world.kind == "mysql" and mode is Mode.INSERT_ONLY:
        rights += ", UPDATE"
    assert world.lacks(task) == [f"no right {rights} on {world.on('people')}"]
    for grant in world.grants(task):
        world.db.run(grant)
    assert world.lacks(task) == []


@pytest.mark.guarantee("Configuration", "The rights that `check` names are enough for a push, in each mode")
@pytest.mark.parametrize("mode", [mode for mode, _ in OF_MODES])
@pytest.mark.parametrize("db", SERVERS, indirect=True)
def test_a_push_with_exactly_the_rights_that_check_names_goes_through(mode: Mode, people_db: Any) -> None:
    world, task = World(people_db), a_task(mode=mode)
    world.db.run(f"INSERT INTO {world.on('people')} (id, name) VALUES (1, 'there'), (3, 'there')")
    world.revoke("ALL" if world.kind == "postgres" else "SELECT, INSERT, UPDATE, DELETE", world.on("people"))
    for grant in world.grants(task):
        world.db.run(grant)
    changes = people(person(1, "new"), person(2, "new"))
    if mode is Mode.MIRROR:
        changes = [*changes, ("delete", person(3))]
    with opened(world.db.sink(), task) as sink:
        second = NO_MATCH if mode is Mode.UPDATE_ONLY else DELIVERED
        assert deliver(sink, task, changes)[:2] == [DELIVERED, second]
    first = "there" if mode is Mode.INSERT_ONLY else "new"
    expected = {1: first, **({} if mode is Mode.UPDATE_ONLY else {2: "new"})}
    expected |= {} if mode is Mode.MIRROR else {3: "there"}
    assert dict(world.db.rows(f"SELECT id, name FROM {world.on('people')}")) == expected


@pytest.mark.guarantee("Configuration")
@servers
def test_a_single_right_that_was_taken_away_is_named_alone(world: World) -> None:
    for right in ("DELETE", "UPDATE", "INSERT"):
        world.revoke(right, world.on("people"))
    assert world.lacks() == [f"no right INSERT, UPDATE, DELETE on {world.on('people')}"]
    world.revoke("DELETE", world.on(FENCES))
    assert world.lacks()[0] == f"no right DELETE on {world.on(FENCES)}"


@pytest.mark.guarantee("Configuration")
@servers
def test_tables_that_are_not_there_and_that_may_not_be_made_are_named(world: World) -> None:
    missing = a_task(object="orders")
    world.db.run(f"DROP TABLE {world.on(CLAIMS)}")
    if world.kind == "postgres":
        no_claims = f"no table {world.on(CLAIMS)}, and no right CREATE on schema public"
        assert world.lacks(missing) == [no_claims, f"no table {world.on('orders')}"]
        assert world.lacks(missing, create_object=True)[1].startswith(
            f"no table {world.on('orders')}, and no right CREATE"
        )
    else:  # a table without a right on it is not told from one that is not there
        assert world.lacks(missing)[1] == f"no right SELECT, INSERT, UPDATE, DELETE on {world.on('orders')}"
        world.db.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {world.schema}.* TO crm_push")
        assert world.lacks(missing)[0] == f"no table {world.on(CLAIMS)}, and no right CREATE on it"
        assert world.lacks(missing)[1] == f"no table {world.on('orders')}"
    for grant in world.grants(missing, create_object=True):
        world.db.run(grant)
    assert world.lacks(missing, create_object=True) == []
    with opened(world.db.sink(create_object=True), missing) as sink:
        assert deliver(sink, missing, people(person(1))) == [DELIVERED], "and a push can be done"
    assert world.lacks(next_run(missing)) == []
    world.db.run(f"DELETE FROM {world.on(FENCES)}")
    world.db.run(f"DROP TABLE {world.on('orders')}")
    world.db.run(f"DELETE FROM {world.on(CLAIMS)}")


@pytest.mark.guarantee("Configuration")
@servers
def test_the_right_to_a_temporary_table_is_named(world: World) -> None:
    place = f"DATABASE {world.db.name}" if world.kind == "postgres" else f"{world.db.name}.*"
    world.revoke("TEMPORARY" if world.kind == "postgres" else "CREATE TEMPORARY TABLES", place)
    assert "TEMPORARY" in world.lacks()[0]
    for grant in world.grants():
        world.db.run(grant)
    assert world.lacks() == []


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_a_role_without_the_schema_is_told_so_and_columns_that_may_be_written_count(people_db: Any) -> None:
    world = World(people_db)
    people_db.run("REVOKE ALL ON people FROM crm_push; GRANT SELECT, UPDATE (name), INSERT ON people TO crm_push")
    assert world.lacks(a_task(mode=Mode.UPSERT)) == []
    assert "no schema nowhere" in world.lacks(a_task(object="nowhere.people"))
    people_db.run("REVOKE USAGE ON SCHEMA public FROM crm_push")
    assert world.lacks()[0] == "no right USAGE on schema public"


@pytest.mark.parametrize(
    ("grants", "is_given"),
    [
        (["GRANT CREATE ON `crm`.* TO `u`@`%`"], True),
        (["GRANT SELECT, CREATE, DROP ON `crm`.`orders` TO `u`@`%`"], True),
        (["GRANT ALL PRIVILEGES ON *.* TO `u`@`%`"], True),
        (["GRANT CREATE ON `c%`.* TO `u`@`%`"], True),
        (["GRANT CREATE ON `cr_`.* TO `u`@`%`"], True),
        (["GRANT USAGE ON *.* TO `u`@`%`", "GRANT `sales` TO `u`@`%`"], True),  # nobody knows what the role gives
        (["GRANT CREATE ON `cr\\_`.* TO `u`@`%`"], False),
        (["GRANT CREATE ON `other`.* TO `u`@`%`"], False),
        (["GRANT CREATE ON `crm`.`people` TO `u`@`%`"], False),
        (["GRANT CREATE TEMPORARY TABLES, CREATE VIEW ON `crm`.* TO `u`@`%`"], False),
        (["GRANT USAGE ON *.* TO `u`@`%`", "SET DEFAULT ROLE `sales` FOR `u`@`%`"], False),
        ([], False),
    ],
)
def test_the_lines_of_show_grants_are_read_as_mysql_means_them(grants: list[str], is_given: bool) -> None:
    assert may(grants, r"(?:^|, )CREATE(?:,|$)", "crm", "orders") is is_given
