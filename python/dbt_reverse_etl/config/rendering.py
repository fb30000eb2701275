"""Puts environment variables into the texts of a block; any other Jinja is an error."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, nodes

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.config.validation import Place

# In place of a variable that is not set: what a header, a password and a key in base64 take.
UNSET = base64.b64encode(b"an environment variable that is not set").decode()

_ALLOWED = "plain text and {{ env_var('NAME') }} or {{ env_var('NAME', 'default') }}"
# Only the parser is used, nothing is ever evaluated; and it sees the expressions alone, for it alters plain text.
_PARSER = Environment(autoescape=True)
_EXPRESSION = re.compile(r"(\{\{(?![-+]).*?(?<![-+])\}\})", re.DOTALL)


@dataclass
class Rendered:
    """A block whose texts are rendered.

    Attributes:
        value: the block.
        used: what came out of the environment: key path, variable, value.
        problems: texts that could not be rendered.
        unset: the problems of variables that are not set, by key path; `UNSET` takes their place.
    """

    value: Any = None
    used: list[tuple[tuple[str, ...], str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unset: dict[tuple[str, ...], Problem] = field(default_factory=dict)


def render(value: object, env: Mapping[str, str], place: Place) -> Rendered:
    """Replace `env_var` in every text of the block; keys stay as they are."""
    rendered = render_lazily(value, env, place)
    rendered.problems.extend(rendered.unset.values())
    return rendered


def render_lazily(value: object, env: Mapping[str, str], place: Place) -> Rendered:
    """As `render`, but that a variable is not set is no problem yet."""
    rendered = Rendered()
    rendered.value = _rendered(value, (), env, place, rendered)
    return rendered


def _rendered(value: Any, path: tuple[str, ...], env: Mapping[str, str], place: Place, to: Rendered) -> Any:
    if isinstance(value, Mapping):
        return {key: _rendered(inner, (*path, str(key)), env, place, to) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rendered(inner, (*path, str(index)), env, place, to) for index, inner in enumerate(value)]
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        return _rendered_text(value, path, env, place, to)
    return value


def _rendered_text(text: str, path: tuple[str, ...], env: Mapping[str, str], place: Place, to: Rendered) -> str:
    try:
        parts = _parts(text)
    except TemplateSyntaxError:
        to.problems.append(Problem(place.at(*path), "another Jinja expression", _ALLOWED, "write only that"))
        return ""
    return "".join(part if isinstance(part, str) else _looked_up(part, path, env, place, to) for part in parts)


def _parts(text: str) -> list[str | tuple[str, str | None]]:
    """Plain text and variables, in order. Raises TemplateSyntaxError for any other Jinja."""
    pieces = _EXPRESSION.split(text)
    if any(sign in plain for plain in pieces[::2] for sign in ("{{", "{%")):
        raise TemplateSyntaxError("a statement, or an expression without an end", 1)
    return [_variable(piece) if index % 2 else piece for index, piece in enumerate(pieces)]


def _variable(expression: str) -> tuple[str, str | None]:
    """Name and default of `{{ env_var('NAME'[, 'default']) }}`; anything else is refused."""
    body = _PARSER.parse(expression).body
    node = body[0].nodes[0] if len(body) == 1 and isinstance(body[0], nodes.Output) else None
    if not (isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "env_var"):
        raise TemplateSyntaxError("not env_var", 1)
    given = [*node.args, *(keyword.value for keyword in node.kwargs if keyword.key == "default")]
    constants = [argument.value for argument in given if isinstance(argument, nodes.Const)]
    plain = len(constants) == len(node.args) + len(node.kwargs) and not node.dyn_args and not node.dyn_kwargs
    if not plain or len(constants) not in (1, 2) or not node.args or not isinstance(constants[0], str):
        raise TemplateSyntaxError("other arguments", 1)
    default = constants[1] if len(constants) == 2 else None
    return constants[0], None if default is None else str(default)


def _looked_up(
    variable: tuple[str, str | None], path: tuple[str, ...], env: Mapping[str, str], place: Place, to: Rendered
) -> str:
    name, default = variable
    value = env.get(name, default)
    if value is None:
        found = f"environment variable {name}, which is not set"
        to.unset[path] = Problem(place.at(*path), found, "a value for it", f"export {name}=...")
        return UNSET
    to.used.append((path, name, value))
    return value
