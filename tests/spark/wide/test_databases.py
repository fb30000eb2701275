"""A wide table across databases: Delta tables joined to Postgres, read over JDBC, and to CSV files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dbt.project import Project
from tests.support.servers.loopback import port_of
from tests.support.servers.postgres import PASSWORD, ROLE, Database, new_database

CATALOG = "spark.sql.catalog.crm"
JDBC = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
CUSTOMERS = "create table customers (id int primary key, name text, tier int, region text)"
TIERS = "create table tiers (id int primary key, name text)"
VIEWS = "{% macro views() %}{% do run_query('create view ' ~ target.schema ~ '.tiers as select * from crm.public.tiers') %}{% endmacro %}"
TRUTH = """
    select o.id, o.amount, c.name as customer, t.name as tier, r.name as region from {s}.orders o left join {s}.customers c on c.id = o.customer_id
    left join {s}.tiers t on t.id = c.tier left join {s}.regions r on r.code = c.region order by 1
"""


class Shop:
    """Orders are a Delta table; customers a JDBC table; tiers a view over a JDBC catalog; regions CSV files."""

    def __init__(self, project: Project, crm: Database, port: int, landing: Path) -> None:
        self.project, self.crm, self.regions = project, crm, landing / "regions.csv"
        self.url = f"jdbc:postgresql://127.0.0.1:{port}/{crm.name}"
        crm.run(f"{CUSTOMERS}; {TIERS}; grant select on customers, tiers to {ROLE}")
        crm.run("insert into customers values (1, 'Ann', 1, 'n'), (2, 'Bob', 2, 's')")
        crm.run("insert into tiers values (1, 'gold'), (2, 'tin')")
        self.regions.write_text("code,name\nn,North\ns,South\n")
        self._sources(landing)
        listed = "refresh table {{ source('app', 'regions') }}"
        for name, key in {"customers": "id", "tiers": "id", "regions": "code"}.items():
            hooks = {"pre_hook": listed} if name == "regions" else {}
            project.changelog(f"{name}_log", f"select * from {{{{ source('app', '{name}') }}}}", key=key, **hooks)
        self._wide("wide", "{}_log")
        self._wide("direct", "app.{}", pre_hook=listed)

    def _sources(self, landing: Path) -> None:
        """What an admin makes; the password of the JDBC table is in the metastore, that of the catalog in the environment."""
        driver = "org.postgresql.Driver"
        settings = {"": JDBC, ".url": self.url, ".driver": driver, ".user": ROLE}
        settings[".password"] = "{{ env_var('DBT_ENV_SECRET_CRM') }}"
        self.project.output["server_side_parameters"] = {f"{CATALOG}{name}": told for name, told in settings.items()}
        options = {"url": self.url, "dbtable": "public.customers", "driver": driver, "user": ROLE, "password": PASSWORD}
        listed = ", ".join(f"{name} '{told}'" for name, told in options.items())
        for statement in (
            "create table {s}.orders (id int, customer_id int, amount int) using delta tblproperties ('delta.enableChangeDataFeed' = 'true')",
            f"create table {{s}}.customers using jdbc options ({listed})",
            f"create table {{s}}.regions (code string, name string) using csv options (path '{landing}', header true)",
            "insert into {s}.orders select id, id % 4, 10 from range(1, 13)",
        ):
            self.project.rows(statement)
        tables = [{"name": name} for name in ("orders", "customers", "tiers", "regions")]
        declared = [{"name": "app", "schema": self.project.schema, "tables": tables}]
        self.project.properties("sources", {"sources": declared})
        (self.project.folder / "macros").mkdir()
        (self.project.folder / "macros" / "views.sql").write_text(VIEWS)
        assert self.project.dbt("run-operation", "views").success

    def _wide(self, model: str, table: str, **config: str) -> None:
        """The wide table over the changelogs, or over the tables themselves."""

        def node(name: str, key: str, parent: str, column: str) -> dict[str, object]:
            joined = {"parent": parent, "join_on": {column: key}, "columns": {"name": name}}
            return {"name": name, "table": table.format(f"{name}s"), "key": key, **joined}

        nodes = [
            {"name": "orders", "table": "app.orders", "key": "id", "columns": ["amount"], "changes": "cdf"},
            node("customer", "id", "orders", "customer_id"),
            node("tier", "id", "customer", "tier"),
            node("region", "code", "customer", "region"),
        ]
        names = [str(one["table"]) for one in nodes]
        calls = [f"source('app', '{name[4:]}')" if name.startswith("app.") else f"ref('{name}')" for name in names]
        body = "".join(f"-- depends_on: {{{{ {call} }}}}\n" for call in calls) + "{{ reverse_etl.wide_table() }}"
        capture = {"strategy": "affected_keys", "full_above": 1}
        settings = {"wide_table": {"root": "orders", "nodes": nodes}, "capture": capture}
        self.project.changelog(model, body, settings=settings, **config)

    def run(self) -> dict[str, str]:
        """What each model says; both wide tables have the rows of the plain join."""
        result = self.project.run()
        assert result.success, result.text
        assert PASSWORD not in result.text
        self.project.rows("refresh table {s}.regions")
        truth = [tuple(row) for row in self.project.rows(TRUTH)]
        for model in ("wide", "direct"):
            assert self.project.image(model, "id, amount, customer, tier, region") == truth
        return result.messages


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_wide_table_of_delta_postgres_and_csv_equals_the_plain_join_when_any_of_them_changes_a_late_row_included(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBT_ENV_SECRET_CRM", PASSWORD)
    crm, landing = new_database(), tmp_path / "landing"
    landing.mkdir()
    number = int(next(Path(crm.socket).glob(".s.PGSQL.*[0-9]")).suffix[1:])
    with port_of(str(Path(crm.socket) / f".s.PGSQL.{number}")) as port:
        shop = Shop(project, crm, port, landing)
        assert shop.run()["wide"].startswith("+12 ")
        crm.run("insert into customers values (3, 'Late', 7, 'w')")
        said = shop.run()
        assert said["wide"] == "+0 ~3 -0, snapshot 2", "its three orders were there before it"
        assert "what changed in app.customers is not known" in said["direct"]
        crm.run(
            "insert into tiers values (7, 'new'); update customers set name = 'Anna' where id = 1; delete from customers where id = 2"
        )
        shop.regions.write_text("code,name\nn,North\nw,Wild West\n")
        project.rows("update {s}.orders set amount = 11 where id = 4")
        assert shop.run()["wide"] == "+0 ~10 -0, snapshot 3"
        crm.run("update tiers set name = 'golden' where id = 1")
        assert shop.run()["wide"] == "+0 ~3 -0, snapshot 4"
    described = [*project.rows("describe extended {s}.customers"), *project.rows("show create table {s}.customers")]
    logs = (project.folder / "logs" / "dbt.log").read_text()
    assert PASSWORD not in f"{described} {logs}"
