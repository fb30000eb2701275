"""Calls that OpenTelemetry's instrumentations leave out: a span of theirs would hold URLs and statements, and with them keys, rows and secrets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from types import FunctionType, GeneratorType
from typing import Any

# The names under which instrumentations of all versions look; the API's own have a random part, and so are asked of it.
_KEYS, _ASKED = ("suppress_instrumentation",), ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")


@contextmanager
def untraced() -> Iterator[None]:
    """No instrumentation makes a span inside, or sends a trace's id along. Spans that are made by hand are as ever."""
    context = _context()
    if context is None:
        yield
        return
    inside = context.get_current()
    for key in (*_KEYS, *(getattr(context, name) for name in _ASKED if hasattr(context, name))):
        inside = context.set_value(key, True, inside)
    token = context.attach(inside)
    try:
        yield
    finally:
        context.detach(token)


@cache
def _context() -> Any:
    """OpenTelemetry's API, if it is there. Looked for once, and apart: what fails inside must not seem to follow from a failed import."""
    try:
        from opentelemetry import context
    except ImportError:
        return None
    return context


def without_traces(method: Any) -> Any:
    """The method, `untraced`; so is each step of a generator that it returns. What is no function stays as it is."""
    if not isinstance(method, FunctionType):
        return method

    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        with untraced():
            answer = method(*args, **named)
        return _steps(answer) if isinstance(answer, GeneratorType) else answer

    return call


def _steps(rows: GeneratorType[Any, None, None]) -> Iterator[Any]:
    """Its items; whoever takes them is traced between two of them."""
    try:
        while True:
            with untraced():
                try:
                    row = next(rows)
                except StopIteration:
                    return
            yield row
    finally:
        with untraced():
            rows.close()
