"""A stranger's dbt project gets two syncs, and walks through a first hour: wrong secrets, a blocked push, a dead destination, one refused row."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

from dbt_reverse_etl.base.errors import ExitCode
from dbt_reverse_etl.cli import main
from tests.support import ROOT
from tests.support.dbt import stranger
from tests.support.servers.http import free_port
from tests.support.servers.postgres import PASSWORD, ROLE, Database, new_database

pytestmark = pytest.mark.full

SCHEMA = "jaffle"
OF_THE_PACKAGE = "reverse_etl_"


@dataclass
class Said:
    """What one command printed, and how it ended."""

    code: int
    text: str
    nodes: list[str] = field(default_factory=list)


@dataclass
class Stranger:
    """The project, and each command by the name of its step."""

    folder: Path
    app: Database
    said: dict[str, Said] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def destinations(self) -> dict[str, Any]:
        app = {"type": "postgres", "host": self.app.socket, "database": self.app.name, "user": ROLE}
        secret = {"password": "{{ env_var('APP_PASSWORD') }}", "create_object": True}
        return {"crm": {"type": "sqlite", "path": str(self.folder / "crm.db")}, "app": {**app, **secret}}

    def dbt(self, step: str, *arguments: str) -> Said:
        lines: list[str] = []
        places = ["--project-dir", str(self.folder), "--profiles-dir", str(self.folder)]
        runner = dbtRunner(callbacks=[lambda event: lines.append(event.info.msg)])
        result = runner.invoke([*arguments, *places])
        nodes = [one.node.name for one in getattr(result.result, "results", None) or [] if getattr(one, "node", None)]
        self.said[step] = Said(int(not result.success), "\n".join([*lines, str(result.exception or "")]), nodes)
        return self.said[step]

    def ours(self, step: str, *arguments: str) -> Said:
        places = ["--project-dir", str(self.folder), "--profiles-dir", str(self.folder)]
        shown = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(shown), redirect_stderr(shown):
            patch.setattr(sys, "argv", ["dbt-reverse-etl", *arguments, *places])
            code = main()
        self.said[step] = Said(code, shown.getvalue())
        return self.said[step]

    def crm(self) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.folder / "crm.db") as crm:
            return crm.execute("select customer_id, first_name from customers order by 1").fetchall()


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    for schema in (SCHEMA, f"{SCHEMA}_marts", f"{SCHEMA}_reverse", "history"):
        spark.sql(f"drop schema if exists {schema} cascade")
    one = Stranger(tmp_path_factory.mktemp("stranger") / "jaffle", new_database())
    one.app.may_create()
    stranger.write(one.folder, SCHEMA, ROOT, one.destinations)
    here = Path.cwd()
    try:
        first_hour(one)
        mistakes(one)
        hundredth_night(one)
    finally:
        os.chdir(here)
        os.environ.pop("APP_PASSWORD", None)
    return one


def first_hour(one: Stranger) -> None:
    one.dbt("deps", "deps")
    one.dbt("seeds", "seed")
    one.dbt("staging without a secret", "run", "--select", "staging")
    one.dbt("all without a secret", "build")
    with pytest.MonkeyPatch.context() as off:
        off.setenv("DBT_REVERSE_ETL_PUSH", "off")
        one.dbt("switched off without a secret", "build")
    one.ours("plan without a secret", "plan")
    one.ours("status before", "status", "--fail")
    os.environ["APP_PASSWORD"] = PASSWORD
    one.ours("check", "check")
    one.dbt("first build", "build")
    one.seen["first build"] = one.crm()
    one.dbt("full refresh", "run", "--full-refresh", "--select", "customers_changelog")
    one.ours("status", "status", "--fail", "--json")


def mistakes(one: Stranger) -> None:
    wrong = {
        **one.destinations,
        "app": {**one.destinations["app"], "host": "127.0.0.1", "port": free_port(), "sslmode": "disable"},
    }
    stranger.profiles(one.folder, SCHEMA, wrong)
    stranger.seed(one.folder, "raw_orders", [*stranger.ORDERS[:-1], "6,2,2018-01-07,shipped"])
    one.dbt("dead destination", "build")
    one.ours("check of a dead destination", "check")
    stranger.profiles(one.folder, SCHEMA, one.destinations)
    one.app.run("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM crm_push")
    one.dbt("without a right", "retry")
    one.ours("check without a right", "check")
    one.ours("status without a right", "status", "--fail")
    one.app.run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO crm_push")
    one.ours("mended", "push")
    one.ours("nothing left", "push")


def hundredth_night(one: Stranger) -> None:
    stranger.seed(one.folder, "raw_customers", stranger.CUSTOMERS[:3])
    one.dbt("blocked", "build")
    one.ours("status while blocked", "status", "--fail")
    one.dbt("docs", "docs", "generate")
    found = re.search(r"--override (\S+)", one.said["blocked"].text)
    assert found, one.said["blocked"].text[-3000:]
    one.ours("overridden after docs", "push", "--override", found[1].strip("'`\"."))
    one.seen["overridden"] = one.crm()
    one.app.run("ALTER TABLE orders ADD CONSTRAINT no_placed CHECK (status <> 'lost')")
    stranger.seed(one.folder, "raw_orders", [*stranger.ORDERS, "7,1,2018-01-09,lost", "8,2,2018-01-10,placed"])
    one.dbt("refused row", "build")
    one.ours("undelivered", "undelivered", "app_orders")
    one.dbt("retry of a refused row", "retry")
    one.dbt("retry again", "retry")
    one.app.run("ALTER TABLE orders DROP CONSTRAINT no_placed")
    one.ours("retried", "retry")
    stranger.sync(
        one.folder, "app_customers", "customers_changelog", destination="app", object="customers", mode="mirror"
    )
    one.dbt("parse", "parse")
    one.ours("one row", "test", "app_customers", "--key", '{"customer_id": 2}')
    one.ours("the rest", "push")
    one.ours("status at the end", "status", "--fail", "--json")


def test_what_needs_no_secret_works_without_one_and_what_does_names_it(told: Stranger) -> None:
    for step in ("staging without a secret", "switched off without a secret", "plan without a secret"):
        assert told.said[step].code == 0, (step, told.said[step].text[-2000:])
    refused = told.said["all without a secret"]
    assert refused.code == 1
    assert "environment variable APP_PASSWORD, which is not set" in refused.text


def test_the_first_build_is_green_and_shows_few_nodes_of_the_package(told: Stranger) -> None:
    build = told.said["first build"]
    assert build.code == 0, build.text[-3000:]
    assert "SYNC crm_customers -> crm.customers" in build.text
    assert "SYNC app_orders -> app.orders" in build.text
    assert told.seen["first build"] == [(1, "Michael"), (2, "Shawn"), (3, "Kathleen"), (4, "Jimmy"), (5, "Katherine")]
    ours = [name for name in build.nodes if name.startswith(OF_THE_PACKAGE) and "_current_unique_" not in name]
    assert len(ours) == 5, (
        "the ledger and four views; none of their names is one of the project, which has a sync_status"
    )
    assert not [name for name in build.nodes if "accepted_values" in name or "sync_id" in name]


def test_status_and_check_tell_what_is_so(told: Stranger) -> None:
    assert "never ran" in told.said["status before"].text
    assert told.said["check"].code == 0, told.said["check"].text
    assert {row["health"] for row in json.loads(told.said["status"].text)} == {"ok"}
    assert told.said["status"].code == 0
    for step, word in (("status without a right", "failing"), ("status while blocked", "blocked")):
        assert told.said[step].code == 1, step
        assert word in told.said[step].text
    assert {row["health"] for row in json.loads(told.said["status at the end"].text)} == {"ok"}


def test_a_full_refresh_says_that_it_starts_nothing_over(told: Stranger) -> None:
    assert "--full-refresh starts nothing over" in told.said["full refresh"].text


def test_a_destination_that_is_down_is_told_before_the_models_run_and_by_name(told: Stranger) -> None:
    text = told.said["dead destination"].text
    early = text.index("destination app cannot be reached now")
    assert early < text.index("OK created"), "in the first seconds"
    assert "127.0.0.1" in text[early : early + 400]
    assert told.said["dead destination"].code == 1
    assert told.said["check of a dead destination"].code == 1
    assert "127.0.0.1" in told.said["check of a dead destination"].text


def test_a_role_without_a_right_is_told_the_right_and_the_object(told: Stranger) -> None:
    for step in ("without a right", "check without a right"):
        said = told.said[step]
        assert said.code == 1, step
        assert re.search(r"INSERT|privilege|GRANT", said.text), said.text[-2000:]
        assert "orders" in said.text
    assert told.said["mended"].code == 0, told.said["mended"].text
    assert "Nothing to push." in told.said["nothing left"].text


def test_the_command_of_a_blocked_push_works_whichever_dbt_command_came_between(told: Stranger) -> None:
    assert "max_deletes" in told.said["blocked"].text
    assert told.said["overridden after docs"].code == 0, told.said["overridden after docs"].text
    assert told.seen["overridden"] == [(1, "Michael"), (2, "Shawn"), (3, "Kathleen")]


def test_a_refused_row_is_listed_and_retries_end_with_words(told: Stranger) -> None:
    assert told.said["refused row"].code == 1
    assert '{"order_id":7}' in told.said["undelivered"].text
    assert "rejected" in told.said["undelivered"].text
    for step in ("retry of a refused row", "retry again"):
        assert "StopIteration" not in told.said[step].text
    assert told.said["retried"].code == 0, told.said["retried"].text


def test_one_row_is_tried_before_the_others(told: Stranger) -> None:
    assert told.said["one row"].code == 0, told.said["one row"].text
    assert "[+1 ~0 -0 in" in told.said["one row"].text
    assert "[+2 ~0 -0 in" in told.said["the rest"].text


def test_nothing_told_a_secret(told: Stranger) -> None:
    assert not [step for step, said in told.said.items() if PASSWORD in said.text]
    assert told.said["first build"].code == ExitCode.OK
