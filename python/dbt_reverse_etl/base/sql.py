"""Renders the text macros of the dbt package, so that each piece of SQL is written once, for dbt and for the runner."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, StrictUndefined

_QUOTES = str.maketrans("", "", '`"')
_TEXT_MACROS = ("changelog", "delivery", "wide_table")  # folders whose macros need no adapter


class _Returned(BaseException):
    """How dbt's `return` leaves a macro: with any value, not only text."""


def package_root() -> Path:
    """Folder of the dbt package: inside the wheel, or the repository in an editable install."""
    carried = Path(__file__).parents[1] / "dbt_package"
    return carried if carried.is_dir() else Path(__file__).parents[3]


@cache
def _environment() -> Environment:
    # dbt trims nothing and neither does this environment: the same file gives the same text.
    environment = Environment(undefined=StrictUndefined, autoescape=False, extensions=["jinja2.ext.do"])  # noqa: S701  (SQL, not HTML)
    environment.globals["reverse_etl"] = SimpleNamespace()
    environment.globals["return"] = _return
    environment.globals["modules"] = SimpleNamespace(re=re)
    return environment


@cache
def _namespace() -> Any:
    files = sorted(path for folder in _TEXT_MACROS for path in (package_root() / "macros" / folder).glob("*.sql"))
    files.append(package_root() / "macros" / "version.sql")
    namespace = _environment().globals["reverse_etl"]
    template = _environment().from_string("\n".join(path.read_text(encoding="utf-8") for path in files))
    context = template.new_context()
    # Not `template.module`: it hides the names with an underscore, which are the private macros of dbt's convention.
    for _ in template.root_render_func(context):
        pass
    namespace.__dict__.update({name: _returning(macro) for name, macro in context.vars.items()})
    return namespace


def _return(value: object) -> None:
    raise _Returned(value)


def _returning(macro: Any) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return macro(*args, **kwargs)
        except _Returned as returned:
            return returned.args[0]

    return called


def quoted(name: str) -> str:
    """A name as SQL of Spark, and of MySQL."""
    return f"`{name.replace('`', '``')}`"


def plain_relation(name: str) -> str:
    """The same for a relation however dbt's `quoting` renders it, as the macro _plain_relation."""
    return name.translate(_QUOTES).lower()


def render(macro: str, *args: Any, **kwargs: Any) -> str:
    """SQL of one text macro, e.g. `render("_image", relation, key, columns, base, head)`."""
    return str(value_of(macro, *args, **kwargs)).strip()


def value_of(macro: str, *args: Any, **kwargs: Any) -> Any:
    """What one macro returns, as dbt's `return` gives it to another macro: lists and mappings included."""
    return getattr(_namespace(), macro)(*args, **kwargs)


def view(name: str, ledger: str) -> str:
    """The query of one of the package's models over a ledger, in parentheses; the model need not have been run."""
    _namespace()
    text = (package_root() / "models" / f"{name}.sql").read_text(encoding="utf-8")

    def ref(other: str) -> str:
        return ledger if other == "reverse_etl_ledger" else view(other, ledger)

    return f"({_environment().from_string(text).render(ref=ref)})"
