"""A user's dbt project for the tests: this repository as its package, real dbt in process, the session of the tests."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from dbt.cli.main import dbtRunner
from dbt_common.tests import enable_test_caching
from pyspark.sql import Row, SparkSession

from tests.support import ROOT

# Each test has a project of its own with the same macros: dbt parses a text once, as in its own tests.
enable_test_caching()


@dataclass
class Result:
    """One dbt command as its user sees it."""

    success: bool
    lines: list[str]
    exception: BaseException | None
    messages: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    push_seconds: float = 0.0

    @property
    def text(self) -> str:
        return "\n".join([*self.lines, str(self.exception or "")])

    def sync(self, name: str) -> str:
        """What stands in the brackets of the sync's line, without the time."""
        found = re.search(rf"(?:SYNC|PLAN) {name} -> \S+ \.+ \[(.*?) in [\d.]+s\]", self.text)
        assert found, self.text
        return found[1]

    def pushed(self) -> bool:
        return " SYNC " in self.text


class Project:
    """A folder with a dbt project whose models and destinations a test writes."""

    def __init__(self, folder: Path, spark: SparkSession, schema: str, *, quiet: bool = False) -> None:
        self.folder, self.spark, self.schema, self._quiet = folder, spark, schema, quiet
        self.destinations: Any = {"crm": {"type": "sqlite", "path": str(folder / "crm.db")}}
        self.alerts: list[Any] = []
        self.output: dict[str, Any] = {
            "type": "spark",
            "method": "session",
            "host": "NA",
            "schema": schema,
            "threads": 1,
        }
        (folder / "models").mkdir(parents=True)
        self._yaml(
            "dbt_project.yml",
            {
                "name": "shop",
                "version": "1.0.0",
                "profile": "shop",
                "models": {"+file_format": "delta"},
                "flags": {"send_anonymous_usage_stats": False, "use_colors": False},
            },
        )
        self._yaml("packages.yml", {"packages": [{"local": str(ROOT)}]})
        spark.sql(f"drop schema if exists {schema} cascade")  # a fixture may be made anew in the same process
        spark.sql(f"create schema {schema}")

    def on_run_end(self, hook: str) -> None:
        """Add it to the project."""
        self.dbt_project(**{"on-run-end": [hook]})

    def dbt_project(self, **more: Any) -> None:
        """Replace these parts of dbt_project.yml."""
        document = yaml.safe_load((self.folder / "dbt_project.yml").read_text())
        self._yaml("dbt_project.yml", {**document, **more})

    def model(self, name: str, sql: str, config: Mapping[str, Any] | None = None) -> None:
        """Write a model; its config goes into a properties file, so that any value can be said."""
        (self.folder / "models" / f"{name}.sql").write_text(sql)
        self._yaml(f"models/{name}.yml", {"models": [{"name": name, "config": dict(config or {})}]})

    def changelog(self, name: str, sql: str, key: str | Sequence[str] = "id", **config: Any) -> None:
        """A changelog model; `settings` is its meta.reverse_etl."""
        settings = config.pop("settings", None)
        meta = {"meta": {"reverse_etl": settings}} if settings else {}
        self.model(name, sql, {"materialized": "changelog", "unique_key": key, **meta, **config})

    def sync(self, name: str, changelog: str, *, tags: Sequence[str] = (), **settings: Any) -> None:
        """An exposure; the settings are its meta.reverse_etl."""
        exposure = {
            "name": name,
            "type": "application",
            "owner": {"name": "Growth", "email": "growth@example.com"},
            "depends_on": [f"ref('{changelog}')"],
            "config": {
                "tags": list(tags),
                "meta": {"reverse_etl": {"destination": "crm", "object": "contacts", **settings}},
            },
        }
        self._yaml(f"models/exposure_{name}.yml", {"exposures": [exposure]})

    def properties(self, name: str, document: Mapping[str, Any]) -> None:
        self._yaml(f"models/{name}.yml", document)

    def table(self, name: str, query: str) -> None:
        """A source table of this project's schema."""
        self.spark.sql(f"create or replace table {self.schema}.{name} using delta as {query}")

    def dbt(self, *arguments: str) -> Result:
        """Run one command."""
        self._profiles()
        packages = self.folder / "dbt_packages"
        if not packages.exists():  # as `dbt deps` links a local package, in no time
            packages.mkdir()
            (packages / "reverse_etl").symlink_to(ROOT)
        return self._invoke(*arguments)

    def dbt_given(self, manifest: Any, *arguments: str) -> Result:
        """Run one command with a manifest of before, as a program does that parses once."""
        return self._invoke(*arguments, manifest=manifest)

    def run(self) -> Result:
        """Plain `dbt run`, but for the package's own models, which other tests run."""
        return self.dbt("run", "--exclude", "package:reverse_etl")

    def rows(self, query: str) -> list[Row]:
        """A query in this schema: `{s}` stands for it."""
        return self.spark.sql(query.replace("{s}", self.schema)).collect()

    def image(self, changelog: str, columns: str) -> list[tuple[Any, ...]]:
        """The rows that its changes lead to, in the order of their id; apart from the views of the package."""
        newest = (
            "select *, row_number() over (partition by id order by _snapshot_id desc, _change = 'delete') as _nth "
            f"from {{s}}.{changelog} where _change in ('insert', 'update_postimage', 'delete')"
        )
        rows = self.rows(f"select {columns} from ({newest}) where _nth = 1 and _change <> 'delete' order by id")
        return [tuple(row) for row in rows]

    def crm(self, query: str = "select * from contacts order by 1") -> list[tuple[Any, ...]]:
        """Rows of the SQLite destination."""
        connection = sqlite3.connect(self.folder / "crm.db")
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def _invoke(self, *arguments: str, manifest: Any = None) -> Result:
        lines: list[str] = []
        ended: list[float] = []

        def listen(event: Any) -> None:
            lines.append(event.info.msg)
            if event.info.name == "CommandCompleted":  # our callback comes after this one
                ended.append(time.perf_counter())

        runner = dbtRunner(manifest, callbacks=[listen])
        place = ["--project-dir", str(self.folder), "--profiles-dir", str(self.folder)]
        result = runner.invoke([*arguments, *place, *(["--quiet"] if self._quiet else [])])
        found = getattr(result.result, "results", None) or []
        nodes = {node.node.name: node for node in found if getattr(node, "node", None) is not None}
        return Result(
            result.success,
            lines,
            result.exception,
            {name: str(node.message) for name, node in nodes.items()},
            {name: str(node.status) for name, node in nodes.items()},
            {name: node.execution_time for name, node in nodes.items()},
            time.perf_counter() - ended[-1] if ended else 0.0,
        )

    def _profiles(self) -> None:
        self._yaml(
            "profiles.yml",
            {
                "shop": {"target": "dev", "outputs": {"dev": self.output}},
                "dbt_reverse_etl": {"outputs": {"dev": self.destinations}, "alerts": self.alerts},
            },
        )

    def _yaml(self, name: str, document: Mapping[str, Any]) -> None:
        (self.folder / name).write_text(yaml.safe_dump(document))
