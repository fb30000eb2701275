"""What the plugin knows of a command whose manifest dbt has not shown it, or that left no artifacts. No model runs here."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from dbt.cli.exceptions import ExceptionExit, ResultExit
from dbt_common.events.base_types import EventLevel
from dbt_common.events.event_manager_client import get_event_manager
from dbt_common.events.functions import fire_event
from dbt_common.events.types import Note
from dbt_common.exceptions.events import EventCompilationError

from dbt_reverse_etl import host, plugin
from dbt_reverse_etl.app import invocation
from dbt_reverse_etl.base.errors import ReverseEtlError
from dbt_reverse_etl.config.artifacts import run
from dbt_reverse_etl.config.destinations import PlanOnly
from dbt_reverse_etl.terminal import options
from tests.support.config.manifest import manifest
from tests.support.dbt.artifacts import MODELS
from tests.support.servers import forks

OWNER = {"name": "Growth", "email": "growth@example.com"}
META = {"reverse_etl": {"destination": "crm", "object": "contacts"}}
SESSION = {"target": "prod", "outputs": {"prod": {"type": "spark", "method": "session", "schema": "s", "host": "NA"}}}
CHANGELOG, EXPOSURE = "model.shop.crm_c", "exposure.shop.crm_c"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(host, "say", lambda text, _: lines.append(text))
    return lines


def flags(monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
    monkeypatch.setattr(host, "flag", {"WHICH": "build", "WRITE_JSON": False, **given}.get)


def event(name: str, unique_id: str = "") -> Any:
    data = SimpleNamespace(node_info=SimpleNamespace(unique_id=unique_id, node_status="success"))
    return SimpleNamespace(info=SimpleNamespace(name=name), data=data)


def listener(*finished: str, destinations: Any = None, has_syncs: bool = True) -> Any:
    found = plugin._Listener("build")
    if has_syncs:
        results = {"metadata": {"invocation_id": "i"}, "args": {"which": "build"}, "results": []}
        results["results"] = [{"unique_id": CHANGELOG, "status": "success"}]
        project = manifest({"crm_c": {"destination": "crm"}})
        project["metadata"]["invocation_id"] = "i"
        syncs = run(results, project).push
        found.configuration = SimpleNamespace(syncs=syncs, destinations=destinations or {}, resolved=[], unset={})
    for unique_id in finished:
        found(event("NodeFinished", unique_id))
    return found


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("finished", [CHANGELOG, EXPOSURE])
def test_without_artifacts_a_command_is_red_if_it_made_a_sync_due(
    monkeypatch: pytest.MonkeyPatch, said: list[str], finished: str
) -> None:
    flags(monkeypatch)
    assert not listener(finished)._push()
    assert "found --no-write-json" in said[0]
    assert "nothing was pushed for crm_c" in said[0]


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("switch", ["on", "plan", "off"])
def test_without_artifacts_a_command_is_green_if_nothing_of_it_is_to_be_pushed(
    monkeypatch: pytest.MonkeyPatch, said: list[str], switch: str
) -> None:
    flags(monkeypatch)
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", switch)
    assert listener("model.shop.other")._push()
    assert listener(CHANGELOG, has_syncs=False)._push(), "no sync is in the project"
    assert listener(CHANGELOG, destinations=PlanOnly("dev"))._push()
    assert listener(CHANGELOG)._push() is (switch != "on")
    said.clear()
    flags(monkeypatch, EXCLUDE=("exposure:crm_c",))
    assert listener(CHANGELOG)._push()
    assert not said


@pytest.mark.guarantee("dbt and its commands")
@pytest.mark.parametrize("status", ["fail", "success"])
def test_without_artifacts_a_failed_test_is_recorded_by_the_manifest_of_this_command(
    monkeypatch: pytest.MonkeyPatch, said: list[str], tmp_path: Path, status: str
) -> None:
    asked = list[tuple[Any, Mapping[str, str]]]()
    monkeypatch.setattr(
        invocation, "remember_tests", lambda _, manifest, statuses, *__: asked.append((manifest, {**statuses}))
    )
    place = {"project_root": tmp_path, "target_path": "target", "target_name": "prod"}
    config = SimpleNamespace(credentials=SimpleNamespace(method="session"), **place)
    monkeypatch.setattr(host, "adapter", lambda: SimpleNamespace(type=lambda: "spark", config=config))
    ours, of_another_target = {"nodes": {"test.shop.unique": {}}}, {"nodes": {}}
    read = SimpleNamespace(writable_manifest=lambda: SimpleNamespace(to_dict=lambda **_: ours))
    monkeypatch.setattr(host, "manifest", lambda: read)
    flags(monkeypatch, PROFILES_DIR=str(tmp_path))
    (tmp_path / "target").mkdir()
    (tmp_path / "target/manifest.json").write_text(json.dumps(of_another_target))
    ended = listener(CHANGELOG)
    ended._finished["test.shop.unique"] = status
    assert not ended._push()
    assert "found --no-write-json" in said[0]
    recorded = (ours, {CHANGELOG: "success", "test.shop.unique": "fail"})
    assert asked == ([recorded] if status == "fail" else [])


@pytest.mark.guarantee("dbt and its commands", "A dbt that ends with an error, as of a hook, forgets no failed test")
@pytest.mark.parametrize("error", [RuntimeError("a hook failed"), SystemExit(143)])
def test_where_an_error_ends_dbt_nothing_is_pushed_and_its_failed_tests_are_remembered(
    monkeypatch: pytest.MonkeyPatch, said: list[str], error: BaseException
) -> None:
    flags(monkeypatch, WRITE_JSON=True)
    ended, remembered = listener(CHANGELOG), list[bool]()
    monkeypatch.setattr(plugin._Listener, "_remember_tests", lambda _: remembered.append(True))
    ended_by = "was interrupted" if isinstance(error, SystemExit) else "ended with an error"
    failed = Future[None]()
    failed.set_exception(ExceptionExit(error))  # type: ignore[arg-type]  # as dbt does it
    try:
        failed.result()
    except ExceptionExit:
        assert not ended._push()
    then = "the next run that dbt completes pushes what was captured."
    assert said == [f"dbt-reverse-etl: dbt {ended_by}, so nothing is pushed; {then}"]
    assert remembered == [True]
    assert listener()._push(), "dbt stopped before it ran anything"
    if not isinstance(error, SystemExit):
        said.clear()
        assert listener(CHANGELOG, has_syncs=False)._push(), "no sync is in the project"
        assert listener("model.shop.other")._push(), "it ran nothing of ours"
        monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
        assert listener(CHANGELOG)._push(), "`dbt-reverse-etl run` pushes after it"
        assert not said


class Told:
    """A project whose dbt says what it says, as a user reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("DBT_")}
        self.env |= {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "DBT_PROFILES_DIR": str(folder)}

    def run(self, function: str, *arguments: str) -> tuple[int, str]:
        return forks.dbt_forks().run(function, [*arguments], self.folder, self.env)


@pytest.fixture
def project(tmp_path: Path) -> Told:
    (tmp_path / "models").mkdir()
    (tmp_path / "dbt_project.yml").write_text("name: shop\nversion: '1.0'\nprofile: my_project\n")
    (tmp_path / "models" / "c.sql").write_text(MODELS["orders_changelog"])
    exposure = {"name": "crm_c", "type": "application", "owner": OWNER, "depends_on": ["ref('c')"], "meta": META}
    (tmp_path / "models" / "e.yml").write_text(yaml.safe_dump({"exposures": [exposure]}))
    configured(tmp_path, {"crm": {"type": "sqlite", "path": "crm.db"}})
    return Told(tmp_path)


def configured(folder: Path, destinations: Mapping[str, Any]) -> None:
    block = {"outputs": {"prod": destinations}}
    (folder / "profiles.yml").write_text(yaml.safe_dump({"my_project": SESSION, "dbt_reverse_etl": block}))


def given_manifest() -> None:
    """What a program does that keeps a manifest between its commands; called in a process of its own."""
    from dbt.cli.main import dbtRunner

    parsed = dbtRunner().invoke(["parse"])
    for _ in range(2):
        result = dbtRunner(manifest=parsed.result).invoke(["build", "--select", "nothing_here"])  # type: ignore[arg-type]
        assert result.success, result.exception


@pytest.mark.guarantee("dbt and its commands")
def test_a_command_that_was_given_its_manifest_is_judged_by_its_own_results(project: Told) -> None:
    code, text = project.run(f"{__name__}:given_manifest")
    assert code == 0, text
    assert "dbt-reverse-etl: " not in text
    read = (
        json.loads((project.folder / "target" / f"{name}.json").read_text()) for name in ("manifest", "run_results")
    )
    parsed_by, ran = (one["metadata"]["invocation_id"] for one in read)
    assert parsed_by != ran


@pytest.mark.guarantee("Configuration")
@pytest.mark.parametrize("function", ["dbt.cli.main:cli", f"{__name__}:given_manifest"])
def test_a_wrong_configuration_stops_a_command_whose_manifest_dbt_shows_to_no_plugin(
    project: Told, function: str
) -> None:
    configured(project.folder, {"other": {"type": "sqlite", "path": "crm.db"}})
    code, text = project.run(function, "run", "--no-write-json", "--select", "nothing_here")
    assert code != 0
    assert "found 'crm'; expected a destination of this target" in text
    assert "nothing was captured or sent" in text


OTHERS = ("build", "parse", "compile", "test", "clean")


def without_pyspark() -> None:
    """dbt in a process of its own where nobody has installed pyspark."""
    from dbt.cli.main import cli

    sys.modules["pyspark"] = None  # type: ignore[assignment]
    cli()


@pytest.fixture
def elsewhere(project: Told) -> Told:
    """A project whose dbt asks a Spark elsewhere; dbt itself wants pyspark for `method: session`."""
    file = project.folder / "profiles.yml"
    profiles = yaml.safe_load(file.read_text())
    profiles["my_project"]["outputs"]["prod"] |= {"method": "thrift", "host": "127.0.0.1", "port": 1}
    file.write_text(yaml.safe_dump(profiles))
    return project


@pytest.mark.guarantee("Packaging")
@pytest.mark.parametrize(
    "command", ["run", "list", "deps", *(pytest.param(name, marks=pytest.mark.full) for name in OTHERS)]
)
def test_without_pyspark_the_plugin_says_nothing_where_nothing_is_to_be_pushed(elsewhere: Told, command: str) -> None:
    def silent() -> None:
        selected = () if command in ("parse", "deps", "clean") else ("--select", "nothing_here")
        code, text = elsewhere.run(f"{__name__}:without_pyspark", command, *selected)
        assert code == 0, text
        assert "dbt-reverse-etl" not in text

    silent()
    elsewhere.env["DBT_REVERSE_ETL_PUSH"] = "off"
    silent()
    del elsewhere.env["DBT_REVERSE_ETL_PUSH"]
    (elsewhere.folder / "models" / "e.yml").unlink()
    silent()


@pytest.mark.guarantee("Packaging")
@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("thrift", "found adapter spark with method thrift; expected spark with method: session. Next: push from"),
        ("session", "found no package pyspark; expected it installed. Next: pip install 'dbt-reverse-etl[spark]'"),
    ],
)
def test_without_pyspark_a_command_that_makes_a_sync_due_says_what_would_push_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, said: str
) -> None:
    def imported(_: str) -> None:
        raise ModuleNotFoundError(name="pyspark")

    flags(monkeypatch, WRITE_JSON=True)
    monkeypatch.setattr(options, "import_module", imported)
    credentials = SimpleNamespace(method=method)
    adapter = SimpleNamespace(type=lambda: "spark", config=SimpleNamespace(credentials=credentials))
    monkeypatch.setattr(host, "adapter", lambda: adapter)
    ended = listener(CHANGELOG)
    ended._artifacts = tmp_path
    with pytest.raises(ReverseEtlError, match=re.escape(said)):
        ended._push()
    ended._finished, ended._retried = {}, True
    with pytest.raises(ReverseEtlError, match=re.escape(said)):
        ended._push()  # a retry of nothing pushes what is left
    monkeypatch.setenv("DBT_REVERSE_ETL_PUSH", "off")
    assert ended._push()


@pytest.mark.guarantee("dbt and its commands", "With `--warn-error` a warning of ours is a line, and ends no push")
def test_a_warning_is_said_where_dbt_makes_errors_of_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    events, said = get_event_manager(), list[tuple[str, str]]()
    monkeypatch.setattr(events, "callbacks", [lambda event: said.append((event.info.level, event.info.msg))])
    monkeypatch.setattr(events, "require_warn_or_error_handling", True)  # the default of dbt 1.12
    monkeypatch.setattr(events, "_warn_error", True)
    with pytest.raises(EventCompilationError):
        fire_event(Note(msg="dbt's own"), level=EventLevel.WARN)
    for level in ("warn", "error", "info"):
        host.say("of a sync", level)
    assert [level for level, _ in said] == ["info", "error", "info"]
    assert all("of a sync" in text for _, text in said)


@pytest.mark.guarantee("dbt and its commands", "A signal during a push reaches the program that has called dbt")
@pytest.mark.parametrize("succeeded", [True, False])
def test_a_signal_during_the_push_is_handed_on(
    monkeypatch: pytest.MonkeyPatch, said: list[str], *, succeeded: bool
) -> None:
    def push() -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        return True

    ended, heard = listener(has_syncs=False), list[int]()
    monkeypatch.setattr(ended, "_push", push)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(ExceptionExit) as raised:
            ended._complete(succeeded=succeeded)
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        with pytest.raises(ResultExit) if succeeded else nullcontext():
            ended._complete(succeeded=succeeded)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(raised.value.exception, KeyboardInterrupt)
    assert raised.value.exit_code == 1, "as of each push that did not end well"
    assert heard == [signal.SIGTERM]
    assert said == ["dbt-reverse-etl: interrupted: the next run goes on."] * 2


# As dbt's frames at the end of a command: with its result, or with the error that has ended it.
DBT = """
def returned(ask):
    result = "of dbt"
    return ask()

def raised(ask):
    return ask()
"""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupt_that_the_caller_of_dbt_handles_did_not_end_dbt(error: BaseException) -> None:
    dbt: dict[str, Any] = {"__name__": "dbt.cli.requires"}
    exec(DBT, dbt)
    interrupted = Future[None]()
    interrupted.set_exception(error)
    try:
        interrupted.result()
    except (KeyboardInterrupt, SystemExit):
        assert not dbt["returned"](host.is_interrupted)
        assert dbt["raised"](host.is_interrupted)


@pytest.mark.guarantee(
    "dbt and its commands", "Of two dbt commands at once in one process, the later one pushes its own"
)
def test_the_end_of_a_command_in_another_thread_is_not_ours(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr(get_event_manager(), "callbacks", [])
    monkeypatch.setattr(host, "say_in_jinja", lambda *_: None)
    flags(monkeypatch)
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(plugin.ReverseEtlPlugin, "shop").result()
        assert not said
        get_event_manager().callbacks.clear()  # as dbt does, when the next command begins
        ours = plugin.ReverseEtlPlugin("shop")._listener
        assert "nothing is pushed after it" in said.pop()
        ended = event("CommandCompleted")
        ended.data.success = True
        elsewhere.submit(ours, ended).result()
        elsewhere.submit(ours, event("NodeFinished", CHANGELOG)).result()
    assert not ours._done
    assert ours._finished, "models end in threads of dbt"
    ours(ended)
    assert ours._done
    get_event_manager().callbacks.clear()
    plugin.ReverseEtlPlugin("shop")._listener(ended)
    assert not [text for text in said if "nothing is pushed after it" in text], "that one had ended"
