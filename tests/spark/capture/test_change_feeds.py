"""Change feeds whose files or log are gone, and tables that were restored: everything is compared, and nothing is missed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.dbt.project import Project

SEED = int(os.environ.get("REVERSE_ETL_TEST_SEED", "20240229"))
RUNS = 5
TABLES = {"orders": "id bigint, customer_id bigint, note string", "customers": "id bigint, name string"}
WIDE = {
    "root": "orders",
    "nodes": [
        {"name": "orders", "table": "app.orders", "key": "id", "columns": ["note"], "changes": "cdf"},
        {
            "name": "customer",
            "table": "app.customers",
            "key": "id",
            "join_on": {"customer_id": "id"},
            "columns": {"name": "customer"},
            "changes": "cdf",
        },
    ],
}
VACUUM = "vacuum {t} retain 0 hours"


class Table:
    """A Delta table with a change feed, and what its owner may do to it."""

    def __init__(self, project: Project, name: str, rng: random.Random) -> None:
        self.project, self.rng, self.text = project, rng, TABLES[name].split()[-2]
        self.name = f"{project.schema}.{name}"
        properties = "'delta.enableChangeDataFeed' = 'true', 'delta.checkpointInterval' = '3'"
        self.sql(f"create table {{t}} ({TABLES[name]}) using delta tblproperties ({properties})")
        others = ", id % 5" if "customer_id" in TABLES[name] else ""
        self.sql(f"insert into {{t}} select id{others}, 'first' from range(20)")

    def sql(self, statement: str) -> None:
        self.project.spark.sql(statement.replace("{t}", self.name)).collect()

    def write(self) -> None:
        key, value = self.rng.randrange(20), f"'{self.rng.randrange(10**6)}'"
        statements = [
            f"update {{t}} set {self.text} = {value} where id in ({key}, {key + 1})",
            f"delete from {{t}} where id = {key}",
            f"merge into {{t}} t using (select {key} as id) n on t.id = n.id when matched then update set {self.text} = {value} "
            f"when not matched then insert (id, {self.text}) values (n.id, {value})",
        ]
        self.sql(self.rng.choice(statements))

    def vacuum(self) -> None:
        self.sql(VACUUM)

    def vacuum_by_another_engine(self) -> None:
        """One of which the history does not tell."""
        logged = "spark.databricks.delta.vacuum.logging.enabled"
        self.project.spark.conf.set(logged, "false")
        self.sql(VACUUM)
        self.project.spark.conf.unset(logged)

    def optimize(self) -> None:
        self.sql("optimize {t}")

    def restore(self) -> None:
        newest = self.project.rows(f"describe history {self.name} limit 1")[0].version
        with suppress(PySparkException):  # its files may be gone
            self.sql(f"restore table {{t}} to version as of {newest - 1}")

    def truncate_log(self) -> None:
        """As its retention does, when it is shorter than that of the files: old versions are listed, but cannot be put together."""
        log = Path(urlparse(self.project.rows(f"describe detail {self.name}")[0].location).path) / "_delta_log"
        checkpoints = sorted(log.glob("*.checkpoint.parquet"))
        if checkpoints:
            for file in [*checkpoints[:-1], log / f"{0:020}.json"]:
                file.unlink(missing_ok=True)
                (log / f".{file.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def quick_vacuum(spark: SparkSession) -> Iterator[None]:
    """Any retention, and not one task for each of ten thousand parts of a folder."""
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


@pytest.mark.guarantee("Capture")
@pytest.mark.full
@pytest.mark.usefixtures("quick_vacuum")
def test_a_feed_that_was_vacuumed_truncated_or_restored_loses_no_change(project: Project) -> None:
    rng = random.Random(SEED)
    tables = [Table(project, name, rng) for name in TABLES]
    project.properties(
        "sources", {"sources": [{"name": "app", "schema": project.schema, "tables": [{"name": n} for n in TABLES]}]}
    )
    cdf = {"capture": {"strategy": "cdf", "table": "app.orders", "full_above": 1}}
    project.changelog("by_cdf", "select id, note from {{ source('app', 'orders') }}", settings=cdf)
    reads = "".join(f"-- depends_on: {{{{ source('app', '{name}') }}}}\n" for name in TABLES)
    wide = {"wide_table": WIDE, "capture": {"strategy": "affected_keys", "full_above": 1}}
    project.changelog("wide", reads + "{{ reverse_etl.wide_table() }}", settings=wide)
    done: list[list[str]] = []
    why = []
    for _ in range(RUNS):
        done.append([])
        for table in tables if len(done) > 1 else []:
            troubles: list[Callable[[], None]] = [
                table.vacuum, table.vacuum_by_another_engine, table.optimize, table.restore, table.truncate_log, table.write,
            ]  # fmt: skip
            for act in [table.write, rng.choice(troubles), rng.choice(troubles)]:
                act()
                done[-1].append(act.__name__)
        result = project.run()
        assert result.success, (SEED, done, result.text)
        why += [message for message in result.messages.values() if "full compare" in message]
        orders = [tuple(row) for row in project.rows("select id, note from {s}.orders order by id")]
        assert project.image("by_cdf", "id, note") == orders, (SEED, done)
        joined = "select o.id, o.note, c.name from {s}.orders o left join {s}.customers c on c.id = o.customer_id"
        rows = [tuple(row) for row in project.rows(f"{joined} order by 1")]
        assert project.image("wide", "id, note, customer") == rows, (SEED, done)
    assert any("cannot be read" in message for message in why), (SEED, done, why)
    assert any("had RESTORE" in message for message in why), (SEED, done, why)
