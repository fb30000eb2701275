"""In Spark: the diff against the physical limit and against EXCEPT, the whole capture, and a push of nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

from jinja2 import Environment
from pyspark.sql import SparkSession

from dbt_reverse_etl.base import sql
from tests.benchmarks.turns import fastest, report
from tests.support.dbt.project import Project
from tests.support.spark_session import spark_settings

COLUMNS = (
    "id, cast(id % 1000 as int) as i, id * 7 as l, id * 1.1d as d, cast(id * 1.01 as decimal(18, 2)) as m, concat('name', id) as s, "
    "if(id % 10 = 0, null, concat('mail', id, '@example.com')) as e, concat('city', id % 100) as c, "
    "timestamp_micros(id * 1000000) as t, date_add(date'2020-01-01', cast(id % 3000 as int)) as b"
)


def quick_settings(home: Path) -> dict[str, str]:
    """The tests trade speed for a quick start; here the JIT may do its work."""
    return spark_settings(home) | {
        "spark.driver.memory": "6g",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.codegen.cache.maxEntries": "1000",  # by default fewer than the statements of one capture need
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={home / 'derby'}",
    }


def session(home: Path, more: Mapping[str, str] | None = None) -> SparkSession:
    """With Hive support, because dbt-spark's session method asks for it; `more` are settings of one benchmark."""
    builder = SparkSession.builder.enableHiveSupport()
    for name, value in (quick_settings(home) | dict(more or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def capture(spark: SparkSession, home: Path, rows: int, rounds: int) -> None:
    """The diff, and the whole capture, of a table with 1 % of its rows changed."""
    project = Project(home / "capture", spark, "bench_capture", quiet=True)
    project.table("source", f"select {COLUMNS} from range({rows})")
    project.changelog("things", f"select * from {project.schema}.source")
    assert project.run().success
    project.table("changed", changed_where(project, "id % 100 = 3"))
    project.table("changed_much", changed_where(project, "id % 4 = 3"))
    flagged = ", ".join(f"isnull({name}), {name}" for name in spark.table(f"{project.schema}.source").columns)

    def noop(query: str) -> Callable[[], None]:
        return lambda: spark.sql(query).write.format("noop").mode("overwrite").save()

    base = f"select xxhash64({flagged}) from {project.schema}.changed union all select xxhash64({flagged}) from {project.schema}.things"
    figures = fastest(
        rounds,
        {
            "base": noop(base),
            "fresh": noop(rendered_diff(project, "hash", "changed", base=1, head=1)),
            "much": noop(rendered_diff(project, "hash", "changed_much", base=1, head=1)),
            "except": noop(rendered_diff(project, "except", "changed", base=1, head=1)),
        },
    )
    report("diff on a fresh image / reading and hashing both sides", figures["fresh"] / figures["base"], "<= 1.5")
    report("EXCEPT both ways / diff", figures["except"] / figures["fresh"], ">= 3.5")
    report(
        "diff of 25 % changed / diff of 1 % changed", figures["much"] / figures["fresh"], "flat, but for the changes"
    )

    for number in range(rounds):  # each capture changes another 8 %: together just below a checkpoint
        project.table(
            "source", changed_where(project, f"id % 100 in ({', '.join(str(number * 8 + n) for n in range(8))})")
        )
        assert project.run().success
    head = rounds + 1
    project.table("changed", changed_where(project, "id % 100 = 99"))
    late = fastest(
        rounds, {"base": noop(base), "late": noop(rendered_diff(project, "hash", "changed", base=1, head=head))}
    )
    report(
        f"diff just before a checkpoint ({8 * rounds} % of changes) / reading and hashing both sides",
        late["late"] / late["base"],
        "<= 2",
    )

    small = Project(home / "whole", spark, "bench_whole", quiet=True)
    small.table("source", f"select {COLUMNS} from range({rows})")
    small.changelog("things", f"select * from {small.schema}.source")
    assert small.run().success
    numbers = iter(range(rounds + 1))

    def whole() -> float:
        small.table("source", changed_where(small, f"id % 100 = {next(numbers)}"))
        result = small.run()
        assert result.messages["things"].startswith(f"+0 ~{rows // 100} -0,"), result.messages
        return result.seconds["things"]

    captures = fastest(rounds, {"base": noop(base), "whole": whole})
    report(
        "whole capture, 1 % changed (diff, stage, commit) / reading and hashing both sides",
        captures["whole"] / captures["base"],
        "<= 3",
    )

    def unchanged(*flags: str) -> float:
        result = small.dbt("run", "--exclude", "package:reverse_etl", *flags)
        assert ("no input changed" in result.messages["things"]) is not bool(flags), result.messages
        return result.seconds["things"]

    still = fastest(rounds, {"asked": unchanged, "compared": lambda: unchanged("--full-refresh")})
    report(
        "a capture in which no input changed / a full compare in which nothing did",
        still["asked"] / still["compared"],
        "<= 0.1",
    )
    report("seconds of a capture in which no input changed", still["asked"], "<= 0.3")


def changed_where(project: Project, condition: str) -> str:
    """The source with another value in the rows for which the condition holds."""
    names = project.spark.table(f"{project.schema}.source").columns
    return f"select {', '.join(f'if({condition}, i + 1, i) as i' if name == 'i' else name for name in names)} from {project.schema}.source"


def rendered_diff(project: Project, compare: str, model: str, *, base: int, head: int) -> str:
    """The statement that the materialization stages, rendered from its own macros."""
    columns = [
        {"name": field.name, "type": field.dataType.simpleString()}
        for field in project.spark.table(f"{project.schema}.{model}").schema
    ]
    names = [column["name"] for column in columns]
    files = [sql.package_root() / "macros/capture" / name for name in ("compare.sql", "commit.sql")]
    environment = Environment(autoescape=False, extensions=["jinja2.ext.do"])
    namespace = SimpleNamespace(**vars(sql._namespace()))
    environment.globals |= {"reverse_etl": namespace, "return": sql._return}
    template = environment.from_string("\n".join(file.read_text() for file in files))
    context = template.new_context()
    for _ in template.root_render_func(context):
        pass
    namespace.__dict__.update({name: sql._returning(macro) for name, macro in context.vars.items()})
    return str(
        getattr(namespace, f"compare_{compare}")(
            f"{project.schema}.things",
            {"base": base, "snapshot_id": head, "columns": columns},
            {"key": ["id"], "names": names, "model": columns, "dropped": [], "widened": []},
            {"name": f"{project.schema}.{model}", "rows": f"{project.schema}.{model}"},
            {"on_bad_key": "fail"},
        )
    )


def push(spark: SparkSession, home: Path) -> None:
    """What the push adds to a `dbt run` in which nothing changed."""
    for syncs in (5, 50):
        project = Project(home / f"push_{syncs}", spark, f"bench_push_{syncs}", quiet=True)
        project.table("source", "select id, concat('name', id) as name from range(100)")
        project.changelog("things", f"select * from {project.schema}.source")
        for number in range(syncs):
            project.sync(f"sync_{number}", "things", mode="mirror", object=f"table_{number}")
        first = project.run()
        assert first.success, first.text
        added = []
        for _ in range(3):
            result = project.run()
            assert result.text.count("[nothing to send in") == syncs, result.text
            added.append(result.push_seconds)
        report(
            f"seconds that the push adds to a warm dbt run, nothing changed, {syncs} syncs",
            min(added),
            "<= 1.0" if syncs == 5 else "<= 3.0",
        )
