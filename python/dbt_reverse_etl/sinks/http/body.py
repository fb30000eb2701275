"""Jinja that writes the body of a request, in a sandbox. Every value that it writes is JSON, whatever it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import orjson
import pyarrow as pa
from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2 import Template as Jinja
from jinja2.exceptions import SecurityError
from jinja2.meta import TrackingCodeGenerator
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dbt_reverse_etl.values.encoding import texts

LONGEST = 256 * 2**20  # characters of a body
_LONGEST_TRIED = 16 * 2**20
_BOUND, _NULLS = "longest body", "NaN as null"  # with a space, so that no template can name them


class BodyError(Exception):
    """A template that cannot write these rows; the text holds no value of them."""


class UnsafeError(BodyError):
    """A template that leaves the sandbox or writes without end, whatever the rows are."""


class _Json(str):
    """Text that is JSON already."""

    __slots__ = ()


class _AnyField(dict[str, Any]):
    """A row of a model that is not known yet: each further field is a text."""

    def __missing__(self, name: str) -> str:
        return "text"


class _TextOrMethod(str):
    """A field of such a row, or the method of its name, if the template calls it."""

    method: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(*args, **kwargs)


class _Sandbox(ImmutableSandboxedEnvironment):
    """`row.items` is the field `items`, if the row has it; `*` repeats no text."""

    intercepted_binops = frozenset({"*"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str) or isinstance(right, str):
            raise BodyError("body_template multiplies a text, as a decimal is: write `| float` behind it")
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        found = super().getattr(obj, attribute)
        if isinstance(obj, _AnyField) and hasattr(dict, attribute):
            unknown = _TextOrMethod(obj[attribute])
            unknown.method = found
            return unknown
        return found


@pass_context
def _json(context: Context, value: object) -> str:
    """With a context, so that nothing is worked out while a template is compiled."""
    if isinstance(value, StrictUndefined):
        return str(value)  # raises, and names the variable
    if isinstance(value, str):
        # Before it is copied as JSON: orjson crashes where memory is short.
        _refuse_longer(len(value), context[_BOUND])
    if isinstance(value, _Json):
        return value
    written = orjson.dumps(value).decode()
    if "null" in written and not (context[_NULLS] or _is_finite(value)):
        raise BodyError("body_template writes NaN or Infinity, which JSON does not have")
    return written


def _is_finite(value: object) -> bool:
    """Whether no number in it is one that orjson writes as null."""
    if isinstance(value, (list, tuple, dict)):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or isfinite(value)


@pass_context
def _tojson(context: Context, value: object) -> _Json:
    return _Json(_json(context, value))


_ENVIRONMENT = _Sandbox(
    undefined=StrictUndefined, finalize=_json, optimized=False, autoescape=False, trim_blocks=True, lstrip_blocks=True
)
_jinjas_string = _ENVIRONMENT.filters["string"]


def _string(value: object) -> Any:
    """By the text of a key an answer names its row: true, not True, and 1e+15."""
    return texts(pa.array([value]))[0] if isinstance(value, (bool, float)) else _jinjas_string(value)


_ENVIRONMENT.filters["string"] = _string
_ENVIRONMENT.filters["tojson"] = _tojson


@dataclass(frozen=True)
class BodyTemplate:
    """A compiled template and what it knows beside the rows."""

    jinja: Jinja = field(compare=False, repr=False)  # equals only itself, although the same text writes the same bodies
    text: str
    object: str
    key: tuple[str, ...]
    nulls: bool = False  # NaN and Infinity are written as null
    is_of_batches: bool = False  # it reads `rows` alone, so that its API takes several, which the body names

    def render(self, rows: Sequence[bytes], *, alone: bool) -> bytes:
        """The body for rows that are encoded as JSON objects: `rows`, and `row` where each is sent alone. Raises BodyError."""
        return self._written([orjson.loads(row) for row in rows], alone=alone, longest=LONGEST)

    def try_out(self, rows: Sequence[bytes], *, alone: bool, whole: bool) -> None:
        """Write these rows, to see whether it can. Unless they are `whole`, any field that they lack is a text. Raises as `render`, and
        UnsafeError where the sandbox stopped it, or the bound of what it writes."""
        read = [orjson.loads(row) for row in rows]
        self._written(read if whole else [*map(_AnyField, read)], alone=alone, longest=_LONGEST_TRIED)

    def _written(self, rows: Sequence[Any], *, alone: bool, longest: int) -> bytes:
        names: dict[str, Any] = {"rows": rows} | ({"row": rows[0]} if alone else {})
        try:
            ours = {"object": self.object, "key": list(self.key), _BOUND: longest, _NULLS: self.nulls}
            parts = self.jinja.generate(names, **ours)
            text = "".join(_within(parts, longest)).encode()
        except BodyError:
            raise
        except (SecurityError, MemoryError, OverflowError) as error:
            raise UnsafeError(f"body_template fails with {type(error).__name__}") from None
        except Exception as error:  # a template may do anything to a value
            raise BodyError(f"body_template fails with {type(error).__name__}") from None
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError:
            raise BodyError("body_template writes no JSON") from None
        return text.strip()


def _within(parts: Iterator[str], longest: int) -> Iterator[str]:
    length = 0
    for part in parts:
        length += len(part)
        _refuse_longer(length, longest)
        yield part


def _refuse_longer(length: int, longest: int) -> None:
    if length > longest:
        raise UnsafeError(f"body_template writes more than {longest} characters")


def compiled(text: str, object_: str, key: tuple[str, ...], *, nulls: bool = False) -> BodyTemplate:
    """A template. Raises BodyError for what is no Jinja, and UnsafeError for what leaves the sandbox."""
    try:
        tree = _ENVIRONMENT.parse(text)
        inner = _inner_attribute(tree)
        if inner:
            raise UnsafeError(f"the attribute {inner}, outside of the sandbox")
        read = _names(tree) & {"row", "rows"}
        jinja = _ENVIRONMENT.from_string(text)
        return BodyTemplate(jinja, text, object_, key, nulls, is_of_batches=read == {"rows"})
    except TemplateSyntaxError as error:
        raise BodyError(f"no Jinja in line {error.lineno}: {error.message}") from None
    except (TemplateError, RecursionError):
        raise BodyError("no Jinja") from None


def _names(tree: nodes.Template) -> set[str]:
    """The names that a template looks up, as `find_undeclared_variables` of jinja2.meta gives them, which works out constants."""
    found = TrackingCodeGenerator(_ENVIRONMENT)
    found.optimizer = None
    found.visit(tree)
    return found.undeclared_identifiers


def _inner_attribute(tree: nodes.Template) -> str:
    """The first attribute that is Python's own, or an empty text: what reads one may do so with some rows only."""
    named = [node.attr for node in tree.find_all(nodes.Getattr)]
    for one in tree.find_all(nodes.Filter):
        arguments = [*one.args, *(keyword.value for keyword in one.kwargs)]
        named += [str(argument.value) for argument in arguments if isinstance(argument, nodes.Const)]
    return next((name for name in named if name.startswith("__") and name.endswith("__")), "")
