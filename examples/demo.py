"""`make demo`: the quickstart from an empty folder to a push of exactly what changed, each step checked.

Commands are shown as a user types them; dbt runs in this process, so that Spark starts once.
"""

from __future__ import annotations

import csv
import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crm import Crm

QUICKSTART = Path(__file__).parent / "quickstart"
MARK = ".made-by-demo"
FIELDS = ("customer_id", "name", "email", "plan", "lifetime_value")
# What only frames the results.
FRAME = {
    "MainReportVersion", "AdapterRegistered", "FoundStats", "ConcurrencyLine", "Formatting", "LogStartLine",
    "FinishedRunningStats", "UnableToPartialParse", "EndOfRunSummary",
    "DepsSymlinkNotAvailable", "DepsNotifyUpdatesAvailable",
}  # fmt: skip
Row = tuple[Any, ...]


class DemoError(Exception):
    """Something is not as the demo says; its text tells what."""


def main() -> int:
    began = time.monotonic()
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo").resolve()
    with Crm(token=secrets.token_hex(16)) as crm:
        try:
            demo = Demo(folder, crm)
            demo.set_up()
            demo.push_everything()
            demo.push_what_changed()
            demo.look_back()
            demo.push_nothing()
        except DemoError as error:
            print(f"\n{red('The demo failed:')} {error}\nLogs: {folder / 'logs'}")
            return 1
    print(f"\n{green('Everything above was checked.')} {time.monotonic() - began:.0f} s. The project is in {folder}")
    return 0


class Demo:
    """The steps, in order."""

    def __init__(self, folder: Path, crm: Crm) -> None:
        self.folder, self.crm = folder, crm

    def set_up(self) -> None:
        heading("1  A dbt project with one model, its changelog, and two syncs: a database and an HTTP API")
        if self.folder.exists():
            expect((self.folder / MARK).is_file(), f"{self.folder} is not of an earlier demo; move it away")
            shutil.rmtree(self.folder)
        shown(f"cp -r examples/quickstart {self.folder.name} && cd {self.folder.name}")
        shutil.copytree(QUICKSTART, self.folder, ignore=shutil.ignore_patterns("packages", "target", "dbt_packages"))
        os.chdir(self.folder)
        Path(MARK).touch()
        (self.folder / "logs").mkdir()
        for name in [name for name in os.environ if name.startswith("DBT_")]:
            del os.environ[name]
        os.environ |= {"DBT_PROFILES_DIR": str(self.folder), "CRM_API_URL": self.crm.url}
        os.environ |= {"CRM_API_TOKEN": self.crm.token, "PYSPARK_PYTHON": sys.executable}
        shown("dbt-reverse-etl init")
        done = subprocess.run([Path(sys.executable).parent / "dbt-reverse-etl", "init"], check=False)  # noqa: S603
        expect(done.returncode == 0, "init did not end well")
        keep_spark_quiet(self.folder / "logs" / "spark.log")
        dbt("deps")
        for file in ("models/customers_changelog.sql", "models/exposures.yml"):
            show_file(self.folder / file)

    def push_everything(self) -> None:
        heading("2  The first build pushes every row. Spark starts now, and fetches Delta Lake the first time")
        lines = dbt("build")
        for sync in ("crm_customers -> crm.customers", "crm_api_customers -> crm_api.customers"):
            expect_line(lines, f"{sync} ...", "[+8 ~0 -0 in")
        self.expect_equal_destinations()

    def push_what_changed(self) -> None:
        heading("3  The data changes: one row more, one less, two changed, and one only in a column that no sync maps")
        self.edit_seed()
        self.crm.requests.clear()
        lines = dbt("seed")
        expect(not any(" SYNC " in line for line in lines), "dbt seed pushed")
        note("dbt seed pushes nothing. A plain dbt run does:")
        lines = dbt("run")
        expect_line(lines, "customers_changelog", "+1 ~3 -1")
        for sync in ("crm_customers -> crm.customers", "crm_api_customers -> crm_api.customers"):
            expect_line(lines, f"{sync} ...", "[+1 ~2 -1 in")
        note("The changelog captured three updates; the one in internal_note concerns no sync, so it was not sent.")
        self.expect_equal_destinations()
        self.show_destinations()
        expected = ["DELETE /customers/6", "PUT /customers/2", "PUT /customers/3", "PUT /customers/9"]
        expect(sorted(self.crm.requests) == expected, f"the CRM got {self.crm.requests}")

    def edit_seed(self) -> None:
        file = self.folder / "seeds" / "customers_raw.csv"
        before = file.read_text(encoding="utf-8").splitlines()
        changed = {
            "2": before[2].replace(",free,", ",pro,"),
            "3": before[3].replace("310.50", "420.00"),
            "5": f"{before[5]}call back in May",
        }
        after = [changed.get(line.split(",")[0], line) for line in before if not line.startswith("6,")]
        after.append("9,Søren Kjær,soren@example.com,team,150.00,")
        shown("$EDITOR seeds/customers_raw.csv")
        for line in before:
            if line not in after:
                print(red(f"    - {line}"))
        for line in after:
            if line not in before:
                print(green(f"    + {line}"))
        file.write_text("\n".join(after) + "\n", encoding="utf-8")

    def show_destinations(self) -> None:
        shown("sqlite3 crm.db 'select * from customers order by 1'")
        table(FIELDS, self.in_database())
        note("The CRM behind the API holds")
        rows = [self.crm.rows[key] for key in sorted(self.crm.rows)]
        table(tuple(rows[0]), [tuple(row.values()) for row in rows])
        note(f"and it got {', '.join(self.crm.requests)}")

    def look_back(self) -> None:
        heading("4  Nothing is lost: every version of a customer, and where each sync stands")
        columns = "plan, lifetime_value, valid_from_snapshot, valid_to_snapshot, is_current"
        query = f"select {columns} from {{{{ ref('customers_history') }}}} where customer_id = 3 order by 3"  # noqa: S608
        lines = dbt("show", "--inline", query)
        expect_line(lines, "310.5", "1", "2", "False")
        expect_line(lines, "420", "2", "True")
        shown("dbt-reverse-etl status")
        from dbt_reverse_etl.cli import cli

        code = cli.main(["status"], standalone_mode=False)
        expect(code == 0, f"status ended with {code}")

    def push_nothing(self) -> None:
        heading("5  Run again: nothing changed, so nothing is sent")
        self.crm.requests.clear()
        lines = dbt("run")
        expect(sum("[nothing to send in" in line for line in lines) == 2, "something was sent")
        expect(self.crm.requests == [], f"the CRM got {self.crm.requests}")
        print("\n    Requests at the CRM: 0")
        self.expect_equal_destinations()

    def in_database(self) -> list[Row]:
        connection = sqlite3.connect(self.folder / "crm.db")
        try:
            return connection.execute("select * from customers order by 1").fetchall()
        finally:
            connection.close()

    def expect_equal_destinations(self) -> None:
        """Both hold exactly the rows of the seed."""
        with (self.folder / "seeds" / "customers_raw.csv").open(encoding="utf-8", newline="") as file:
            seed = [tuple(row[name] or None for name in FIELDS) for row in csv.DictReader(file)]
        wanted = [(int(row[0] or 0), *row[1:]) for row in seed]
        expect(self.in_database() == wanted, f"the database holds {self.in_database()}")
        api = [tuple(self.crm.rows[key].values()) for key in sorted(self.crm.rows)]
        expect(api == wanted, f"the CRM holds {api}")


def dbt(*arguments: str) -> list[str]:
    """Run one command, show its results, and return their lines."""
    from dbt.cli.main import dbtRunner

    quoted = [f'"{word}"' if " " in word else word for word in arguments]
    shown(f"dbt {' '.join(quoted)}")
    lines: list[str] = []
    hidden: list[str] = []

    def listen(event: Any) -> None:
        if event.info.level not in ("info", "warn", "error") or event.info.name in FRAME:
            return
        node = getattr(getattr(event.data, "node_info", None), "unique_id", "")
        if ".reverse_etl." in node and event.info.level == "info":
            hidden.append(event.info.msg)
            return
        if event.info.name == "StatsLine" and hidden:
            print(f"    ... and {len(hidden)} lines of the ledger's own models and tests")
        lines.append(event.info.msg)
        print("".join(f"    {line}\n" for line in event.info.msg.splitlines()), end="", flush=True)

    colours = "--use-colors" if sys.stdout.isatty() else "--no-use-colors"
    result = dbtRunner(callbacks=[listen]).invoke(["--log-level", "none", colours, *arguments])
    expect(result.success, f"dbt {arguments[0]} failed: {result.exception or 'see above'}")
    return lines


def keep_spark_quiet(log: Path) -> None:
    """Java writes to file descriptor 2; Python's own errors stay on the terminal."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise DemoError(otherwise)


def expect_line(lines: Sequence[str], *words: str) -> None:
    """One line of the console holds all the words."""
    every = "\n".join(lines).splitlines()
    expect(any(all(word in line for word in words) for line in every), f"no line with {' and '.join(words)}")


def heading(text: str) -> None:
    print(f"\n{bold(text)}", flush=True)


def shown(command: str) -> None:
    print(f"\n  {cyan(f'$ {command}')}", flush=True)


def note(text: str) -> None:
    print(f"\n  {text}")


def show_file(file: Path) -> None:
    shown(f"cat {file.relative_to(Path.cwd())}")
    print("".join(f"    {line}\n" for line in file.read_text(encoding="utf-8").splitlines()), end="")


def table(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Plain columns; NULL is shown as a dot."""
    lines = [list(columns), *(["·" if value is None else str(value) for value in row] for row in rows)]
    widths = [max(map(len, values)) for values in zip(*lines, strict=True)]
    for line in lines:
        print("    " + "  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)).rstrip())


def _painted(code: int, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if sys.stdout.isatty() else text


def bold(text: str) -> str:
    return _painted(1, text)


def red(text: str) -> str:
    return _painted(31, text)


def green(text: str) -> str:
    return _painted(32, text)


def cyan(text: str) -> str:
    return _painted(36, text)


if __name__ == "__main__":
    sys.exit(main())
