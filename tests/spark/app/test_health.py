"""What a run says and how it ends, over a real history: line, exit code, `status`, the report and alerts have one opinion."""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.support.dbt.command import call, exit_code, read
from tests.support.dbt.project import Project, Result
from tests.support.delivery.account import Account, Ended
from tests.support.servers.http import HttpServer, Reply, http_server

REFUSED = "a constraint or trigger of the table refused the row"
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d")


class History:
    """A sync that only updates, the table that it updates, and what an account says of each run."""

    def __init__(self, project: Project, alerts: HttpServer) -> None:
        self.project, self._alerts, self._account, self._told = project, alerts, Account(updates_only=True), 0
        self.image: dict[str, int] = {}
        self.refused: set[str] = set()
        self._head, self._health = 0, "never pushed"
        project.alerts = [{"type": "webhook", "url": alerts.url}]
        project.changelog("stock_changelog", f"select key, value from {project.schema}.source", key="key")
        self.allow(None)
        with self.shop() as shop:
            shop.executescript(
                "create table contacts (key text primary key, value integer); create table refused (key text primary key);"
                "create trigger refuses before update on contacts when new.key in (select key from refused) "
                "begin select raise(abort, 'refused'); end;"
            )

    def shop(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self.project.folder / "crm.db", isolation_level=None))

    def allow(self, limit: Any) -> None:
        """Set `max_undelivered`; None: as it is by itself."""
        guards = {} if limit is None else {"guards": {"max_undelivered": limit}}
        self.project.sync("crm_stock", "stock_changelog", mode="update_only", **guards)

    def there(self, *keys: str) -> None:
        with self.shop() as shop:
            shop.executemany("insert into contacts (key) values (?)", [(key,) for key in keys])

    def refuse(self, *keys: str) -> None:
        self.refused = set(keys)
        with self.shop() as shop:
            shop.execute("delete from refused")
            shop.executemany("insert into refused values (?)", [(key,) for key in keys])

    def run(self, image: dict[str, int], allowed: int | None = 0) -> Ended:
        """One `dbt run`, and everything that is said of it."""
        if image != self.image:
            rows = ", ".join(f"('{key}', {value})" for key, value in image.items())
            self.project.table("source", f"select * from values {rows} as t (key, value)")
            self._head, self.image = self._head + 1, image
        wanted = self._ended(allowed)
        result = self.project.run()
        assert result.success == (wanted.code == 0), result.text
        assert result.sync("crm_stock") == wanted.line
        assert masked(result) == [TIME.sub("...", text) for text in wanted.details]
        self._agree(wanted)
        return wanted

    def retry(self, allowed: int | None = 0) -> None:
        wanted = self._ended(allowed, retry=True)
        assert exit_code(self.project, "retry", "--quiet") == wanted.code
        self._agree(wanted)

    def _ended(self, allowed: int | None, *, retry: bool = False) -> Ended:
        with self.shop() as shop:
            there = {key for (key,) in shop.execute("select key from contacts")}
        return self._account.push(
            self.image, self._head, datetime.now(timezone.utc), refused=dict.fromkeys(self.refused, REFUSED),
            absent=self.image.keys() - there, broken=False, allowed=allowed, retry=retry,
        )  # fmt: skip

    def _agree(self, wanted: Ended) -> None:
        """`status`, the report, the models and the alerts say what the run said."""
        missing, no_match = len(self._account.missing), len(self._account.owed) - len(self._account.missing)
        [row] = read(call(self.project, "status", "--json"))
        assert (row["health"], row["undelivered"], row["no_match"]) == (wanted.health, missing, no_match)
        assert [TIME.sub("...", text) for text in row["details"]] == [TIME.sub("...", text) for text in wanted.details]
        [sync] = read(call(self.project, "report", "--json"))["syncs"]
        assert (sync["health"], sum(one["rows"] for one in sync["left"]), sync["no_match"]) == (
            wanted.health,
            missing,
            no_match,
        )
        told = [one["state"] for request in self._alerts.received[self._told :] for one in request.json["syncs"]]
        self._told = len(self._alerts.received)
        began, ended = wanted.health == "failing", self._health == "failing"
        assert told == ([] if began == ended else ["failing" if began else "recovered"])
        self._health = wanted.health

    def facts(self) -> int:
        return int(self.project.rows("select count(*) from {s}.reverse_etl_ledger")[0][0])


def masked(result: Result) -> list[str]:
    return [TIME.sub("...", line.strip()) for line in result.lines if line.strip().startswith("undelivered: ")]


@pytest.fixture
def history(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    monkeypatch.setattr(sys, "argv", ["dbt-reverse-etl"])
    here = Path.cwd()
    with http_server() as server:
        yield History(project, server)
    os.chdir(here)


@pytest.mark.full
@pytest.mark.guarantee("dbt and its commands")
def test_over_a_real_history_line_exit_code_status_report_and_alerts_say_what_an_account_says(history: History) -> None:
    history.there("a", "b", "c")
    first = history.run({"a": 1, "b": 1, "x": 1})
    assert (first.code, first.line) == (0, "+0 ~2 -0, 1 no match"), "what is not there to update makes no run red"

    history.refuse("a", "c")
    history.run({"a": 2, "b": 2, "c": 2, "x": 1})
    facts = history.facts()
    waiting = history.run(history.image)
    assert (waiting.code, waiting.line) == (1, "nothing to send, 2 undelivered, 1 no match")
    assert history.facts() == facts, "a sync at rest writes nothing"

    history.allow("60%")
    assert history.run(history.image, allowed=2).code == 0, "60% of 4 rows are 2 whole ones"
    history.allow("40%")
    assert history.run(history.image, allowed=1).code == 1

    history.there("x")
    history.refuse("c")
    history.retry(allowed=1)
    history.refuse()
    history.allow(None)
    mended = history.run({"a": 2, "b": 2, "c": 3, "x": 1})
    assert (mended.code, mended.line) == (0, "+0 ~1 -0")
    counted = history.project.rows("select * from {s}.reverse_etl_ledger where fact = 'run_finished'")
    assert len(counted) == 4


@pytest.mark.guarantee("Report and alerts")
def test_the_dbt_test_over_undelivered_rows_counts_those_that_a_failed_run_did_not_list(project: Project) -> None:
    (project.folder / "tests").mkdir()
    for name, most in (("left", 2), ("left_few", 3)):
        (project.folder / "tests" / f"{name}.sql").write_text(
            f"{{{{ reverse_etl.undelivered_syncs(max_rows={most}) }}}}"
        )
    project.changelog("people", "select id, 'Ann' as name from values 1, 2, 3 as t (id)")
    with http_server(Reply(401)) as server:
        project.destinations["api"] = {"type": "http", "url": server.url}
        project.sync("crm_people", "people", destination="api", object="people", mode="upsert")
        assert project.run().sync("crm_people") == "ERROR failed"
    assert project.dbt("run", "--select", "package:reverse_etl").success
    assert project.rows("select status, rejected_inserts from {s}.reverse_etl_runs") == [("failed", 0)]
    assert project.rows("select count(*) from {s}.reverse_etl_undelivered") == [(0,)]
    assert project.rows("select undelivered_rows from {s}.reverse_etl_status") == [(3,)]
    assert project.dbt("test", "--select", "test_type:singular").statuses == {"left": "fail", "left_few": "pass"}
