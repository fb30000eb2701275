"""What Spark is asked to do: two exchanges for the diff, one evaluation of the model, only the files of the wanted snapshots, and three commits for a run."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyspark.sql import SparkSession

from dbt_reverse_etl.delivery.facts import BUCKETS, Range
from dbt_reverse_etl.delivery.position import State
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.warehouse.head import read_head
from dbt_reverse_etl.warehouse.pending import Pending
from dbt_reverse_etl.warehouse.spec import Spec
from tests.benchmarks.capture import rendered_diff
from tests.benchmarks.meter import metered
from tests.benchmarks.profile import Timeline
from tests.support.dbt.project import Project


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Four snapshots of 400 rows, no checkpoint after the first."""
    project = Project(tmp_path_factory.mktemp("plans") / "shop", spark, "plans_of_queries")
    project.changelog("things", f"select * from {project.schema}.source")
    for number in range(4):
        project.table("source", f"select id, if(id % 40 = {number}, 'x', 'y') as name, id % 7 as age from range(400)")
        assert project.run().success
    return project


@pytest.mark.full
def test_the_diff_has_one_exchange_a_side_and_the_count_reads_the_one_of_the_model_again(shop: Project) -> None:
    frame = shop.spark.sql(rendered_diff(shop, "hash", "source", base=1, head=4))
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan().toString()
    final = plan.partition("== Initial Plan ==")[0]
    found = re.findall(r"- Exchange (\w+)", final)
    assert sorted(found) == ["SinglePartition", "hashpartitioning", "hashpartitioning"], final
    assert final.count("ReusedExchange") == 1, final
    assert final.count("Window ") == 1, "the head image"


def test_pending_reads_only_the_files_of_the_snapshots_after_the_position(shop: Project) -> None:
    relation = f"{shop.schema}.things"
    head = read_head(shop.spark, relation)
    assert head is not None
    spec = Spec((("id", "id", "bigint"), ("name", "name", "string")), None, Mode.MIRROR)
    every = set(shop.spark.table(relation).inputFiles())
    latest = set(shop.spark.table(relation).where("_snapshot_id = 4").inputFiles())
    assert latest < every
    for position, wanted in ((3, latest), (4, set())):
        state = State(1, "c", (Range(0, BUCKETS, position, "s"),), specs={"s": spec.text})
        query = Pending(relation, head, "ab", "s", spec, state).sql(None)
        assert set(shop.spark.sql(query).inputFiles()) == wanted
        assert query.count(relation) == 1, "one scan"


def test_a_key_is_found_by_its_file_statistics(shop: Project) -> None:
    properties = {row.key: row.value for row in shop.rows("show tblproperties {s}.things")}
    assert properties["delta.dataSkippingStatsColumns"] == "_snapshot_id,_change,`id`"


@pytest.mark.full
def test_a_warm_run_commits_once_for_the_snapshot_and_twice_for_the_push_and_none_where_nothing_changed(
    spark: SparkSession, tmp_path: Path
) -> None:
    project = Project(tmp_path / "shop", spark, "plans_of_a_warm_run")
    project.changelog("things", f"select * from {project.schema}.source")
    project.sync("crm_things", "things", mode="mirror")
    warehouse = Path(urlparse(spark.conf.get("spark.sql.warehouse.dir")).path)
    told = {}
    for name in ("first", "second", "changed", "unchanged"):
        if name != "unchanged":
            project.table("source", f"select id, if(id % 40 = 0, '{name}', 'y') as name from range(400)")
        timeline = Timeline()
        with timeline.watched(), metered(spark, warehouse) as cost:
            assert project.run().success
        told[name] = (cost.commits, len(timeline.calls))
    assert told["changed"][0] == 3, told
    assert told["changed"][1] <= 42, "statements and actions"
    assert told["unchanged"][0] == 0, told
    assert told["unchanged"][1] <= 30, "statements and actions"
