"""A wide table as a changelog: when a row of any of its tables changed, the wide rows that it touches are recomputed, and no others."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.dbt.operations import killed_after
from tests.support.dbt.project import Project, Result
from tests.support.wide.regional import FEED, REGIONAL, TABLES, generate, regional

WIDE: dict[str, Any] = {
    "root": "orders",
    "nodes": [
        {"name": "orders", "table": "app.orders", "key": "id", "columns": ["note"]},
        {"name": "invoice", "table": "app.invoices", "key": "order_id", "join": "full", "columns": ["paid"]},
        {
            "name": "customer",
            "table": "customers_changelog",
            "key": "id",
            "join_on": {"customer_id": "id"},
            "columns": {"name": "customer"},
        },
        {
            "name": "region",
            "table": "app.regions",
            "key": "id",
            "parent": "customer",
            "join_on": {"region_id": "id"},
            "columns": {"name": "region"},
        },
        {
            "name": "ship_region",
            "table": "app.regions",
            "key": "id",
            "join_on": {"ship_to": "id"},
            "columns": {"name": "ship_region"},
        },
        {
            "name": "lines",
            "table": "app.lines",
            "cardinality": "many",
            "join_on": {"id": "order_id"},
            "aggregates": {"line_count": "count(*)", "amount": "sum(amount)"},
        },
    ],
}
for node in WIDE["nodes"]:
    if node["table"].startswith("app."):
        node["changes"] = "cdf"
COLUMNS = "id, note, paid, customer, region, ship_region, line_count, amount"
TRUTH = """
    select coalesce(o.id, i.order_id) as id, o.note, i.paid, c.name as customer, r.name as region, s.name as ship_region, l.line_count, l.amount
    from {s}.orders o full join {s}.invoices i on i.order_id = o.id
    left join {s}.customers c on c.id = o.customer_id left join {s}.regions r on r.id = c.region_id left join {s}.regions s on s.id = o.ship_to
    left join (select order_id, count(*) as line_count, sum(amount) as amount from {s}.lines group by 1) l on l.order_id = coalesce(o.id, i.order_id)
    order by 1
"""


class Shop:
    """The tables of a shop, and the wide table of its orders."""

    def __init__(self, project: Project, orders: int = 20, **capture: Any) -> None:
        self.project = project
        for name, columns in TABLES.items():
            project.spark.sql(f"create table {project.schema}.{name} ({columns}) using delta {FEED}")
        tables = [{"name": name} for name in TABLES]
        project.properties("sources", {"sources": [{"name": "app", "schema": project.schema, "tables": tables}]})
        project.changelog("customers_changelog", "select * from {{ source('app', 'customers') }}")
        self.change(
            f"insert into orders select id, id % 4, 1, 'first' from range(1, {orders + 1})",
            "insert into customers values (0, 'Ann', 1), (1, 'Bob', 2), (2, 'Cas', 9)",
            "insert into regions values (1, 'North'), (2, 'South')",
            f"insert into lines select id, id, 10 from range(1, {orders + 1})",
        )
        settings = {"wide_table": WIDE, "capture": {"strategy": "affected_keys", **capture}}
        project.changelog("wide", self.body(), settings=settings)
        assert self.run().messages["wide"] == f"+{orders} ~0 -0, snapshot 1"

    @staticmethod
    def body() -> str:
        lines = [f"-- depends_on: {{{{ source('app', '{name}') }}}}\n" for name in TABLES if name != "customers"]
        return "".join(lines) + "-- depends_on: {{ ref('customers_changelog') }}\n{{ reverse_etl.wide_table() }}"

    def change(self, *statements: str) -> None:
        for statement in statements:
            words = statement.split()
            place = next(number for number, word in enumerate(words) if word in TABLES)
            words[place] = f"{self.project.schema}.{words[place]}"
            self.project.spark.sql(" ".join(words))

    def run(self, *arguments: str) -> Result:
        """`dbt run`, after which the wide rows are those of the full join."""
        result = self.project.dbt("run", "--exclude", "package:reverse_etl", *arguments)
        assert result.success, result.text
        assert self.project.image("wide", COLUMNS) == [tuple(row) for row in self.project.rows(TRUTH)]
        return result


CASES: dict[str, tuple[list[str], str]] = {
    "the dimension arrives days before the fact": (["insert into customers values (50, 'Early', 2)"], "+0 ~0 -0"),
    "its fact, and a fact days before its dimensions": (
        ["insert into orders values (100, 50, 2, 'late fact'), (101, 60, 7, 'early fact')"],
        "+2 ~0 -0",
    ),
    "the dimensions of that fact, one of them a dimension of a dimension; and a fact with its dimensions": (
        [
            "insert into customers values (60, 'Late', 7), (70, 'Now', 8)",
            "insert into regions values (7, 'West')",
            "insert into orders values (102, 70, 8, 'with them')",
            "insert into regions values (8, 'East')",
        ],
        "+1 ~1 -0",
    ),
    "a dimension of five facts changes; a fact and a dimension are re-targeted; references become NULL; a dimension is deleted;"
    " a line moves to another order; a table of the same key has one of its own, and one whose other row is deleted": (
        [
            "update customers set name = 'Anna' where id = 0",
            "update orders set customer_id = 1 where id = 4",
            "update customers set region_id = 1 where id = 1",
            "update orders set customer_id = null, ship_to = null where id = 5",
            "delete from regions where id = 7",
            "update lines set order_id = 7 where line_id = 6",
            "insert into invoices values (500, 1), (10, 2)",
            "insert into lines values (900, 500, 3)",
            "delete from orders where id in (10, 11)",
            "delete from lines where order_id = 11",
        ],
        "+1 ~14 -1",
    ),
}


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_late_early_re_targeted_deleted_and_null_references_reach_exactly_the_wide_rows_that_they_touch(
    project: Project,
) -> None:
    shop = Shop(project, full_above=1)
    for case, (statements, counts) in CASES.items():
        shop.change(*statements)
        message = shop.run().messages["wide"]
        assert message.startswith(counts), (case, message)
        assert "full compare" not in message, (case, message)


# Each ends with one statement that writes.
STEPS = ["positions noted, then changes stored", "affected keys", "recompute and diff", "old images", "commit"]


@dataclass
class Chain:
    """A chain of changelogs that was built three times, and what readers saw after each."""

    project: Project
    builds: list[Result] = field(default_factory=list)
    live: list[list[tuple[int, str]]] = field(default_factory=list)

    def build(self) -> None:
        self.builds.append(self.project.dbt("build", "--select", "+wide_chain"))
        rows = self.project.rows("select distinct id, customer from {s}.live where id = 6")
        self.live.append([tuple(row) for row in rows])


@pytest.fixture(scope="module")
def chain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    project = Project(tmp_path_factory.mktemp("chain") / "shop", spark, "wide_chain")
    nodes = [REGIONAL["nodes"][0], REGIONAL["nodes"][1] | {"columns": {"name": "customer"}}]
    config = {"meta": {"reverse_etl": {"publish": "live"}}}
    test = {"reverse_etl.current_not_null": {"arguments": {"column_name": "customer"}}}
    added = {"chain": {"changelog": {"config": config, "data_tests": [test]}}}
    regional(project, "view", {"root": "orders", "nodes": nodes, **added})
    project.on_run_end("{{ reverse_etl.publish(results) }}")
    generate(project, "--load-columns", "--partition-by", "part=id % 2")
    built = Chain(project)
    built.build()
    for name in ("null", "'Six'"):
        project.rows(f"update {{s}}.customers set name = {name} where id = 6")
        built.build()
    return built


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_in_a_chain_of_changelogs_a_change_of_one_table_captures_rows_only_in_what_hangs_on_it(chain: Chain) -> None:
    project, second = chain.project, chain.builds[1]
    captured = {re.sub("_[0-9a-f]{8}$", "", name): text for name, text in second.messages.items() if "snapshot" in text}
    assert {name: text.partition(",")[0] for name, text in captured.items()} == {
        "orders_leaf": "+0 ~0 -0",
        "customer_leaf": "+0 ~1 -0",
        "wide_chain_changelog": "+0 ~2 -0",
    }
    assert "full compare" not in second.text
    assert chain.builds[2].success, chain.builds[2].text
    assert project.rows("describe detail {s}.wide_chain")[0]["partitionColumns"] == ["part"]
    rows = project.rows("select id, customer, loaded_snapshot from {s}.wide_chain order by id")
    assert [tuple(row) for row in rows] == [(n, *(("c", 1) if n % 6 else ("Six", 3))) for n in range(1, 13)]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_the_changelog_of_a_chain_is_published_once_the_tests_that_its_declaration_adds_have_passed(
    chain: Chain,
) -> None:
    first, second, third = chain.builds
    assert "live shows snapshot 1, 12 rows" in first.text
    assert "not published, for tests did not pass" in second.text
    assert chain.live[1] == [(6, "c")]
    assert "live shows snapshot 3, 12 rows" in third.text
    assert chain.live[2] == [(6, "Six")]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_where_more_than_a_quarter_of_the_rows_is_affected_everything_is_compared_and_the_run_says_so(
    project: Project,
) -> None:
    regional(project, "changelog", capture="affected_keys")
    assert project.run().success
    project.rows("update {s}.regions set name = 'newer' where id in (1, 2)")
    result = project.run()
    assert result.messages["wide"] == "+0 ~4 -0, snapshot 2 (full compare: 4 of 12 keys may have changed)"
    assert "wide: (full compare: 4 of 12 keys may have changed)" in result.text


@pytest.mark.full
@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    "killed_at", [(2, 5), pytest.param((1, 2, 3, 4, 5), marks=pytest.mark.full)], ids=["some", "all"]
)
def test_a_run_that_is_killed_after_any_step_is_made_good_by_the_next_which_captures_its_changes_once(
    project: Project, killed_at: tuple[int, ...]
) -> None:
    regional(project, "changelog", capture={"strategy": "affected_keys", "full_above": 1}, publish="live")
    project.on_run_end("{{ reverse_etl.publish(results) }}")

    def run() -> Result:
        return project.dbt("run", "--exclude", "package:reverse_etl", "--single-threaded")

    def done() -> int:
        """How many steps the operation tells to be done, one after the other."""
        text = project.dbt("run-operation", "steps", "--args", "{model: wide}").text
        told = re.findall("^  (inputs pinned|affected keys|recompute and diff|commit|publish) +(done|open)", text, re.M)
        assert len(told) == 5, text
        assert [state for _, state in told] == sorted(state for _, state in told), text
        return sum(state == "done" for _, state in told)

    def snapshots() -> list[tuple[int, str]]:
        position = "_header.positions['affected_keys/app.regions']"
        query = f"select _snapshot_id, {position} from {{s}}.wide where _change = 'snapshot' order by 1"
        return [tuple(row) for row in project.rows(query)]

    assert run().success
    assert done() == 5
    first = snapshots()
    project.rows("update {s}.regions set name = 'newer' where id = 5")
    for number in killed_at:
        step = STEPS[number - 1]
        with killed_after(number):
            run()
        assert (snapshots() == first) is (step != "commit"), step
        assert done() == (3 if step == "old images" else min(number, 4)), step
    (_, before), (_, after) = snapshots()
    assert None not in (before, after)
    assert before != after
    result = run()
    assert "full compare" not in result.messages["wide"]
    assert result.messages["wide"].startswith("+0 ~0 -0")
    assert "live shows snapshot 2" in result.text
    assert done() == 5
    changed = project.rows("select id, region from {s}.wide where _change = 'update_postimage' order by id")
    assert [tuple(row) for row in changed] == [(n, "newer") for n in (5, 6, 11, 12)]


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_reverse_index_finds_the_touched_rows_and_one_that_is_too_old_or_not_built_is_not_believed(
    project: Project,
) -> None:
    regional(project, "view")
    body = "-- depends_on: {{ ref('orders_log') }} {{ ref('orders_by_customer') }} {{ source('app', 'customers') }}\n"
    nodes = [
        {"name": "orders", "table": "orders_log", "key": "id", "columns": ["note"]},
        REGIONAL["nodes"][1] | {"columns": {"name": "customer"}, "reverse_index": "orders_by_customer"},
    ]
    settings = {
        "wide_table": {"root": "orders", "nodes": nodes},
        "capture": {"strategy": "affected_keys", "full_above": 1},
    }
    project.changelog("orders_log", "select * from {{ source('app', 'orders') }}")
    project.changelog("wide", body + "{{ reverse_etl.wide_table() }}", settings=settings)
    index = {"materialized": "incremental", "incremental_strategy": "merge", "unique_key": ["customer_id", "id"]}
    clustered = {"post_hook": "alter table {{ this }} cluster by (customer_id)"}
    project.model(
        "orders_by_customer", "{{ reverse_etl.reverse_index(ref('orders_log'), 'customer_id') }}", index | clustered
    )

    def run(select: str, *statements: str) -> Result:
        for statement in statements:
            project.rows(statement)
        result = project.dbt("run", "--select", *select.split())
        assert result.success, result.text
        return result

    rename = "update {{s}}.customers set name = '{}' where id = {}"
    run("orders_log orders_by_customer wide")
    moved = ("update {s}.orders set customer_id = 6 where id = 1", "delete from {s}.orders where id = 12")
    run("orders_log orders_by_customer", *moved)
    pairs = project.rows(
        "select customer_id, id, _snapshot_id from {s}.orders_by_customer where id in (1, 12) order by 1, 2"
    )
    assert [tuple(row) for row in pairs] == [(1, 1, 1), (6, 1, 2), (6, 12, 1)]
    project.rows("delete from {s}.orders_by_customer where id = 3")
    message = run("wide", rename.format("Three", 3)).messages["wide"]
    assert message == "+0 ~1 -1, snapshot 2", "the index is what is read: order 9 is found, and order 3 is not"
    executed = (project.folder / "logs" / "dbt.log").read_text()
    assert "orders_by_customer where (`customer_id` between 0 and 1023))" in executed, "where the ids lie that changed"
    project.rows("delete from {s}.orders_by_customer")
    result = run("wide", rename.format("Six", 6))
    assert result.messages["wide"] == "+0 ~2 -0, snapshot 3"
    assert "the reverse index orders_by_customer lacks 13 rows of orders_log, which is read instead" in result.text
    assert project.rows("describe detail {s}.orders_by_customer")[0]["clusteringColumns"] == ["customer_id"]
    project.rows("drop table {s}.orders_by_customer")
    result = run("wide", rename.format("Sixth", 6))
    assert result.messages["wide"] == "+0 ~2 -0, snapshot 4"
    assert "the reverse index orders_by_customer lacks 13 rows of orders_log, which is read instead" in result.text
    project.changelog("orders_log", "select * from {{ source('app', 'orders') }}", event_time="_captured_at")
    assert project.dbt("run", "--select", "orders_by_customer", "--sample", "1 day").success
    assert project.rows("select count(*) as rows from {s}.orders_by_customer")[0].rows
    result = run("wide", rename.format("Seventh", 6))
    assert "the reverse index orders_by_customer lacks 13 rows of orders_log" in result.text, "a sample is no index"
