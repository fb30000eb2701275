"""The singer sink under the contract, with target-jsonl, and against targets that misbehave."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import yaml
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError, Problem
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.config.validation import Place, validate
from dbt_reverse_etl.delivery.engine import Engine
from dbt_reverse_etl.delivery.policy import Policy
from dbt_reverse_etl.delivery.wave import WavePart
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.singer import process
from dbt_reverse_etl.sinks.singer.settings import SingerOptions, SingerSettings
from dbt_reverse_etl.sinks.singer.sink import SingerSink
from dbt_reverse_etl.testing import ReadBack, Row, SinkContract, batch_of, deliver, opened, outcomes, person
from tests.support import ROOT
from tests.support.delivery.clock import FakeClock
from tests.support.effort import scaled
from tests.support.servers.singer_targets import JSONL, installed
from tests.support.sinks.json_values import as_json
from tests.support.sinks.singer import HOSTILE, MIRROR, hostile, inserts, task_of

CANARY = "canary-1414213562"


def rows_in(file: Path, key: Sequence[str] = ("id",)) -> list[Row]:
    """What a consumer makes of the records: applied by key in their order; marked ones are deleted."""
    rows: dict[tuple[Any, ...], Row] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        record = json.loads(line)
        identity = tuple(record[name] for name in key)
        rows.pop(identity, None)
        if record.pop("_sdc_deleted_at", None) is None:
            rows[identity] = record
    return list(rows.values())


class TestJsonl(SinkContract):
    sink_class = SingerSink
    histories = scaled(6)

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        config = {"destination_path": str(tmp_path / "out"), "do_timestamp_file": False, "disable_collection": True}
        return {"command": installed(JSONL), "config": config}

    @pytest.fixture
    def unreachable(self) -> dict[str, Any]:
        return {"command": "target-that-nobody-installed"}

    @pytest.fixture
    def read_back(self, tmp_path: Path) -> ReadBack:
        return lambda task: rows_in(tmp_path / "out" / f"{task.object}.jsonl", task.key)

    def refine(self, task: SinkTask) -> SinkTask:
        return with_options(task)

    def expected(self, field: pa.Field, value: Any) -> Any:
        return as_json(field, value)


def with_options(task: SinkTask) -> SinkTask:
    values = {name: getattr(task, name) for name in task.__dataclass_fields__}
    return SinkTask(**values | {"options": MIRROR if task.mode is Mode.MIRROR else SingerOptions()})


@pytest.mark.guarantee("Singer")
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("dies", "exit code 1"),
        ("is killed", "SIGKILL"),
        ("leaves early with success", "without the STATE"),
        ("says nothing", "without the STATE"),
        ("says an older state", "without the STATE"),
        ("says the state and then something else", "without the STATE"),
        ("says the state and fails", "exit code 3"),
    ],
)
def test_rows_are_unknown_unless_the_target_ends_well_with_the_state_of_their_batch(
    what: str, reason: str, tmp_path: Path
) -> None:
    with opened(hostile(what, tmp_path), task_of()) as sink:
        delivery = sink.deliver(batch_of(task_of(), inserts(5)))
    assert outcomes(delivery, 5) == [Outcome.UNKNOWN] * 5
    assert reason in delivery.results[0].reason
    assert delivery.results[0].reason.endswith("; set log_file to see what the target says")


@pytest.mark.guarantee("Singer")
@pytest.mark.parametrize(
    "what", ["is chatty", "says much to stderr", "says garbage first", "leaves a child behind", "obeys"]
)
def test_noise_and_long_input_neither_block_nor_hide_the_acknowledgement(what: str, tmp_path: Path) -> None:
    rows = 20_000 if what == "is chatty" else 5
    with opened(hostile(what, tmp_path, timeout=60), task_of()) as sink:
        assert sink.deliver(batch_of(task_of(), inserts(rows))).results == ()
    assert len(rows_in(tmp_path / "out")) == rows


@pytest.mark.guarantee("Singer")
def test_what_a_target_leaves_behind_is_ended_with_it(tmp_path: Path) -> None:
    with opened(hostile("leaves a child behind", tmp_path), task_of()) as sink:
        assert deliver(sink, task_of(), inserts(1)) == [Outcome.DELIVERED]
    assert all_gone(pids(tmp_path))


@pytest.mark.guarantee("Singer")
def test_a_target_that_ended_well_is_not_late_though_a_daemon_of_its_own_holds_its_stdout(tmp_path: Path) -> None:
    with opened(hostile("leaves a daemon behind", tmp_path, timeout=20), task_of()) as sink:
        assert deliver(sink, task_of(), inserts(1)) == [Outcome.DELIVERED]
    (daemon,) = pids(tmp_path)
    os.kill(daemon, signal.SIGKILL)


@pytest.mark.guarantee("Singer")
@pytest.mark.parametrize("what", ["hangs", "hangs and ignores SIGTERM"])
def test_a_target_that_hangs_is_ended_with_all_its_children_and_its_rows_are_unknown(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE", 1.0)
    with opened(hostile(what, tmp_path, timeout=1), task_of()) as sink:
        started = time.monotonic()
        delivery = sink.deliver(batch_of(task_of(), inserts(50_000)))
    assert set(outcomes(delivery, 50_000)) == {Outcome.UNKNOWN}
    assert "did not end within 1 s" in delivery.results[0].reason
    assert time.monotonic() - started < 8
    assert all_gone(pids(tmp_path))


@pytest.mark.guarantee("Singer")
@pytest.mark.parametrize(
    ("what", "found"), [("says nothing, not even to the probe", "STATE"), ("never reads", "did not end")]
)
def test_a_target_that_never_answers_is_found_out_before_any_row_is_sent(what: str, found: str, tmp_path: Path) -> None:
    sink = hostile(what, tmp_path, timeout=1)
    with pytest.raises(DestinationError, match=found) as caught:
        sink.open(task_of())
    assert "log_file" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.guarantee("Singer")
def test_a_killed_run_leaves_neither_target_nor_child_nor_file_with_secrets(tmp_path: Path) -> None:
    code = f"""
        import sys
        sys.path[:0] = {[str(ROOT)]!r}
        from pathlib import Path
        from dbt_reverse_etl.testing import batch_of
        from tests.servers.singer.test_sink import hostile, inserts, task_of
        sink = hostile("hangs", Path({str(tmp_path)!r}))
        sink.open(task_of())
        sink.deliver(batch_of(task_of(), inserts(5)))
    """
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        assert soon((tmp_path / "out.pids").exists, 30)
        config = Path((tmp_path / "out.pids").read_text().split()[-1])
        assert config.exists()
        assert not all_gone(pids(tmp_path), seconds=0)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert all_gone(pids(tmp_path))
    assert soon(lambda: not config.exists())


@pytest.mark.guarantee("Singer")
def test_a_target_sees_its_config_in_a_private_file_and_nothing_else_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM_PASSWORD", CANARY)
    config = {"out": str(tmp_path / "out"), "password": CANARY}
    with opened(hostile("tells what it sees", tmp_path, config=config, env={"GREETING": "hi"}), task_of()) as sink:
        deliver(sink, task_of(), inserts(1))
    seen = json.loads((tmp_path / "out.seen").read_text())
    assert seen["config"] == config
    assert seen["mode"] == 0o600
    assert CANARY not in json.dumps([seen["argv"], seen["env"]])
    assert set(seen["env"]) <= {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "GREETING"}
    assert seen["env"]["GREETING"] == "hi"
    assert not Path(seen["argv"][-1]).exists()


@pytest.mark.guarantee("Singer")
def test_a_target_runs_in_the_folder_of_the_project_whichever_folder_its_push_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, elsewhere = tmp_path / "shop", tmp_path / "elsewhere"
    for folder in (shop, elsewhere / "bin"):
        folder.mkdir(parents=True)
    program = elsewhere / "bin" / "target-here"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {HOSTILE} obeys "$@"\n')
    program.chmod(0o755)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PATH", f"bin{os.pathsep}{os.environ['PATH']}")
    settings = SingerSettings.model_validate({"command": "target-here", "config": {"out": "out"}})
    task = task_of(project_dir=shop)
    with opened(SingerSink(settings), task) as sink:
        assert deliver(sink, task, inserts(2)) == [Outcome.DELIVERED] * 2
    assert len((shop / "out").read_text().splitlines()) == 2
    assert not (elsewhere / "out").exists()


def test_words_of_a_target_go_to_its_log_file_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "target.log"
    with opened(hostile("says much to stderr", tmp_path, log_file=str(log)), task_of()) as sink:
        deliver(sink, task_of(), inserts(1))
    assert "canary-words" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    with opened(hostile("dies", tmp_path, log_file=str(log)), task_of()) as sink:
        delivery = sink.deliver(batch_of(task_of(), inserts(5)))
        assert delivery.results[0].reason == "the target ended with exit code 1; look at log_file"
    with opened(hostile("says much to stderr", tmp_path), task_of()) as sink:
        deliver(sink, task_of(), inserts(1))
    assert "canary-words" not in "".join(capfd.readouterr())


def test_secrets_are_in_no_text_of_settings_and_identity(tmp_path: Path) -> None:
    config = {"host": "db", "password": CANARY, "sqlalchemy_url": f"postgresql://me:{CANARY}@db/crm?password={CANARY}"}
    settings = SingerSettings.model_validate({"command": "target-x", "config": config, "env": {"TOKEN": CANARY}})
    sink = SingerSink(settings)
    assert CANARY not in "".join([repr(settings), str(settings), settings.model_dump_json(), repr(sink), sink.identity])


def test_a_program_that_is_not_there_is_said_with_how_to_install_it(tmp_path: Path) -> None:
    for command in ("target-nowhere", "./target-nowhere", str(tmp_path / "target-nowhere")):
        with pytest.raises(DestinationError, match="pipx install target-nowhere"):
            SingerSink(SingerSettings.model_validate({"command": command})).check()


@pytest.mark.guarantee("Singer")
def test_a_program_that_cannot_be_started_or_vanished_got_no_row(tmp_path: Path) -> None:
    program = tmp_path / "target-broken"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    sink = SingerSink(SingerSettings.model_validate({"command": str(program)}))
    sink.check()
    with pytest.raises(DestinationError, match="could not be started: No such file"):
        sink.open(task_of())
    copy = str(shutil.copy(sys.executable, tmp_path / "python"))
    working = SingerSink(
        SingerSettings.model_validate(
            {"command": [copy, "-I", "-S", HOSTILE, "obeys"], "config": {"out": str(tmp_path / "out")}}
        )
    )
    with opened(working, task_of()):
        Path(copy).unlink()
        assert deliver(working, task_of(), inserts(2)) == [Outcome.FATAL] * 2


def test_a_log_file_that_cannot_be_written_is_said_before_any_row_and_leaves_no_file_with_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(DestinationError, match="log_file cannot be opened: No such file") as caught:
        hostile("obeys", tmp_path, log_file=str(tmp_path / "no such folder" / "log")).open(task_of())
    assert "look at log_file" not in str(caught.value), "there is none"
    assert "correct config" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_check_looks_for_a_place_of_the_log_and_makes_no_file(tmp_path: Path) -> None:
    program = tmp_path / "a file"
    program.touch(mode=0o755)
    for log in (tmp_path, tmp_path / "no such folder" / "log", program / "log"):
        with pytest.raises(DestinationError, match="found a log_file that cannot be written"):
            hostile("obeys", tmp_path, log_file=str(log)).check()
    for log in (tmp_path / "log", program, Path(os.devnull)):
        hostile("obeys", tmp_path, log_file=str(log)).check()
    assert list(tmp_path.iterdir()) == [program]


@pytest.mark.guarantee("Singer")
def test_a_command_is_split_as_by_a_shell_but_never_run_by_one(tmp_path: Path) -> None:
    command = f"'{sys.executable}' -I -S '{HOSTILE}' 'obeys; touch {tmp_path}/touched'"
    sink = SingerSink(SingerSettings.model_validate({"command": command, "config": {"out": str(tmp_path / "out")}}))
    with opened(sink, task_of()):
        assert deliver(sink, task_of(), inserts(1)) == [Outcome.DELIVERED]
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("command", ["", [], "target-x 'open", "target-x --config=mine.json", ["target-x", "-c", "x"]])
def test_a_command_that_cannot_work_is_refused(command: object) -> None:
    with pytest.raises(ValidationError):
        SingerSettings.model_validate({"command": command})


@pytest.mark.guarantee("Singer")
@pytest.mark.parametrize(
    ("command", "config"),
    [
        ("target-x", {"load_method": "overwrite"}),
        ("target-bigquery", {"overwrite": True}),
        ("target-bigquery", {"overwrite": ["people"]}),
        ("target-x", {"truncate_before_load": True}),
        ("target-bigquery", {"replication_method": "truncate"}),
        ("/opt/target-csv", {"output_path": "out"}),
        ("uvx --from x target-csv", {}),
        ("python -m target_csv", {"file_naming_scheme": "{timestamp}.csv", "timestamp_format": "%Y-%m-%d"}),
    ],
)
def test_a_target_that_empties_its_table_for_each_batch_is_refused(command: str, config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="expected a target that"):
        SingerSettings.model_validate({"command": command, "config": config})


def test_a_target_that_keeps_what_it_had_is_not_refused() -> None:
    for command, config in (
        ("target-x", {"load_method": "upsert", "overwrite": False, "truncate_before_load": False}),
        ("target-bigquery", {"overwrite": [], "replication_method": "append"}),
        ("target-csv", {"file_naming_scheme": "{stream_name}-{timestamp}.csv"}),
        ("target-csv", {"destination_path": "out", "delimiter": ";"}),
    ):
        SingerSettings.model_validate({"command": command, "config": config})


@pytest.mark.guarantee("Singer")
@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("start_date: 2024-01-31", "config.start_date: found a date; expected a value that JSON has"),
        (
            "load: {since: [1, 2024-01-31T09:30:00Z]}",
            "config.load.since.1: found a datetime; expected a value that JSON has",
        ),
        ("key: !!binary Y2FuYXJ5", "config.key: found a bytes; expected a value that JSON has"),
        ("names: !!set {a}", "config.names: found a set; expected a value that JSON has"),
        ("most: .inf", "config.most: found a number; expected a finite number"),
        ("holidays: {2024-12-25: x}", "config.holidays: found a date as a key; expected a text"),
    ],
)
def test_a_config_that_json_cannot_hold_is_refused_by_its_path_and_shows_no_value(written: str, found: str) -> None:
    config = {"password": CANARY, **yaml.safe_load(written)}
    problems: list[Problem] = []
    place = Place("profiles.yml", ("mine",), lambda _: True)
    assert validate(SingerSettings, {"command": "target-x", "config": config}, place, problems) is None
    (said,) = map(str, problems)
    assert f"profiles.yml: mine.{found}" in said
    assert not any(value in said for value in (CANARY, "2024", "canary"))
    fits = {"a": [1, 1.5, True, None, "2024-01-31"], "b": {"c": {}, "1": []}}
    SingerSettings.model_validate({"command": "target-x", "config": fits})


@pytest.mark.guarantee("Singer")
def test_a_config_that_cannot_be_written_leaves_no_file_with_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int, *_: object, **__: object) -> Any:
        os.close(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = process.Program([sys.executable], {"password": CANARY, "since": date(2024, 1, 31)}, {}, 5, None)
    with pytest.raises(TypeError):
        process.run(program, [])
    monkeypatch.setattr(os, "fdopen", failing)
    with pytest.raises(process.NotStartedError, match="No space left on device"):
        process.run(replace(program, config={"password": CANARY}), [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.guarantee("Singer")
def test_deletes_need_a_word_of_the_user_and_a_target_that_keeps_the_mark() -> None:
    sink = SingerSink(SingerSettings.model_validate({"command": "target-x"}))
    with pytest.raises(ConfigurationError, match="deletes: sdc_deleted_at"):
        sink.validate(task_of(options=SingerOptions()))
    with pytest.raises(ConfigurationError, match="set mode: mirror"):
        sink.validate(task_of(mode=Mode.UPSERT))
    dropping = {"command": "target-x", "config": {"add_record_metadata": False}}
    with pytest.raises(ConfigurationError, match="drops _sdc_deleted_at"):
        SingerSink(SingerSettings.model_validate(dropping)).validate(task_of())


def test_fields_that_no_target_could_hold_are_refused_all_at_once() -> None:
    fields = [("id", pa.int64()), ("Name", pa.string()), ("name", pa.string()), ("_sdc_x", pa.string())]
    schema = pa.schema(fields)
    with pytest.raises(ConfigurationError) as caught:
        SingerSink(SingerSettings.model_validate({"command": "target-x"})).validate(
            task_of(schema=schema, options=SingerOptions(), key=("uid",))
        )
    assert len(caught.value.problems) == 4


def test_a_row_that_json_cannot_hold_or_without_a_key_is_refused_alone(tmp_path: Path) -> None:
    changes = [*inserts(2), ("insert", person(7, score=float("nan"))), ("insert", {"name": CANARY})]
    with opened(hostile("obeys", tmp_path), task_of()) as sink:
        delivery = sink.deliver(batch_of(task_of(), changes))
    assert outcomes(delivery, 4) == [Outcome.DELIVERED] * 2 + [Outcome.REJECTED] * 2
    assert [row["id"] for row in rows_in(tmp_path / "out")] == [0, 1]


@pytest.mark.guarantee("Singer")
@pytest.mark.parametrize("nan", ["reject", "null"])
def test_a_key_that_is_no_number_is_refused_alone_even_where_such_a_value_is_written_as_null(
    nan: Any, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.float64()), ("score", pa.float64())])
    task = task_of(schema=schema, options=MIRROR.model_copy(update={"nan": nan}))
    keys = [1.0, float("nan"), float("inf"), 2.0]
    changes = [("insert", {"id": key, "score": 1.0}) for key in keys]
    with opened(hostile("obeys", tmp_path), task) as sink:
        delivery = sink.deliver(batch_of(task, [*changes, ("delete", {"id": float("nan")})]))
    refused = [Outcome.REJECTED]
    assert outcomes(delivery, 5) == [Outcome.DELIVERED, *refused * 2, Outcome.DELIVERED, *refused]
    assert {result.reason for result in delivery.results} == {"field id: NaN or Infinity has no JSON form"}
    assert [row["id"] for row in rows_in(tmp_path / "out")] == [1.0, 2.0]


def engine_run(sink: SingerSink, rows: int) -> Any:
    """A wave of the whole engine, with its retries and on a clock that does not wait."""
    task = task_of()
    batch = batch_of(task, inserts(rows)).rows
    table = batch.append_column("_key", pa.array([str(number) for number in range(rows)]))
    with opened(sink, task):
        engine = Engine(sink, task, Policy(), FakeClock(), lambda: True, random=lambda: 1.0)
        return engine.deliver_wave(WavePart("claim-1", table))


@pytest.mark.guarantee("Singer")
def test_the_engine_repeats_what_a_crash_of_the_target_left_unknown_until_it_is_delivered(tmp_path: Path) -> None:
    sink = hostile("dies once", tmp_path, batch_rows=10)
    with patch.object(sink, "deliver", wraps=sink.deliver) as deliver:
        result = engine_run(sink, 25)
    assert result.failures == {}
    assert deliver.call_count == 4
    assert len(rows_in(tmp_path / "out")) == result.counts.delivered.total == 25


@pytest.mark.guarantee("Singer")
def test_the_engine_never_counts_rows_of_a_target_that_always_dies_as_delivered(tmp_path: Path) -> None:
    sink = hostile("dies", tmp_path)
    with patch.object(sink, "deliver", wraps=sink.deliver) as deliver:
        result = engine_run(sink, 5)
    assert {failure.outcome for failure in result.failures.values()} == {Outcome.UNKNOWN}
    assert result.counts.delivered.total == 0
    assert deliver.call_count > 1


def pids(tmp_path: Path) -> list[int]:
    return [int(word) for word in (tmp_path / "out.pids").read_text().split() if word.isdigit()]


def all_gone(numbers: Sequence[int], seconds: float = 5) -> bool:
    assert numbers
    return soon(lambda: not any(map(is_alive, numbers)), seconds)


def is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def soon(holds: Any, seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
