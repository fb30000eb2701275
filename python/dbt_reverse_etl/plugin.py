"""dbt's side: after a `dbt run`, `build` or `retry` the syncs are pushed, in the same Spark session.

dbt's plugin interface is marked experimental, so what touches dbt's Python is in this file and `host.py`; but for `app/check.py`, which has dbt parse.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dbt.plugins.manager import dbt_hook, dbtPlugin

from dbt_reverse_etl import host

PUSHING = ("run", "build", "retry")
COLUMNS_OF = "dbt-reverse-etl: columns of "  # what the macro _tell_columns says before it writes
_OF_THE_COMMAND = frozenset({"ArtifactWritten", "FoundStats", "CommandCompleted"})  # from the thread that called dbt
LISTENS = "DBT_REVERSE_ETL_LISTENS"  # the same macro warns where nobody does


class ReverseEtlPlugin(dbtPlugin):
    """One instance for each dbt invocation."""

    def initialize(self) -> None:
        """Listen to the events of this invocation. Nothing here may break a dbt command."""
        from dbt_common.events.event_manager_client import get_event_manager

        _warn_of_dropped(get_event_manager().callbacks)
        self._listener = _Listener(host.flag("WHICH"))
        if host.flag("WHICH") in PUSHING:
            get_event_manager().add_callback(self._listener)
            _at_work.add(self._listener)
            host.say_in_jinja(LISTENS, "yes")

    @dbt_hook  # type: ignore[untyped-decorator]  # dbt's own
    def get_manifest_artifacts(self, manifest: Any) -> dict[str, Any]:
        """Configuration errors stop dbt here, before anything is captured. Adds no artifact."""
        if host.flag("WHICH") in PUSHING and _concerns_us(manifest):
            self._listener.configured(_checked_configuration(manifest))
        return {}


class _Listener:
    """Called with each event; acts once, at the end of the command."""

    def __init__(self, command: str) -> None:
        self._retried = command == "retry"
        self._thread = threading.get_ident()
        self._artifacts: Path | None = None
        self._written_by = ""  # their invocation; a retry that had nothing to do leaves those of the command before
        self._finished: dict[str, str] = {}  # statuses by unique id
        self._done = False
        self._tried: set[str] = set()  # destinations
        self.configuration: Any = None

    def configured(self, configuration: Any) -> None:
        """All of it is valid. Where dbt runs everything, every destination is tried at once."""
        self.configuration = configuration
        if not any(host.flag(name) for name in ("SELECT", "EXCLUDE", "SELECTOR", "MODELS")):
            for model in {sync.changelog.unique_id for sync in configuration.syncs}:
                self._try_early(model)

    def _try_early(self, model: str) -> None:
        """Begin to reach the destinations of a changelog that is going to be pushed."""
        from dbt_reverse_etl.app.reach import try_early

        names = {sync.name for sync in self._to_push(model)}
        found = [one.destination for one in self.configuration.resolved if one.sync.name in names]
        wanted = [one for one in found if one.name not in self._tried and one.name not in self.configuration.unset]
        self._tried |= {one.name for one in wanted}
        try_early(wanted, lambda text: host.say(text, "warn"))

    def __call__(self, event: Any) -> None:
        name = event.info.name
        if name in _OF_THE_COMMAND and threading.get_ident() != self._thread:
            return  # of another command
        if name == "ArtifactWritten" and event.data.artifact_type == "RunExecutionResult":
            self._artifacts = Path(event.data.artifact_path).parent
            self._written_by = str(event.info.invocation_id)
        elif name == "JinjaLogDebug" and event.data.msg.startswith(COLUMNS_OF):
            self._judge(event.data.msg)
        elif name == "FoundStats":
            self._configure_late()
        elif name == "NodeFinished":
            self._finished[event.data.node_info.unique_id] = event.data.node_info.node_status
        elif name == "CommandCompleted" and not self._done:
            self._done = True
            _at_work.discard(self)
            self._complete(succeeded=event.data.success)

    def _configure_late(self) -> None:
        """dbt asks no plugin with --no-write-json, or if it was given a manifest; the configuration is checked before a model all the same."""
        manifest = host.manifest()
        if self.configuration is None and manifest is not None and _concerns_us(manifest):
            self.configured(_checked_configuration(manifest))

    def _judge(self, said: str) -> None:
        """Refuse what the syncs of a changelog cannot send, while nothing of it is captured yet."""
        if self.configuration is None:
            return
        model, _, columns = said.removeprefix(COLUMNS_OF).partition(": ")
        with _told("nothing was captured"):
            self.configuration.refuse_unset(pushed=self._to_push(model))
            self._try_early(model)
            if host.runs_here():
                from dbt_reverse_etl.app.tasks import refuse_unfit

                syncs = [one for one in self.configuration.resolved if one.sync.changelog.unique_id == model]
                refuse_unfit(_spark(), syncs, json.loads(columns), host.project_root())

    def _to_push(self, model: str) -> list[Any]:
        """The syncs of a changelog that this command will push."""
        from dbt_reverse_etl.app.project import ON, switch_of

        if host.flag("EMPTY") or host.flag("SAMPLE") or switch_of(os.environ) != ON:
            return []
        commands = set(PUSHING) if self._retried else {host.flag("WHICH")}
        syncs = [sync for sync in self.configuration.syncs if sync.changelog.unique_id == model]
        return [sync for sync in syncs if commands & sync.settings.push_on and not _is_excluded(sync)]

    def _complete(self, *, succeeded: bool) -> None:
        from dbt_reverse_etl.base.interrupts import interrupts

        with interrupts() as signals:
            try:
                good = self._push()
            except (Exception, KeyboardInterrupt) as error:
                good = False
                is_told = signals.received or isinstance(error, KeyboardInterrupt)
                host.say(
                    "dbt-reverse-etl: interrupted: the next run goes on." if is_told else _described(error), "error"
                )
        if signals.received and not signals.hand_on():
            raise host.interrupted()
        if succeeded and not good:
            from dbt.cli.exceptions import ResultExit

            raise ResultExit(host.result_of_dbt())

    def _push(self) -> bool:
        """Whether all is well; what is not was said."""
        if host.flag("EMPTY") or host.flag("SAMPLE"):
            return True
        if ended := self._ended_without_results():
            self._remember_tests()
            is_due = host.is_interrupted() or bool(self._due())
            if is_due:
                text = f"dbt-reverse-etl: {ended}, so nothing is pushed; the next run that dbt completes pushes what was captured."
                host.say(text, "warn")
            return not is_due
        if not host.flag("WRITE_JSON"):
            return self._without_artifacts()
        if self._artifacts is None and not (self._retried and self.configuration is not None):
            return True  # dbt stopped before it ran anything, and maybe before it had read the project
        from dbt_reverse_etl.app.project import has_syncs

        folder = self._artifacts or host.target_path()
        if not (has_syncs(folder) if self.configuration is None else self.configuration.syncs):
            return True
        return not self._has_spark() or self._push_from(folder)

    def _ended_without_results(self) -> str:
        """What to say of it; empty: dbt told of its results, or has run nothing."""
        if host.is_interrupted():
            return "dbt was interrupted"
        failed = self._artifacts is None and host.flag("WRITE_JSON") and host.result_of_dbt() is None
        # A hook of on-run-end may have failed, after models and tests that ended well or not.
        return "dbt ended with an error" if failed and self._finished else ""

    def _remember_tests(self) -> None:
        """Those that failed, for the artifacts do not name them all. `retry` shows its manifest to nobody, but writes it."""
        if self.configuration is None or not host.runs_here() or not (host.manifest() or host.flag("WRITE_JSON")):
            return
        from dbt_reverse_etl.app.invocation import remember_tests

        project, read = self._project(self._artifacts or host.target_path()), host.manifest()
        manifest = _as_written(read) if read else project.manifest()
        failed = remember_tests(project, manifest, self._finished, _spark, self.configuration)
        if failed:
            host.say(f"First run dbt build, for it could not be recorded that these tests failed: {failed}", "warn")

    def _has_spark(self) -> bool:
        """Whether pyspark is here. If not, and this command has made a sync due, raises ReverseEtlError."""
        from dbt_reverse_etl.base.errors import ReverseEtlError
        from dbt_reverse_etl.terminal.options import import_spark

        try:
            import_spark()
        except ReverseEtlError:
            if not self._due(left_behind=self._retried):
                return False
            _refuse_other_adapters()  # to install it would not be enough
            raise
        return True

    def _push_from(self, artifacts: Path) -> bool:
        """Whether all that was due is delivered."""
        from dbt_reverse_etl.app import invocation
        from dbt_reverse_etl.app.project import Ask
        from dbt_reverse_etl.base.errors import ExitCode
        from dbt_reverse_etl.terminal import console

        project, ask = self._project(artifacts), Ask.DBT_RETRY if self._retried else Ask.RUN
        reports = invocation.after_dbt(project, _spark, _screen(), ask=ask, configuration=self.configuration)
        if reports:
            _advise()
            host.say(console.summary(reports), "info" if all(r.exit_code is ExitCode.OK for r in reports) else "error")
        return all(report.exit_code is ExitCode.OK for report in reports)

    def _project(self, artifacts: Path) -> Any:
        from dbt_reverse_etl.app.project import Project

        parsed_by = getattr(getattr(host.manifest(), "metadata", None), "invocation_id", None) or ""
        place = (artifacts, host.profiles(), host.target_name(), host.project_root(), dict(os.environ))
        return Project(*place, self._written_by, parsed_by)

    def _without_artifacts(self) -> bool:
        """Whether nothing of this command is to be pushed; what is, nobody can push."""
        from dbt_reverse_etl.config.artifacts import FAILED

        if not FAILED.isdisjoint(self._finished.values()):
            self._remember_tests()
        names = self._due()
        if names:
            host.say(
                "found --no-write-json; expected manifest.json and run_results.json, which say what to push; "
                f"nothing was pushed for {', '.join(names)}. Next: run dbt without --no-write-json and DBT_WRITE_JSON=false",
                "error",
            )
        return not names

    def _due(self, *, left_behind: bool = False) -> list[str]:
        """The names of the syncs that this command has made due; with those that an earlier one may have left behind."""
        from dbt_reverse_etl.config.destinations import PlanOnly

        if self.configuration is None or isinstance(self.configuration.destinations, PlanOnly):
            return []
        models = {sync.changelog.unique_id for sync in self.configuration.syncs}
        due = [sync for model in sorted(models) for sync in self._to_push(model) if sync.enabled]
        return [
            one.name for one in due if left_behind or self._finished.keys() & {one.unique_id, one.changelog.unique_id}
        ]


_at_work: set[_Listener] = set()


def _warn_of_dropped(callbacks: Collection[Any]) -> None:
    """dbt forgets who listens to a command when the next one begins in this process."""
    for one in [one for one in _at_work if one not in callbacks]:
        _at_work.discard(one)
        host.say(
            "dbt-reverse-etl: found a dbt command that began before another one in this process had ended; expected one "
            "at a time; dbt does not show the end of the other one, so nothing is pushed after it. Next: dbt-reverse-etl push",
            "warn",
        )


def _screen() -> Any:
    """Bars below dbt's lines, if dbt shows lines and standard error is a terminal."""
    from dbt_reverse_etl.terminal.screen import Bars, Screen, colours, on_terminal

    def write(text: str, level: str, about: object) -> None:  # noqa: ARG001  (the shape of Write)
        host.say(text, level)

    if on_terminal(sys.stderr, os.environ) and not host.flag("QUIET") and host.flag("LOG_FORMAT") != "json":
        return Bars(write, sys.stderr, colours=host.flag("USE_COLORS") and colours(os.environ))
    return Screen(write)


def _is_excluded(sync: Any) -> bool:
    from dbt_reverse_etl.config.artifacts import is_excluded

    return is_excluded(sync, {name.lower(): host.flag(name) for name in ("EXCLUDE", "EXCLUDE_RESOURCE_TYPES")})


def _spark() -> Any:
    """The very session that dbt used. Raises ReverseEtlError where the adapter has none."""
    _refuse_other_adapters()
    from dbt_reverse_etl.warehouse.session import connect

    return connect(host.adapter().config.credentials.server_side_parameters or {})


def _refuse_other_adapters() -> None:
    """Raises ReverseEtlError where the adapter reaches Spark in another way than a session of this process."""
    from dbt_reverse_etl.base.errors import Problem, ReverseEtlError

    if not host.runs_here():
        found = f"adapter {host.adapter().type()} with method {host.method()}"
        raise ReverseEtlError(
            Problem(
                "profiles.yml",
                found,
                "spark with method: session",
                "push from a Spark of its own: dbt-reverse-etl push",
            )
        )


def _advise() -> None:
    from dbt_reverse_etl.warehouse.session import advice

    text = advice(_spark())
    if text:
        host.say(text, "info")


def _concerns_us(manifest: Any) -> bool:
    exposures = any(
        "reverse_etl" in ((e.config.meta if e.config else None) or e.meta or {}) for e in manifest.exposures.values()
    )
    return exposures or any(
        node.config.materialized == "changelog" for node in manifest.nodes.values() if node.resource_type == "model"
    )


def _as_written(manifest: Any) -> Any:
    """As in manifest.json."""
    return manifest.writable_manifest().to_dict(omit_none=False)


def _checked_configuration(manifest: Any) -> Any:
    from dbt_reverse_etl.app.configuration import configure

    written, env = _as_written(manifest), dict(os.environ)
    with _told("nothing was captured or sent"):
        configuration = configure(written, host.profiles(), host.target_name(), env, host.project_root())
        if configuration.syncs:
            from dbt_reverse_etl.app.project import refuse_unknown_words

            refuse_unknown_words(configuration, env)
        return configuration


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Our errors as dbt's."""
    from dbt_common.exceptions import DbtRuntimeError

    from dbt_reverse_etl.base.errors import ReverseEtlError
    from dbt_reverse_etl.base.redaction import redact

    try:
        yield
    except ReverseEtlError as error:
        raise DbtRuntimeError(redact(f"dbt-reverse-etl: {what}.\n{error}")) from None


def _described(error: BaseException) -> str:
    from dbt_reverse_etl.base.errors import ReverseEtlError, unexpected
    from dbt_reverse_etl.base.redaction import redact

    if isinstance(error, ReverseEtlError):
        return redact(f"dbt-reverse-etl: nothing was sent.\n{error}")
    return f"dbt-reverse-etl: the push failed.\n{unexpected(error, 'push')}"
