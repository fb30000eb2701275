"""Functions of users: their bodies decide the rows of a model as its own SQL does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.dbt.macros import Macros


class Warehouse:
    """Its functions, by their full names, and what it was asked."""

    def __init__(self, **bodies: str) -> None:
        self.bodies = {name.replace("__", "."): body for name, body in bodies.items()}
        self.asked: list[str] = []

    def query(self, statement: str) -> Any:
        self.asked.append(statement)
        if statement.startswith("show user functions"):
            return SimpleNamespace(rows=[[name] for name in self.bodies])
        name = statement.removeprefix("describe function extended ").replace("`", "")
        lines = [f"Function: {name}", f"Create Time:  {len(self.asked)}", f"Body: {self.bodies[name]}"]
        return SimpleNamespace(rows=[[line] for line in lines])


def hash_of(sql: str, warehouse: Warehouse) -> str:
    model = SimpleNamespace(compiled_code=sql, depends_on=SimpleNamespace(nodes=[]), unique_id="m")
    context: dict[str, Any] = {"model": model, "graph": SimpleNamespace(nodes={})}
    text: str = Macros(local_md5=str, run_query=warehouse.query, **context)._sql_of_rows()
    return text


@pytest.mark.guarantee("Capture")
def test_another_body_of_a_function_that_the_model_calls_is_another_sql_and_the_time_of_its_making_is_not() -> None:
    sql = "select id, `Cents`(x) as v, db.rate(x) from t"
    before = hash_of(sql, Warehouse(c__db__cents="x * 100", db__rate="1", c__other="1"))
    again = Warehouse(c__db__cents="x * 100", db__rate="1", c__other="2")
    hash_of("select 1, f(2)", again)
    assert hash_of(sql, again) == before
    assert again.asked[1:] == [
        "show user functions",
        "describe function extended `c`.`db`.`cents`",
        "show user functions in db",
        "describe function extended `db`.`rate`",
    ]
    assert hash_of(sql, Warehouse(c__db__cents="x * 99", db__rate="1")) != before
    assert hash_of(sql, Warehouse(c__db__cents="x * 100", db__rate="2")) != before


@pytest.mark.guarantee("Capture")
def test_so_is_the_body_of_a_function_that_such_a_function_calls_also_where_each_calls_the_other() -> None:
    bodies = ("inner_one(x) + coalesce(x, 1)", "outer_one(x) * 2", "outer_one(x) * 3")
    found = {hash_of("select outer_one(x)", Warehouse(c__outer_one=bodies[0], c__inner_one=one)) for one in bodies[1:]}
    assert len(found) == 2


def test_sql_without_functions_of_users_costs_no_statement() -> None:
    warehouse = Warehouse(c__f="1")
    hash_of(
        "with a as (select * except (b) from t where x in (1, 2) and (y or not (z)))\n"
        "select count(distinct (x)) filter (where x > 1), row_number() over (partition by (x)), 'f(x)' as s -- f(x)\n"
        "/* f(x) */ from a join b using (id) union all (select cast(x as decimal(5,2)), system.builtin.abs(1) from (values (1)) v)",
        warehouse,
    )
    assert warehouse.asked == []
