"""What may hide a change of a wide table, so that a run compares everything and says why; and inputs that are deferred."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.support.dbt.project import Project
from tests.support.wide.regional import FEED, REGIONAL


class Gates:
    """Four orders of two customers, whose keys are texts; each run is checked against the full join."""

    def __init__(self, project: Project) -> None:
        self.project, self.recompute = project, {}
        self.root = {"name": "orders", "table": "orders_log", "key": "id", "columns": ["note"]}
        self.customer = REGIONAL["nodes"][1] | {"columns": {"name": "customer"}}
        self.body, self.lines = "{{ reverse_etl.wide_table() }}", []
        columns = {"orders": "id string, customer_id int, note string", "customers": "id int, name string"}
        for name, told in (columns | {"lines": "order_id int"}).items():
            project.rows(f"create table {{s}}.{name} ({told}) using delta {FEED}")
        tables = [{"name": name} for name in ("orders", "customers", "lines")]
        project.properties("sources", {"sources": [{"name": "app", "schema": project.schema, "tables": tables}]})
        project.changelog("orders_log", "select * from {{ source('app', 'orders') }}")
        project.rows("insert into {s}.orders select concat('00', id), id % 2, 'first' from range(1, 5)")
        project.rows("insert into {s}.customers values (0, 'Ann'), (1, 'Bob')")

    def reason(self, *statements: str) -> str:
        """Why the run after these changes compared everything; empty where it did not."""
        for statement in statements:
            self.project.rows(statement)
        hints = "-- {{ ref('orders_log') }} {{ source('app', 'customers') }} {{ source('app', 'lines') }}\n"
        declared = {"root": "orders", "nodes": [self.root, self.customer, *self.lines]}
        capture = {"strategy": "affected_keys", "full_above": 1, **self.recompute}
        self.project.changelog("wide", hints + self.body, settings={"wide_table": declared, "capture": capture})
        result = self.project.run()
        assert result.success, result.text
        assert self.project.image("wide", "id, note, customer") == [
            tuple(row) for row in self.project.rows(self._truth())
        ]
        return result.messages["wide"].partition("full compare: ")[2].rstrip(")")

    def _truth(self) -> str:
        customers = f"(select * from {{s}}.customers where {self.customer.get('where', 'true')})"
        return f"select o.id, note, name from {{s}}.orders o left join {customers} c on c.id = customer_id order by 1"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_whatever_may_hide_a_change_makes_the_run_compare_everything_and_say_why(project: Project) -> None:
    gates = Gates(project)
    rename = "update {{s}}.customers set name = '{}' where id = 1"
    note = "update {s}.orders set note = 'newer' where id = '002'"
    other_sql = "the SQL of the model or of a view is another one"
    gates.reason()
    assert gates.reason(rename.format("B"), note) == ""
    assert project.dbt("run-operation", "reset", "--args", "{model: orders_log}").success
    assert gates.reason("delete from {s}.orders where id = '003'") == "orders_log was made anew"
    assert gates.reason("alter table {s}.orders add columns (more int)", note.replace("newer", "more")) == ""
    wider = "select id, cast(customer_id as bigint) as customer_id, note, more from {{ source('app', 'orders') }}"
    project.changelog("orders_log", wider)
    assert gates.reason() == "a column of orders_log has another type"
    gates.customer["where"] = "name <> 'C' and current_date > date '2020-01-01'"
    timed = "wide_table.nodes.customer uses current_date, so that more changes than its rows"
    assert gates.reason() == f"{timed}; {other_sql}"
    assert gates.reason(rename.format("C")) == timed
    del gates.customer["where"]
    gates.body = "select *, upper(note) as shout from ({{ reverse_etl.wide_table() }})"
    own_sql = "the model adds SQL to its wide table; if each row follows from the row with the same key alone, say capture.recompute: affected"
    assert gates.reason(rename.format("D")) == f"{own_sql}; {other_sql}"
    gates.recompute = {"recompute": "affected"}
    assert gates.reason(rename.format("E")) == ""
    del gates.customer["changes"]
    untold = "what changed in app.customers is not known: it is no changelog and has no changes: cdf"
    assert gates.reason(rename.format("F")) == untold


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_changelog_from_a_copy_another_session_or_tree_and_a_cached_or_widened_table_hide_no_change(
    project: Project,
) -> None:
    gates, conf = Gates(project), project.spark.conf
    gates.body = "select *, upper(note) as shout from ({{ reverse_etl.wide_table() }})"
    gates.recompute = {"recompute": "affected"}
    note = "update {{s}}.orders set note = '{}' where id = '{}'"
    gates.reason()
    copy = shutil.copytree(folder_of(project, "orders_log"), project.folder / "copy")
    assert gates.reason(note.format("b", "001")) == ""
    put_back = ("drop table {s}.orders_log", f"create table {{s}}.orders_log using delta location '{copy}'")
    assert gates.reason(*put_back, note.format("c", "002")) == "orders_log was put back from a copy"
    conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        other = gates.reason(note.format("d", "003"))
    finally:
        conf.set("spark.sql.session.timeZone", "UTC")
    assert other == "the session has other settings: Asia/Tokyo; before: UTC"
    assert gates.reason() == "the session has other settings: UTC; before: Asia/Tokyo"

    project.rows(f"create table {{s}}.elsewhere (id int, name string) using delta {FEED}")
    project.rows("insert into {s}.elsewhere values (2, 'Cyd')")
    project.rows("insert into {s}.orders values ('009', 2, 'of Cyd')")
    project.rows("cache table {s}.customers")
    written_by_another_program(project, "elsewhere", "customers")
    assert project.rows("select * from {s}.customers where id = 2") == [], "the cache hides the row"
    assert gates.reason() == ""
    assert "Cyd" in str(project.image("wide", "customer"))

    project.rows("uncache table {s}.customers")
    project.rows("alter table {s}.customers set tblproperties ('delta.enableTypeWidening' = 'true')")
    project.rows("create table {s}.wider using delta as select 7L as id, 'Gus' as name")
    assert gates.reason() == ""
    merge = "merge with schema evolution into {s}.customers c using {s}.wider w on c.id = w.id when not matched then insert *"
    customers = f"{project.schema}.customers"
    assert gates.reason(merge).replace(customers, "it") == "a column of it is new or has another type"

    other_tree = {"root": "orders", "nodes": [gates.root, gates.customer | {"where": "id < 5"}]}
    gates.body = gates.body.replace("wide_table()", f"wide_table({other_tree})")
    assert "joins another tree than its meta.reverse_etl.wide_table" in gates.reason()


def folder_of(project: Project, table: str) -> Path:
    return Path(urlparse(project.rows(f"describe detail {{s}}.{table}")[0].location).path)


def written_by_another_program(project: Project, table: str, to: str) -> None:
    """The newest commit of a table, also in another one: of this the session hears nothing."""
    here, there = folder_of(project, table), folder_of(project, to)
    for file in here.glob("*.parquet"):
        shutil.copy(file, there)
    newest = project.rows(f"describe history {{s}}.{to} limit 1")[0].version
    log = sorted((here / "_delta_log").glob("*.json"))[-1]
    shutil.copy(log, there / "_delta_log" / f"{newest + 1:020}.json")


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_key_that_is_text_in_one_table_and_a_number_in_another_hides_no_row(project: Project) -> None:
    gates = Gates(project)
    counted = {
        "cardinality": "many",
        "join_on": {"id": "order_id"},
        "aggregates": {"line_count": "count(*)"},
        "changes": "cdf",
    }
    gates.lines = [{"name": "lines", "table": "app.lines"} | counted]
    gates.reason()
    note = "update {s}.orders set note = 'newer' where id = '002'"
    reason = gates.reason("insert into {s}.lines values (1)", note)
    assert project.image("wide", "id, line_count") == [("001", 1), ("002", None), ("003", None), ("004", None)]
    assert reason == "keys meet by a cast: orders.id is string, lines.order_id is int"


@pytest.mark.full
def test_inputs_that_are_deferred_tell_their_rows_and_their_changes_from_one_place(project: Project) -> None:
    project.table("app_orders", "select id, id % 3 as customer_id from range(30)")
    project.table("app_customers", "select id, concat('name ', id) as name from range(3)")
    project.changelog("orders", f"select * from {project.schema}.app_orders")
    project.changelog("customers", f"select * from {project.schema}.app_customers")
    customers = {"name": "customers", "table": "customers", "key": "id", "join_on": {"customer_id": "id"}}
    nodes = [{"name": "orders", "table": "orders", "key": "id"}, {**customers, "columns": ["name"]}]
    settings = {
        "wide_table": {"root": "orders", "nodes": nodes},
        "capture": {"strategy": "affected_keys", "full_above": 1},
    }
    depends = "-- depends_on: {{ ref('orders') }} {{ ref('customers') }}\n"
    project.changelog("wide", depends + "{{ reverse_etl.wide_table() }}", settings=settings)
    assert project.dbt("run", "--select", "orders", "customers").success
    production, state = project.schema, project.folder / "production"
    state.mkdir()
    (state / "manifest.json").write_bytes((project.folder / "target/manifest.json").read_bytes())

    def developed() -> str:
        project.output["schema"] = f"{production}_dev"
        result = project.dbt("run", "--select", "wide", "--defer", "--state", str(state))
        project.output["schema"] = production
        assert result.success, result.text
        return result.messages["wide"]

    assert developed() == "+30 ~0 -0, snapshot 1"
    project.table("app_customers", "select id, if(id = 1, 'renamed', concat('name ', id)) as name from range(3)")
    assert project.dbt("run", "--select", "customers").success
    assert developed() == "+0 ~10 -0, snapshot 2"
