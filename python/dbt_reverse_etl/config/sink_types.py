"""The sink of a type, from the entry points of the packages that are installed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from inspect import getattr_static, signature

from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.config.validation import LONGEST_SHOWN, Place, closest, described
from dbt_reverse_etl.sinks.base import Sink

ENTRY_POINTS = "dbt_reverse_etl.sinks"
_EXTRAS = {"delta": "spark"}  # of our types; any other has an extra of its own name, or none


def sink_of(type_name: object, place: Place, problems: list[Problem]) -> type[Sink] | None:
    """The sink class of a type; nothing of any other sink is imported."""
    offered = _offered(tuple(sys.path))
    where = place.at("type")
    if not isinstance(type_name, str) or type_name not in offered:
        shown = isinstance(type_name, str) and len(type_name) <= LONGEST_SHOWN and not place.hides(("type",))
        found = repr(type_name) if shown else described(type_name)
        hint = closest(type_name, list(offered)) if isinstance(type_name, str) else ""
        known = f"one of {', '.join(sorted(offered))}" if offered else "an installed sink, and there is none"
        problems.append(Problem(where, found, known, f"{hint}Correct it, or install the package that brings it"))
        return None
    if len(offered[type_name]) > 1:
        claimed = " and ".join(sorted(offered[type_name]))
        problems.append(Problem(where, f"{type_name!r} in {claimed}", "one package for a type", "uninstall the other"))
        return None
    return _imported(next(iter(offered[type_name].values())), where, problems)


@lru_cache(maxsize=1)
def _offered(path: tuple[str, ...]) -> Mapping[str, Mapping[str, EntryPoint]]:  # noqa: ARG001  (it decides what is found)
    """Type -> package -> its sink. Reading what is installed takes a hundredth of a second for each destination."""
    offered: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        offered.setdefault(entry.name, {})[entry.dist.name if entry.dist else entry.value] = entry
    return offered


def _imported(entry: EntryPoint, where: str, problems: list[Problem]) -> type[Sink] | None:
    try:
        loaded = entry.load()
    except ReverseEtlError as error:
        problems.extend(error.problems)
        return None
    except Exception as error:  # a package of anyone may raise anything while it is imported
        problems.append(Problem(where, *_cannot_be_imported(entry, error)))
        return None
    found, expected = entry.value, f"a subclass of Sink whose `type` is {entry.name!r}"
    if isinstance(loaded, type) and issubclass(loaded, Sink) and getattr(loaded, "type", None) == entry.name:
        lacks = sorted(loaded.__abstractmethods__)
        lacks += [name for name in ("modes", "promise") if not getattr(loaded, name, None)]
        lacks += [] if _takes_complete(loaded) else ["`complete` among the arguments of finish"]
        if not lacks:
            return loaded
        found, expected = f"{entry.value} without {', '.join(lacks)}", "a whole sink, see docs/sinks.md"
    problems.append(Problem(where, found, expected, "tell the authors of that package"))
    return None


def _cannot_be_imported(entry: EntryPoint, error: Exception) -> tuple[str, str, str]:
    """What is found, what is expected, and what to do."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else ""
    if missing and (extra := _extra_of(entry)):
        return f"no package {missing}", "it installed", f"pip install 'dbt-reverse-etl[{extra}]'"
    found = f"{entry.value}, whose import raises {type(error).__name__}{f' for {missing}' if missing else ''}"
    return found, "a sink that can be imported", "install what it needs, or update it"


def _extra_of(entry: EntryPoint) -> str:
    """The extra of ours that brings what a type needs; empty: there is none, as for `sqlite`."""
    if entry.dist is None or entry.dist.name != "dbt-reverse-etl":
        return ""
    extra = _EXTRAS.get(entry.name, entry.name)
    return extra if extra in (entry.dist.metadata.get_all("Provides-Extra") or []) else ""


def _takes_complete(sink: type[Sink]) -> bool:
    """Whether its `finish` can be called as a run ends: it would fail there each time, after all rows were sent."""
    is_plain = not isinstance(getattr_static(sink, "finish"), classmethod | staticmethod)
    try:
        signature(sink.finish).bind(*[None] * is_plain, "", complete=True)
    except TypeError:
        return False
    except ValueError:  # of a method in C that tells no arguments
        return True
    return True
