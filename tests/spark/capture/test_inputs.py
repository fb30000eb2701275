"""A full compare is left out where no input changed, and nowhere else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType

from tests.support.dbt.project import Project
from tests.support.effort import scaled

SEED = 20261125
ALWAYS = ("--vars", "{reverse_etl_skip_from_rows: 0}")  # however few rows there are
SAME = "no input changed"
MACRO = """
{% macro tell_state(queries) %}
    {%- set head, settings = {'live_rows': 1000000}, {'capture': {'strategy': 'compare'}, 'compare': 'hash', 'label': none, 'on_bad_key': 'fail'} -%}
    {%- for query in queries -%}
        {%- set first = reverse_etl._state_of_inputs(head, settings, query) -%}
        {%- set tables = reverse_etl._read_by(query).tables if first else none -%}
        {%- do log('told ' ~ tojson({'tables': tables, 'steady': reverse_etl._state_of_inputs(head, settings, query) == first}), info=true) -%}
    {%- endfor -%}
{% endmacro %}
"""
READS = {
    "select id, upper(name) as name from {s}.a": ["a"],
    "select * from {s}.a where id > (select max(id) - 5 from {s}.b) and name like 'x%'": ["a", "b"],
    "with c as (select id % 3 as g, count(*) as n from {s}.a group by all) select * from c join {s}.b using (g)": ["a", "b"],
    "select id, row_number() over (partition by g order by id) as n from {s}.b": ["b"],
    "select v.id, transform(array(v.id), x -> x + 1) as ids, case when b.g = 1 then 'a' end as c from {s}.v left join {s}.b on b.id = v.id": ["a", "b"],
    "select id, named_struct('a', g, 'b', array(g)) as s, map('k', g) as m, to_json(struct(g)) as j from {s}.b": ["b"],
    "select id, cast('2024-01-01' as date) as d, from_utc_timestamp(timestamp'2024-01-01 10:00:00', 'Asia/Tokyo') as t from {s}.a": ["a"],
    "select id, explode(array(1, 2)) as n from {s}.a union all select id, g from {s}.b order by 1 limit 3": ["a", "b"],
    "select " + ", ".join(f"id + {n} as c{n}" for n in range(40)) + " from {s}.a": ["a"],
    "select 1 as id": [],
    "select id, 'of AS and' as text from {s}.a": ["a"],
}  # fmt: skip
# Each would give other rows while no Delta table has a new version, or might.
UNKNOWN = [
    "select id, current_date() as d from {s}.a",
    "select id from {s}.a where current_timestamp() > timestamp'2024-01-01 00:00:00'",
    "select id, now() as at from {s}.a",
    "select id, unix_timestamp() as at from {s}.a",
    "select id, cast('today' as date) as d from {s}.a union all select id, cast('a' as date) from {s}.time_view",
    "select id, rand() as r from {s}.a",
    "select id, uuid() as u from {s}.a",
    "select id, current_user() as u from {s}.a",
    "select id, monotonically_increasing_id() as n from {s}.a",
    "select id, input_file_name() as f from {s}.a",
    "select id from {s}.a tablesample (50 percent)",
    "select id, plus_one(id) as n from {s}.a",
    "select id, {s}.upper(name) as name from {s}.a",
    "select id from {s}.a version as of 0",
    "select id from {s}.a timestamp as /* a comment */ of current_date() + 5",
    "select id from {s}.a timestamp as /* a /* comment */ in another */ of current_date() + 5",
    "select id from {s}.a timestamp AS -- a comment\nOF '2999-01-01'",
    "select id from {s}.old_view",
    "select id from {s}.time_view",
    "select id from passing",
    "select id from {s}.files",
    "select id from {s}.texts",
    "select id from parquet.`{place}`",
    "select id from {s}.kept_in_memory",
    "select a.id from {s}.a where exists (select 1 from {s}.files f where f.id = a.id)",
    "select " + ", ".join(f"id + {n} as c{n}" for n in range(40)) + ", current_date() as d from {s}.a",
    "select id, 'a\n== Optimized Logical Plan ==\nb' as text, current_date() as d from {s}.a",
    "select id, java_method('java.util.UUID', 'randomUUID') as u from {s}.a",
]


@pytest.fixture
def shop(spark: SparkSession, project: Project) -> Iterator[Project]:
    s = project.schema
    project.table("a", "select id, concat('x', id) as name from range(20)")
    project.table("b", "select id, id % 3 as g from range(20)")
    project.table("kept_in_memory", "select id from range(20)")
    spark.sql(f"create table {s}.files using parquet as select id from range(20)")
    spark.sql(f"create table {s}.texts using csv as select id from range(20)")
    spark.sql(f"create function {s}.upper(x string) returns string return concat(x, rand())")
    spark.sql(f"create view {s}.v as select id, name from {s}.a where id > 3")
    spark.sql(f"create view {s}.old_view as select id from {s}.a version as of 0")
    spark.sql(f"create view {s}.time_view as select id from {s}.a where current_date() > date'2024-01-01'")
    spark.sql(f"create or replace temporary view passing as select id from {s}.a")
    spark.sql(f"cache table {s}.kept_in_memory")
    spark.udf.register("plus_one", lambda number: number + 1, LongType())
    yield project
    spark.sql(f"uncache table {s}.kept_in_memory")
    spark.sql("drop temporary function plus_one")
    spark.sql("drop view passing")


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_what_a_query_reads_is_known_only_where_its_plan_names_delta_tables_and_nothing_that_gives_other_rows(
    shop: Project,
) -> None:
    (shop.folder / "macros").mkdir()
    (shop.folder / "macros" / "tell_state.sql").write_text(MACRO)
    place = shop.rows("describe detail {s}.a")[0].location
    queries = [one.replace("{s}", shop.schema).replace("{place}", place) for one in [*READS, *UNKNOWN]]
    result = shop.dbt("run-operation", "tell_state", "--args", json.dumps({"queries": queries}))
    assert result.success, result.text
    told = [json.loads(line.partition("told ")[2]) for line in result.lines if line.startswith("told ")]
    assert [one["steady"] for one in told] == [True] * len(queries), "the same text each time"
    tables = [one["tables"] and [table.split("`")[5] for table in one["tables"]] for one in told]
    assert dict(zip([*READS, *UNKNOWN], tables, strict=True)) == READS | dict.fromkeys(UNKNOWN)
    assert shop.spark.conf.get("spark.sql.debug.maxToStringFields") == "25"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_full_compare_is_left_out_where_no_input_changed_and_nowhere_else(
    spark: SparkSession, project: Project
) -> None:
    s = project.schema
    project.table("a", "select id, concat('x', id) as name from range(20)")
    project.model("staged", f"select id, name from {s}.a where id < 15", {"materialized": "view"})
    project.changelog("things", "select id, upper(name) as name from {{ ref('staged') }}")

    def ran(*flags: str) -> str:
        result = project.dbt("run", "--exclude", "package:reverse_etl", *flags)
        assert result.success, result.text
        return result.messages["things"]

    assert ran(*ALWAYS) == "+15 ~0 -0, snapshot 1"
    assert ran() == "+0 ~0 -0, snapshot 1", "few rows are compared sooner than that is asked"
    assert ran(*ALWAYS) == "+0 ~0 -0, snapshot 2", "a header that records the inputs for the first time"
    assert ran(*ALWAYS) == f"+0 ~0 -0, snapshot 2 ({SAME})"
    assert SAME not in ran()
    assert SAME not in ran(*ALWAYS, "--full-refresh")
    spark.sql(f"update {s}.a set name = 'new' where id = 3")
    assert ran(*ALWAYS) == "+0 ~1 -0, snapshot 3"
    assert ran(*ALWAYS) == f"+0 ~0 -0, snapshot 3 ({SAME})"
    spark.sql(f"update {s}.a set name = 'outside' where id = 18")
    assert ran(*ALWAYS) == "+0 ~0 -0, snapshot 3", (
        "nothing is committed for an input that changed without a change of the rows"
    )
    spark.sql(f"restore table {s}.a to version as of 0")
    assert ran(*ALWAYS) == "+0 ~1 -0, snapshot 4"
    project.table("a", "select id, concat('y', id) as name from range(20)")
    assert ran(*ALWAYS) == "+0 ~15 -0, snapshot 5"
    spark.sql(f"drop table {s}.a")
    project.table("a", "select id, concat('z', id) as name from range(20)")
    assert ran(*ALWAYS) == "+0 ~15 -0, snapshot 6", "also of a table with the version of the one before it"
    assert project.dbt("run-operation", "rollback", "--args", "{model: things, to: 5}").success
    assert project.dbt("run-operation", "release", "--args", "{model: things}").success
    assert ran(*ALWAYS) == "+0 ~15 -0, snapshot 9", "what a rollback took back is captured again"
    project.model("staged", f"select id, name from {s}.a where id < 14", {"materialized": "view"})
    assert ran(*ALWAYS) == "+0 ~0 -1, snapshot 10"
    spark.sql("set time zone 'Asia/Tokyo'")
    try:
        assert SAME not in ran(*ALWAYS)
    finally:
        spark.sql("set time zone 'UTC'")
    assert ran(*ALWAYS) == f"+0 ~0 -0, snapshot 10 ({SAME})"


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_a_comment_that_dbt_appends_to_each_statement_stops_no_capture(project: Project) -> None:
    project.dbt_project(**{"query-comment": {"comment": "of = dbt", "append": True}})
    columns = ", ".join(f"id + {n} as c{n}" for n in range(40))  # more than Spark's plans show by themselves
    project.table("source", f"select id, {columns} from range(3)")
    project.changelog("log", f"select * from {project.schema}.source")
    cdf = {"strategy": "cdf", "table": "app.source", "full_above": 1}
    app = {"name": "app", "schema": project.schema, "tables": [{"name": "source"}]}
    project.properties("sources", {"sources": [app]})
    project.spark.sql(f"alter table {project.schema}.source set tblproperties ('delta.enableChangeDataFeed' = 'true')")
    project.changelog("fed", "select id, c1 from {{ source('app', 'source') }}", settings={"capture": cdf})
    for number, news in enumerate(("+3 ~0 -0", "+0 ~0 -0", "+0 ~0 -0", "+0 ~1 -0")):
        if number == 3:
            project.spark.sql(f"update {project.schema}.source set c1 = 9 where id = 1")
        done = project.dbt("run", *ALWAYS)
        assert done.success, done.text
        assert [done.messages[name].startswith(news) for name in ("log", "fed")] == [True, True], done.text
        assert "full compare" not in done.messages["fed"], "the script that reads what may be gone ran"
        assert (SAME in done.messages["log"]) == (number == 2)


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_inputs_that_a_full_compare_recorded_do_not_count_after_a_feed_that_kept_rows_aside(project: Project) -> None:
    noon = "timestamp'2900-01-01 12:00'"
    project.table("a", f"select id, 1 as day, {noon} as due, id as at, 'right' as v from range(4)")
    types = "id bigint, day int, due timestamp, at bigint, v string, op string"
    project.spark.sql(f"create table {project.schema}.events ({types}) using delta")
    later = f"(9, 2, {noon} + interval '1 day', 101, 'new', 'I')"
    project.spark.sql(f"insert into {project.schema}.events values (3, 1, {noon}, 100, 'wrong', 'U'), {later}")

    def ran(relation: str, **settings: Any) -> str:
        project.changelog("things", f"select * from {project.schema}.{relation}", settings=settings)
        result = project.dbt("run", "--exclude", "package:reverse_etl", *ALWAYS)
        assert result.success, result.text
        return result.messages["things"]

    said = ["+4 ~0 -0, snapshot 1", "+0 ~0 -0, snapshot 2", f"+0 ~0 -0, snapshot 2 ({SAME})"]
    assert [ran("a") for _ in said] == said
    feed = {"strategy": "feed", "operation": "op", "sequence": "at"}
    waits = ran("events", capture=feed, label={"by": "day", "at": "due", "grace": "2 hours"})
    assert waits == "+0 ~1 -0, snapshot 3 (1 rows kept aside)"
    assert ran("a") == "+0 ~1 -0, snapshot 4"


JOINED = "select a.id, a.name, b.n as number from {s}.a left join {s}.b on a.id % 3 = b.id"
MODELS = {
    "things": "select id, name, number, (select count(*) from {s}.c) as total from {s}.joined",
    "people": "select id, name, id as number, 0L as total from {s}.a where id in (select id from {s}.c)",
}


@pytest.mark.full
@pytest.mark.guarantee("Capture")
def test_over_random_histories_of_inputs_a_changelog_holds_what_its_model_gives(project: Project) -> None:
    print(f"seed {SEED}")
    rng, steps, left_out = random.Random(SEED), scaled(15), 0
    for name in "abc":
        project.table(name, f"select id, 'v' as name, id as n from range({rng.randint(0, 6)})")
    project.spark.sql(f"create view {project.schema}.joined as {JOINED}".replace("{s}", project.schema))
    for name, query in MODELS.items():
        project.changelog(name, query.replace("{s}", project.schema))
    for step in range(steps):
        for name in rng.sample("abc", rng.choice((0, 0, 1, 2))):
            _change(project, rng, name, step)
        result = project.dbt("run", "--exclude", "package:reverse_etl", *ALWAYS)
        assert result.success, result.text
        left_out += sum(SAME in message for message in result.messages.values())
        for name, query in MODELS.items():
            expected = sorted(tuple(row) for row in project.rows(query))
            assert project.image(name, "id, name, number, total") == expected, (SEED, step, result.messages)
    assert 0 < left_out < len(MODELS) * steps, "both happen"


def _change(project: Project, rng: random.Random, name: str, step: int) -> None:
    table = f"{project.schema}.{name}"
    kind = rng.choice(("update", "delete", "insert", "same", "recreate", "restore", "optimize"))
    if kind == "update":
        project.spark.sql(f"update {table} set name = 'v{step}' where id % 2 = {step % 2}")
    elif kind == "delete":
        project.spark.sql(f"delete from {table} where id = {rng.randint(0, 5)}")
    elif kind == "insert":
        free = project.spark.sql(f"select coalesce(max(id), -1) + 1 from {table}").collect()[0][0]
        project.spark.sql(f"insert into {table} select {free}L, 'v{step}', {step}L")
    elif kind == "same":
        project.spark.sql(f"insert overwrite {table} select * from {table}")
    elif kind == "recreate":
        project.spark.sql(f"drop table {table}")
        project.table(name, f"select id, 'v{step}' as name, id as n from range({rng.randint(0, 6)})")
    elif kind == "restore":
        newest = project.spark.sql(f"describe history {table} limit 1").collect()[0].version
        project.spark.sql(f"restore table {table} to version as of {rng.randint(0, newest)}")
    else:
        project.spark.sql(f"optimize {table}")
