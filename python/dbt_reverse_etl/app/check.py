"""What `check` looks at: the project as it is now, and what a push of each sync needs at its destination. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dbt_reverse_etl.app.identity import id_of
from dbt_reverse_etl.app.place import Place
from dbt_reverse_etl.base.errors import mistake
from dbt_reverse_etl.base.redaction import message_of, redact
from dbt_reverse_etl.config.destinations import Destination, ResolvedSync, early_task
from dbt_reverse_etl.sinks.base import Sink, close_quietly

# Whatever the destination is.
UNTRIED = (
    "Spark, the ledger and the columns of the models: dbt run --empty --select config.materialized:changelog looks at them and captures nothing",
    "the channels of alerts: no message was sent",
)
_COLUMNS = "the columns that its fields and its filter name"
_LONGEST = 800  # characters of what dbt says


@dataclass(frozen=True)
class CheckedSync:
    """What one sync needs at its destination.

    Attributes:
        object: `destination.object`.
        missing: what a push needs and does not have, each with what to do.
        untried: what only a push will show.
    """

    sync: str
    object: str
    missing: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckedDestination:
    """One destination; `message`: why it cannot be reached, and then its syncs were not looked at."""

    destination: str
    type: str
    message: str = ""
    syncs: tuple[CheckedSync, ...] = ()

    @property
    def is_well(self) -> bool:
        return not self.message and not any(one.missing for one in self.syncs)


def parsed(place: Place, target: str, arguments: Sequence[str] = ()) -> dict[str, Any] | None:
    """The manifest of the project as it is now, which no artifact keeps; None: this Python has no dbt that can be called.

    Args:
        arguments: further options of `dbt parse`, such as `--vars`.

    Raises:
        ConfigurationError: dbt cannot parse the project.
    """
    try:
        from dbt.cli.main import dbtRunner
    except ImportError:
        return None
    quiet = ["--log-level", "none", "--no-write-json"]
    answer = dbtRunner().invoke([*quiet, "parse", *place.dbt_options(target), *arguments])
    if not answer.success or answer.result is None:
        said = " ".join(str(answer.exception or "").split())[:_LONGEST] or "no manifest"
        raise mistake("dbt parse", redact(said), "a project that can be parsed", "mend it: dbt parse says the same")
    manifest: dict[str, Any] = answer.result.writable_manifest().to_dict(omit_none=False)  # type: ignore[union-attr]
    return manifest


def check(resolved: Iterable[ResolvedSync], project_dir: Path) -> list[CheckedDestination]:
    """Reach each destination of these syncs, and ask it what a push of each of them needs."""
    by_name: dict[str, list[ResolvedSync]] = {}
    for one in resolved:
        by_name.setdefault(one.destination.name, []).append(one)
    return [_checked(syncs[0].destination, syncs, project_dir) for _, syncs in sorted(by_name.items())]


def _checked(destination: Destination, syncs: Sequence[ResolvedSync], project_dir: Path) -> CheckedDestination:
    sink = destination.sink(destination.settings)
    try:
        sink.check()
        checked = tuple(_checked_sync(sink, one, project_dir) for one in syncs)
    except Exception as error:
        return CheckedDestination(destination.name, destination.type, message_of(error, destination.name))
    finally:
        close_quietly(sink)
    return CheckedDestination(destination.name, destination.type, syncs=checked)


def _checked_sync(sink: Sink, resolved: ResolvedSync, project_dir: Path) -> CheckedSync:
    task = replace(early_task(resolved, project_dir), sync_id=id_of(resolved))
    try:
        rights = sink.rights(task)
    except Exception as error:
        return CheckedSync(resolved.sync.name, resolved.label, (message_of(error, resolved.sync.name),))
    missing = tuple(redact(str(problem)) for problem in rights.missing)
    settings = resolved.sync.settings
    columns = (_COLUMNS,) if settings.fields or settings.where else ()
    return CheckedSync(resolved.sync.name, resolved.label, missing, (*columns, *rights.untried))
