"""`dbt-reverse-etl run -- ...`: dbt as a child process, and the push after it, as a scheduler starts them."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.dbt.shop import DBT, REVERSE_ETL, start, write_shop
from tests.support.spark_session import INTERPRETED, spark_settings


class Shop:
    """A project on disk, and a database to which it pushes."""

    def __init__(self, folder: Path) -> None:
        self.home, self.database = folder / "shop", folder / "crm.db"
        destinations = {"crm": {"type": "sqlite", "path": str(self.database)}}
        write_shop(
            self.home, "select 1 as id, 'Ann' as name", spark_settings(folder / "spark") | INTERPRETED, destinations
        )
        (self.home / "models" / "last.sql").write_text("select * from {{ ref('people') }}")

    def run(self, *command: str) -> tuple[int, str]:
        process = start(self.home, *command, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        output = process.communicate(timeout=600)[0]
        return process.returncode, output

    def model(self, name: str, query: str) -> None:
        config = "{{ config(materialized='changelog', unique_key='id') }}\n" if name == "people" else ""
        (self.home / "models" / f"{name}.sql").write_text(config + query)

    def rows(self) -> list[tuple[int, str]]:
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute("select id, name from people order by id").fetchall()


@pytest.mark.guarantee("dbt and its commands")
def test_run_pushes_once_what_its_dbt_made_due_and_ends_with_the_worse_of_both_codes(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    code, output = shop.run(*DBT, "deps")
    assert code == 0, output

    code, output = shop.run(*REVERSE_ETL, "run", "--", "run", "--select", "people", "last")
    assert code == 0, output
    assert output.count("SYNC crm_people") == 1
    assert output.index("Completed successfully") < output.index("SYNC crm_people")
    assert shop.rows() == [(1, "Ann")]

    shop.model("people", "select 1 as id, 'Anna' as name")
    shop.model("last", "select no_such_column from {{ ref('people') }}")
    code, output = shop.run(*REVERSE_ETL, "run", "--", "run", "--select", "people", "last")
    assert code == 1, output
    assert "no_such_column" in output
    assert shop.rows() == [(1, "Anna")], "what succeeded is pushed"

    shop.model("last", "select * from {{ ref('people') }}")
    code, output = shop.run(*REVERSE_ETL, "run", "--", "retry")
    assert code == 0, output

    code, output = shop.run(*REVERSE_ETL, "run", "--", "run", "--no-such-option")
    assert code == 2, output
    assert "SYNC" not in output, "dbt has run nothing"

    code, output = shop.run(*REVERSE_ETL, "run", "--", "run", "--target", "dev")
    assert code == 2, output
    assert "before --" in output
