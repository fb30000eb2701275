"""`auth: {type: python}`: any class that authenticates requests of the library `requests`, from an installed package."""

from __future__ import annotations

import inspect
from importlib import import_module

from requests.auth import AuthBase

from dbt_reverse_etl.base.errors import DestinationError, Problem
from dbt_reverse_etl.sinks.http.settings import PythonAuth

_EXPECTED = "a subclass of requests.auth.AuthBase as package.module.Class"
_INSTALL = "correct it, or install its package, on executors too"


def class_of(auth: PythonAuth, origin: str) -> type[AuthBase]:
    """The class, if it takes arguments of these names. Makes no object. Raises DestinationError."""
    module, _, name = auth.class_name.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # a package of anyone may raise anything while it is imported
        shown = f"{auth.class_name}, whose import raises {type(error).__name__}"
        raise _error(f"{origin}: auth.class", shown, _EXPECTED, _INSTALL) from None
    if not (isinstance(found, type) and issubclass(found, AuthBase)):
        raise _error(f"{origin}: auth.class", f"{auth.class_name}, which is none", _EXPECTED, "name another class")
    try:
        signature = inspect.signature(found)
    except ValueError:  # written in C
        return found
    try:
        positional, named = auth.arguments()
        signature.bind(*positional, **named)
    except TypeError:
        raise _refused(auth, origin, f"those of ({', '.join(signature.parameters)})") from None
    return found


def auth_of(auth: PythonAuth, origin: str) -> AuthBase:
    """An object of the class. Raises DestinationError as `class_of`, and where the class refuses the values."""
    made, (positional, named) = class_of(auth, origin), auth.arguments()
    try:
        return made(*positional, **named)
    except Exception as error:  # its text may quote a secret
        raise _refused(auth, origin, f"what it takes: it raises {type(error).__name__}") from None


def _refused(auth: PythonAuth, origin: str, expected: str) -> DestinationError:
    next_step = "correct the keys below auth, and args for those without a name"
    return _error(f"{origin}: auth", f"arguments that {auth.class_name} refuses", expected, next_step)


def _error(place: str, found: str, expected: str, next_step: str) -> DestinationError:
    return DestinationError(Problem(f"destination {place}", found, expected, next_step))
