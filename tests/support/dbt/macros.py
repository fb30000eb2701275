"""Macros of the capture, rendered without dbt: what they would ask of the warehouse is answered by the test."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, StrictUndefined

from dbt_reverse_etl.base import sql

FOLDERS = ("capture", "changelog")


class Macros:
    """The private macros too. `statements` are the texts of `call statement`, by its name."""

    def __init__(self, **context: Any) -> None:
        self.statements: dict[str, list[str]] = defaultdict(list)
        space = SimpleNamespace()
        environment = Environment(undefined=StrictUndefined, autoescape=False, extensions=["jinja2.ext.do"])
        environment.globals |= {**sql._environment().globals, "reverse_etl": space, "statement": self._statement}
        environment.globals |= context
        files = [path for name in FOLDERS for path in sorted((sql.package_root() / "macros" / name).glob("*.sql"))]
        template = environment.from_string("\n".join(path.read_text(encoding="utf-8") for path in files))
        made = template.new_context()
        for _ in template.root_render_func(made):
            pass
        for name, macro in made.vars.items():
            setattr(space, name, sql._returning(macro))
        self._space = space

    def value(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """What a macro returns: any value, or text."""
        return getattr(self._space, name)(*args, **kwargs)

    def _statement(self, name: str, caller: Any) -> str:
        self.statements[name].append(" ".join(caller().split()))
        return ""
