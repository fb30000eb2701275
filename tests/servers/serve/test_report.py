"""`GET /report` of `serve`: the page of the newest run, which nothing that counts waits for."""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dbt_reverse_etl.cli import cli
from dbt_reverse_etl.serve.pace import Pace
from dbt_reverse_etl.serve.pushing import PushProcess
from dbt_reverse_etl.serve.reports import AT_MOST_EVERY, Reports
from dbt_reverse_etl.serve.surroundings import Surroundings
from tests.support.serve.world import World, wait_for
from tests.support.servers.cloud_api import event, post


def get(url: str) -> tuple[int, str]:
    """Of /report, and within a second."""
    began = time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            found = answer.status, answer.read().decode()
            assert "no-store" in answer.headers["Cache-Control"]
    except urllib.error.HTTPError as error:
        found = error.code, error.read().decode()
    assert time.monotonic() - began < 1
    return found


def begun(world: World) -> int:
    log = world.folder / "reports.log"
    return len(log.read_text().split()) if log.exists() else 0


@pytest.mark.guarantee("dbt Cloud")
def test_the_report_is_made_in_the_background_once_for_all_who_ask_and_no_webhook_waits_for_it(world: World) -> None:
    hold = world.folder / "hold-report"
    hold.touch()
    with world.serving() as url:
        report = url.replace("/webhook", "") + "/report"
        assert get(report)[0] == 404, "there was no run"
        world.api.add_run(1)
        post(url, event(1))
        world.wait(1)

        assert get(report)[0] == 202
        wait_for(lambda: begun(world) == 1, "it was never begun")
        assert get(report)[0] == 202
        world.api.add_run(2)
        asked = time.monotonic()
        assert post(url, event(2)) == (200, {"result": "accepted"})
        assert time.monotonic() - asked < 1
        assert world.pushed(2) == [], "two Sparks at once may not fit"

        hold.unlink()
        world.wait(2)
        assert get(report) == (200, "<p>page 1 of prod")
        assert get(report + "?target=prod") == (200, "<p>page 1 of prod")
        status, text = get(report + "?target=other")
        assert (status, json.loads(text)["error"]) == (404, "name a target: /report?target=prod")
    assert begun(world) == 1


def test_a_page_that_cannot_be_read_is_an_error_without_a_traceback(world: World) -> None:
    with world.serving() as url:
        world.api.add_run(1)
        post(url, event(1))
        world.wait(1)
        (world.kept / "reports/prod/report.html").symlink_to("/proc/self/mem")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/report")
        assert refused.value.code == 500
        assert json.loads(refused.value.read()) == {"error": "an unexpected OSError"}
    assert "found an unexpected OSError" in world.logs()
    assert "Traceback" not in world.logs()


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def reports(tmp_path: Path, world: World, now: list[float]) -> Reports:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts/manifest.json").write_text("{}")
    command = [sys.executable, str(world.folder / "push.py")]
    made = Reports(
        tmp_path / "reports",
        PushProcess(command, tmp_path / "lock", threading.Event(), umask=-1),
        Surroundings(world.folder, None, {}, lambda text, level: None),
        threading.Event().set,
        pace=Pace(lambda: now[0]),
    )
    made.keep(tmp_path / "artifacts", "prod")
    return made


@pytest.mark.guarantee("dbt Cloud")
def test_a_page_is_made_anew_at_most_once_a_minute_and_only_if_somebody_asked(
    reports: Reports, world: World, now: list[float]
) -> None:
    reports.make_those_asked_for()
    assert begun(world) == 0
    for minute in (1, 2):
        for _ in range(3):
            reports.ask("prod")
            reports.make_those_asked_for()
        assert begun(world) == minute
        assert reports.ask("prod") == (f"<p>page {minute} of prod".encode(), None)
        now[0] += AT_MOST_EVERY


@pytest.mark.guarantee("dbt Cloud")
def test_a_report_that_fails_leaves_the_page_before_it_and_is_not_tried_again_within_the_minute(
    reports: Reports, world: World, now: list[float]
) -> None:
    codes = world.folder / "codes-report"
    codes.write_text("1")
    for _ in range(2):
        assert reports.ask("prod")[0] is None
        reports.make_those_asked_for()
    assert reports.ask("prod") == (None, 1)
    assert begun(world) == 1

    for code, expected in ((0, None), (1, 1)):
        codes.write_text(str(code))
        now[0] += AT_MOST_EVERY
        reports.ask("prod")
        reports.make_those_asked_for()
        assert reports.ask("prod") == (b"<p>page 2 of prod", expected)


@pytest.mark.guarantee("dbt Cloud")
def test_a_report_without_end_is_ended_so_that_pushes_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    endless = PushProcess(command, tmp_path / "lock", threading.Event(), umask=-1)
    assert endless.run([], seconds=0.5) == -15


@pytest.mark.parametrize(
    ("command", "more"), [("push", ["--if-due"]), ("report", ["--out", "report.new"])], ids=["push", "report"]
)
def test_what_serve_asks_for_is_what_the_command_takes(tmp_path: Path, command: str, more: list[str]) -> None:
    around = Surroundings(tmp_path, tmp_path, {}, print, log_format="timed")
    _, *words = around.arguments(command, tmp_path / "r", "prod", *more)
    parsed = cli.commands[command].make_context(command, words).params
    assert (parsed["target"], parsed["target_path"], parsed["log_format"]) == ("prod", tmp_path / "r", "timed")
