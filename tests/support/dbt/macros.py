"""Macros that dbt renders alone, without dbt: what they run is recorded, and a test answers it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache, cached_property
from importlib.metadata import version
from types import CodeType, SimpleNamespace
from typing import Any, NoReturn

from jinja2 import Environment, FileSystemBytecodeCache, StrictUndefined, Template

from dbt_reverse_etl.base.sql import _return, _returning
from tests.support import ROOT

_OF_DBT = ("materializations", "tests")  # folders with tags that only dbt knows
# By name, those that `dbt run-operation` offers; change_table_ddl prints what its arguments alone decide.
OPERATIONS = {
    file.stem: file
    for file in (ROOT / "macros" / "operations").glob("[!_]*.sql")
    if file.stem != "change_table_ddl"
}  # fmt: skip

_ENVIRONMENT = Environment(undefined=StrictUndefined, autoescape=False, extensions=["jinja2.ext.do"])


@cache
def _compiled() -> CodeType:
    """Compiled once for all processes: it takes seconds."""
    files = sorted(file for file in (ROOT / "macros").glob("*/*.sql") if file.parent.name not in _OF_DBT)
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    kept = FileSystemBytecodeCache()
    bucket = kept.get_bucket(_ENVIRONMENT, f"macros by Jinja {version('jinja2')}", None, text)
    if bucket.code is None:
        bucket.code = _ENVIRONMENT.compile(text)
        kept.set_bucket(bucket)
    return bucket.code


class CompilationError(Exception):
    """What `exceptions.raise_compiler_error` raises."""


class Answer:
    """A row as agate has it: by number, by name, as a dict."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, at: int | str) -> Any:
        return list(self._values.values())[at] if isinstance(at, int) else self._values[at]

    def values(self) -> list[Any]:
        return list(self._values.values())

    def dict(self) -> Mapping[str, Any]:
        return self._values


class Macros:
    """`Macros(...)._detail(relation)` calls a macro, and `run` has the statements that it ran.

    Args:
        answer: gives the rows of a statement.
        context: what dbt would know by these names.
    """

    def __init__(self, answer: Callable[[str], Sequence[Mapping[str, Any]]] = lambda _: (), **context: Any) -> None:
        self.run: list[str] = []
        self.logged: list[str] = []
        self._answer, self._context = answer, context

    def __getattr__(self, name: str) -> Any:
        return self._macros[name]

    @cached_property
    def _macros(self) -> Mapping[str, Any]:
        package = SimpleNamespace()
        known = self._of_dbt() | {"reverse_etl": package} | self._context
        template = Template.from_code(_ENVIRONMENT, _compiled(), _ENVIRONMENT.make_globals(known))
        context = template.new_context()
        for _ in template.root_render_func(context):
            pass
        package.__dict__.update({name: _returning(macro) for name, macro in context.vars.items()})
        return package.__dict__

    def _of_dbt(self) -> dict[str, Any]:
        return {
            "execute": True,
            "return": _return,
            "run_query": self._ran,
            "statement": lambda _, caller: self._ran(caller()) and "",
            "log": lambda text, info=False: self.logged.append(text) or "",
            "exceptions": SimpleNamespace(raise_compiler_error=_refuse),
            "modules": SimpleNamespace(re=re),
            "tojson": json.dumps,
            "fromjson": lambda text, _=None: json.loads(text),
            "env_var": lambda name, default="": default,
            "run_started_at": datetime(2024, 1, 1, tzinfo=timezone.utc),
            "target": SimpleNamespace(type="spark", name="dev"),
        }

    def _ran(self, sql: str) -> Any:
        self.run.append(" ".join(sql.split()))
        return SimpleNamespace(rows=[Answer(row) for row in self._answer(self.run[-1])])


def _refuse(text: str) -> NoReturn:
    raise CompilationError(text)
