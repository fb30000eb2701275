"""Functions of users: their bodies decide the rows of a model as its own SQL does."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import Macros


class Warehouse:
    """Its functions, by their full names; the current schema is `c.main`.

    Args:
        lines: what it shows of each function besides its body.
    """

    def __init__(self, *lines: str, **bodies: str) -> None:
        self.lines = lines
        self.bodies = {name.replace("__", "."): body for name, body in bodies.items()}
        self.asked: list[str] = []

    def query(self, statement: str) -> Any:
        self.asked.append(statement)
        return SimpleNamespace(rows=[[line] for line in self.answer(statement)])

    def answer(self, statement: str) -> list[str]:
        schemas = sorted({name.rpartition(".")[0] for name in self.bodies} | {"c.main"})
        verb, _, place = statement.replace("`", "").partition(" in ")
        if verb == "show catalogs":
            return sorted({name.split(".")[0] for name in schemas})
        if verb == "show schemas":
            shown = [name.split(".")[1] for name in schemas if name.split(".")[0] == (place or "c")]
            return [
                name if re.fullmatch(r"[a-zA-Z_]\w*", name, re.ASCII) else f"`{name}`" for name in shown
            ]  # as Spark
        if verb == "show user functions":
            schema = place if "." in place else f"c.{place or 'main'}"
            assert schema in schemas, f"SCHEMA_NOT_FOUND: {schema}"
            return [name for name in self.bodies if name.rpartition(".")[0] == schema]
        name = verb.removeprefix("describe function extended ")
        return [f"Function: {name}", *self.lines, f"Create Time:  {len(self.asked)}", *self.body(self.bodies[name])]

    def body(self, text: str) -> list[str]:
        return [f"Body: {text}"]


class OldWarehouse(Warehouse):
    """As Spark shows a function before 4.2."""

    def body(self, text: str) -> list[str]:
        return [f"Usage: {json.dumps({'exprText': text, 'comment': 'v1.of(x)'})}"]


def hash_of(sql: str, warehouse: Warehouse) -> str:
    model = SimpleNamespace(compiled_code=sql, depends_on=SimpleNamespace(nodes=[]), unique_id="m")
    context: dict[str, Any] = {"model": model, "graph": SimpleNamespace(nodes={})}
    text: str = Macros(local_md5=str, run_query=warehouse.query, **context)._sql_of_rows()
    return text


@pytest.mark.guarantee("Capture")
def test_another_body_of_a_function_that_the_model_calls_is_another_sql_and_the_time_of_its_making_is_not() -> None:
    sql = "select id, `Cents`(x) as v, db.rate(x) from t"
    before = hash_of(sql, Warehouse(c__main__cents="x * 100", c__db__rate="1", c__main__other="1"))
    again = Warehouse(c__main__cents="x * 100", c__db__rate="1", c__main__other="2")
    hash_of("select 1, f(2)", again)
    assert hash_of(sql, again) == before
    assert again.asked[1:] == [
        "show user functions",
        "describe function extended `c`.`main`.`cents`",
        "show schemas",
        "show user functions in db",
        "describe function extended `c`.`db`.`rate`",
    ]
    assert hash_of(sql, Warehouse(c__main__cents="x * 99", c__db__rate="1")) != before
    assert hash_of(sql, Warehouse(c__main__cents="x * 100", c__db__rate="2")) != before


@pytest.mark.guarantee("Capture")
@pytest.mark.parametrize(
    ("sql", "function"),
    [
        ("select web_sessions.rate(x) from t", "c__web_sessions__rate"),
        ("select Session.rate(x) from t", "c__main__rate"),
        ("select system.session.rate(x) from t", "c__main__rate"),
        ("select `d`.`x y`.rate(x) from t", "d__x y__rate"),
        ("select `cust's id`, rate(x), 'a' from t", "c__main__rate"),
        ("select `a``'b`, rate(x), 'a' from t", "c__main__rate"),
        ("select f.`rate` (x) as (a, b) from t", "c__f__rate"),
        ("select (y) + rate(x) from t", "c__main__rate"),
        ("with a (x, y) as (select rate(x), 1 from t) select * from a", "c__main__rate"),
        ("select * from a, rate(1) as (select_, y)", "c__main__rate"),
    ],
)
def test_a_function_is_found_however_its_name_is_written_and_whatever_is_beside_it(sql: str, function: str) -> None:
    found = {hash_of(sql, Warehouse(c__main__id="1", **{function: body})) for body in ("x", "y")}
    assert len(found) == 2


@pytest.mark.guarantee("Capture")
def test_so_is_the_body_of_a_function_that_such_a_function_calls_also_where_each_calls_the_other() -> None:
    bodies = ("inner_one(x) + coalesce(x, 1)", "outer_one(x) * 2", "outer_one(x) * 3")
    for kind, lines in ((Warehouse, ()), (Warehouse, ("Language: SQL",)), (OldWarehouse, ())):
        sides = [kind(*lines, c__main__outer_one=bodies[0], c__main__inner_one=one) for one in bodies[1:]]
        assert len({hash_of("select outer_one(x)", side) for side in sides}) == 2


@pytest.mark.parametrize("schema", ["db", "my-db", "größe"])
def test_a_schema_that_spark_shows_in_quotes_is_known(schema: str) -> None:
    sides = [Warehouse(**{f"c__{schema}__rate": body}) for body in ("1", "2")]
    assert len({hash_of(f"select `{schema}`.rate(x)", side) for side in sides}) == 2


@pytest.mark.guarantee("Capture")
def test_neither_a_comment_nor_a_schema_that_does_not_exist_nor_a_body_of_python_fails_a_capture() -> None:
    python = Warehouse(
        "Language:      PYTHON", c__main__f="\n  import re\n  return re.sub(x) + other(1)", c__re__sub="1"
    )
    hash_of("select f(x)", python)
    assert python.asked == ["show user functions", "describe function extended `c`.`main`.`f`"]
    comment = Warehouse("Comment: since v1.2 (beta), as db.f(x)", "Data Access: CONTAINS SQL", c__main__f="x + 1")
    hash_of("select f(x)", comment)
    assert comment.asked == ["show user functions", "describe function extended `c`.`main`.`f`"]
    unknown = Warehouse(c__main__f="1")
    hash_of("select v1.f(x), iceberg.system.bucket(1, x), c.nowhere.f(x) from t", unknown)
    assert unknown.asked == ["show schemas", "show catalogs", "show catalogs", "show schemas in `c`"]


@pytest.mark.parametrize(
    "sql",
    [
        "with a as (select * except (b) from t where x in (1, 2) and (y or not (z))) select * from a",
        "select count(distinct (x)) filter (where x > 1), row_number() over (partition by (x)), 'f(x)' as s -- f(x)",
        "/* f(x) */ select 1 from a join b using (id) union all (select cast(x as decimal(5,2)), system.builtin.abs(1) from (values (1)) v)",
        "with a (x, y) as (select 1, 2), b(x) as (\n(select 3)), recursive_one (x) max recursion level 5 as (select 1) select * from a",
        "select * from values (1, 2) as t (id, n) join (select 1) u (id) using (id)",
        "select cast(x as numeric(10,2)), cast(x as dec(10,2)), x::numeric(10,2), x :: dec (5) from t",
        "select x from t qualify (row_number() over (order by x)) = 1",
        "select unix_timestamp(), pi(), typeof(x), e(), rint(x), raise_error('a'), assert_true(x), parse_json(x), variant_get(x, 'a') from t",
        "select current_user(), current_catalog(), current_database(), current_schema(), current_timezone(), user(), version() from t",
        "select input_file_name() from t tablesample (5 percent) repeatable (7)",
        "select `revenue (EUR)`, t.`revenue (EUR)`, t.`a` in (1), `t`.`a` in (2), sum(`f(x)`) as `of v(x)` from t",
        "select x as `a` from t where `x` in (1) and `y` between (1) and (2)",
    ],
)
def test_sql_without_functions_of_users_costs_no_statement(sql: str) -> None:
    warehouse = Warehouse(c__main__f="1")
    hash_of(sql, warehouse)
    assert warehouse.asked == []


def test_a_function_of_spark_that_gives_other_values_is_built_in_and_not_steady() -> None:
    macros = Macros()
    assert not set(macros._built_in_functions()) & set(macros._steady_functions())
