"""A message when a sync begins to fail and when it has recovered: to real servers over real sockets, without secrets and row values."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from dbt_reverse_etl.alerts.channels import Channel, Mail, Slack, Webhook, collect_channels
from dbt_reverse_etl.app import alerts
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.delivery.counts import Counts, PerOperation
from dbt_reverse_etl.delivery.health import Health, Left, Standing
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.warehouse.overview import Heard
from tests.support.servers.http import HttpServer, Reply, free_port, http_server

NOW = datetime(2026, 3, 14, 9, 30, tzinfo=timezone.utc)
CANARY = "canary-Hook7x9Q"


def ended(status: str, **more: Any) -> Report:
    standing = Standing(Health.FAILING if status == Status.FAILED else Health.OK)
    return Report("crm", "crm.contacts", status, **{"standing": standing, **more})


FAILING = Health.FAILING
WAITING = Standing(
    FAILING,
    (Left("rejected", "422 invalid_email", 2, "at_a_time", NOW, NOW),),
    reason="undelivered rows: 2, and max_undelivered allows 0",
)
REJECTED = Counts(PerOperation(5), PerOperation(2, 1, 0), PerOperation(2))


@pytest.fixture
def http() -> Iterator[HttpServer]:
    with http_server() as server:
        yield server


def sent(channel: Channel, *reports: Report, told: str = "") -> list[tuple[str, str]]:
    """What the console heard while the changes went out."""
    heard: list[tuple[str, str]] = []
    changes = alerts.changed(reports or [ended(Status.FAILED)], {"crm": Heard(told)} if told else {})
    alerts.send({0: channel}, changes, "prod", "run-1", lambda text, level: heard.append((text, level)))
    return heard


def test_a_webhook_gets_counts_reason_and_link_as_json_and_its_token_in_a_header(http: HttpServer) -> None:
    hook = Webhook(type="webhook", url=f"{http.url}/hook", token="t0ken-canary", link="https://ci.example.com/42")  # type: ignore[arg-type]
    report = ended(Status.PARTIAL, counts=REJECTED, standing=WAITING)
    assert sent(hook, report) == []
    [request] = http.received
    assert (request.method, request.path, request.headers["authorization"]) == ("POST", "/hook", "Bearer t0ken-canary")
    assert request.json == {
        "event": "sync_state_changed",
        "target": "prod",
        "invocation_id": "run-1",
        "link": "https://ci.example.com/42",
        "syncs": [
            {
                "sync": "crm",
                "destination": "crm.contacts",
                "state": "failing",
                "status": "partial",
                "counts": {
                    "inserts": 2,
                    "updates": 1,
                    "deletes": 0,
                    "rejected": 2,
                    "failed": 0,
                    "waiting": 0,
                    "no_match": 0,
                    "undelivered": 2,
                },
                "message": "undelivered rows: 2, and max_undelivered allows 0; "
                "undelivered: 2 rejected: 422 invalid_email; tried again after 2026-03-14 09:30 UTC",
            }
        ],
    }


def test_slack_gets_a_text_in_which_no_name_is_markup(http: HttpServer) -> None:
    slack = Slack(type="slack", url=f"{http.url}/T0/B0", link="https://ci.example.com/?a=1&b=2")  # type: ignore[arg-type]
    http.default = Reply(200, b"ok", {"Content-Type": "text/html"})  # as Slack answers
    assert sent(slack, ended(Status.FAILED, message="<!channel> & <https://x|y>")) == []
    assert http.received[0].json == {
        "text": "dbt-reverse-etl prod: 1 failing\n"
        "failing: crm -&gt; crm.contacts: failed, +0 ~0 -0 delivered\n"
        "  &lt;!channel&gt; &amp; &lt;https://x|y&gt;\n"
        "https://ci.example.com/?a=1&amp;b=2"
    }


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize(
    "reply",
    [
        Reply(404),
        Reply(500),
        Reply(302, headers={"Location": "/elsewhere"}),
        Reply(reset="unread"),
        Reply(200, b"\n<!doctype html><title>Log in</title>", {"Content-Type": "text/html; charset=utf-8"}),
        Reply(200, b'{"ok": false, "error": "not_authed"}', {"Content-Type": "application/json"}),
    ],
    ids=str,
)
def test_a_channel_that_fails_is_said_without_its_address_and_is_no_error_of_the_push(
    http: HttpServer, reply: Reply
) -> None:
    http.script(reply)
    [(text, level)] = sent(Slack(type="slack", url=f"{http.url}/{CANARY}"))  # type: ignore[arg-type]
    assert level == "error"
    assert "alert 0 (slack) was not sent: " in text
    assert "found " in text
    assert "Next: " in text
    assert CANARY not in text
    assert len(http.received) <= 1, "neither repeated nor redirected"


class Mailbox:
    """What a mail server took, and by whom."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message = message_from_bytes(envelope.content, policy=policy.default)
        self.taken.append((session.authenticated, envelope.rcpt_tos, message))
        return "250 OK"

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address.startswith("gone"):
            return "550 No such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"


def _only_growth(server: Any, session: Any, envelope: Any, mechanism: str, login: Any) -> AuthResult:
    right = isinstance(login, LoginPassword) and login.password == CANARY.encode()
    return AuthResult(success=right, handled=False)


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Callable[..., tuple[Mailbox, dict[str, Any]]]]:
    """Starts a mail server that wants TLS and a login; gives what it took and the settings to reach it."""
    authority, running = trustme.CA(), []
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    def start(security: str) -> tuple[Mailbox, dict[str, Any]]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("localhost").configure_cert(context)
        how = {"tls_context": context, "require_starttls": True} if security == "starttls" else {"ssl_context": context}
        box = Mailbox()
        running.append(
            Controller(box, "localhost", free_port(), authenticator=_only_growth, auth_required=True, auth_require_tls=security == "starttls", **how)
        )  # fmt: skip
        running[-1].start()
        settings = {
            "type": "email", "host": "localhost", "port": running[-1].port, "security": security,
            "user": "growth", "password": CANARY, "sender": "dbt@example.com", "to": ["a@example.com", "b@example.com"],
            "ca_file": str(tmp_path / "ca.pem"),
        }  # fmt: skip
        return box, settings

    yield start
    for controller in running:
        controller.stop()


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_goes_over_verified_tls_with_a_login(post: Callable[..., Any], security: str) -> None:
    box, settings = post(security)
    report = ended(Status.SUCCEEDED, counts=Counts(PerOperation(1), PerOperation(1)))
    assert sent(Mail(**settings, link="https://ci.example.com"), report, told="failing") == []
    [(authenticated, recipients, message)] = box.taken
    assert (authenticated, recipients) == (True, ["a@example.com", "b@example.com"])
    assert message["Subject"] == "dbt-reverse-etl prod: 1 recovered"
    assert abs((message["Date"].datetime - datetime.now(timezone.utc)).total_seconds()) < 60
    assert re.fullmatch(r"<[^<>@\s]+@example\.com>", message["Message-ID"]), "of the sender, and not of this machine"
    assert message.get_content().splitlines() == [
        "recovered: crm -> crm.contacts: succeeded, +1 ~0 -0 delivered",
        "",
        "https://ci.example.com",
    ]


@pytest.mark.guarantee("Report and alerts")
def test_a_recipient_that_the_mail_server_refuses_is_said_and_the_others_get_the_message(
    post: Callable[..., Any],
) -> None:
    box, settings = post("tls")
    [(text, level)] = sent(Mail(**{**settings, "to": ["gone@example.com", "b@example.com"]}))
    assert (text, level) == ("alert 0 (email): the server refused 1 of 2 recipients: correct `to`", "warn")
    assert [recipients for _, recipients, _ in box.taken] == [["b@example.com"]]


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_server_that_cannot_be_trusted_gets_no_login_and_a_wrong_login_is_said_without_it(
    post: Callable[..., Any], security: str
) -> None:
    box, settings = post(security)
    [(untrusted, _)] = sent(Mail(**{**settings, "ca_file": None}))
    assert "SSLCertVerificationError" in untrusted
    [(wrong, _)] = sent(Mail(**{**settings, "password": CANARY[:-1]}))
    assert "SMTPAuthenticationError" in wrong
    assert CANARY[:-1] not in wrong
    assert box.taken == []


@pytest.fixture
def drip() -> Iterator[int]:
    """The port of a server that answers with a byte ten times a second, and never with a whole line."""
    over = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while not over.wait(0.1):
                connection.sendall(b"2")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: answer(server.accept()[0]), daemon=True).start()
        yield server.getsockname()[1]
        over.set()


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("type_", ["email", "slack"])
def test_a_server_that_drips_its_answer_holds_no_push_beyond_the_time_of_a_channel(
    type_: str, drip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "TIMEOUT", 1.0)
    mail = {"host": "127.0.0.1", "port": drip, "security": "none", "sender": "a@example.com", "to": ["b@example.com"]}
    given: dict[str, Any] = mail if type_ == "email" else {"url": f"http://127.0.0.1:{drip}/hook"}
    began = time.monotonic()
    [(text, level)] = sent((Mail if type_ == "email" else Slack)(type=type_, **given))
    assert time.monotonic() - began < 3
    assert (text, level) == (
        f"alert 0 ({type_}) was not sent: found TimeoutError; expected an answer. Next: check its settings in profiles.yml",
        "error",
    )


def collected(folder: Path, written: Any, target: str = "prod", **env: str) -> tuple[dict[int, Channel], list[str]]:
    document = {"dbt_reverse_etl": {"outputs": {"prod": {}, "dev": {}}, "alerts": written}}
    (folder / "profiles.yml").write_text(yaml.safe_dump(document))
    problems: list[Problem] = []
    return collect_channels([folder], target, env, problems, problems), [str(problem) for problem in problems]


@pytest.mark.guarantee("Report and alerts")
def test_every_mistake_is_said_at_once_and_shows_no_secret(tmp_path: Path) -> None:
    written = [
        {"type": "pager"},
        {"type": "slack", "url": f"http://hooks.example.com/{CANARY}"},
        {"type": "webhook", "url": f"https://user:{CANARY}@example.com", "tokn": "x"},
        {"type": "email", "host": "mail.example.com", "security": "none", "sender": "a", "to": [], "password": CANARY},
        {"type": "email", "host": "localhost", "sender": "a@b.c\nBcc: x@y.z", "to": ["a@example.com"]},
        {"type": "slack", "url": "{{ env_var('UNSET_HOOK') }}"},
        {"type": "slack", "url": "https://169.254.169.254/latest"},
        "slack",
    ]
    found, problems = collected(tmp_path, written)
    assert found == {}
    for index in range(len(written)):
        assert [one for one in problems if f"alerts.{index}" in one], index
    assert "environment variable UNSET_HOOK, which is not set" in "\n".join(problems)
    assert CANARY not in "\n".join(problems)
    assert collected(tmp_path, {"type": "slack"})[1], "not a list"


def test_each_target_has_channels_of_its_own_and_needs_only_their_variables(tmp_path: Path) -> None:
    written = [
        {"type": "slack", "url": "{{ env_var('HOOK') }}", "targets": ["prod"]},
        {"type": "webhook", "url": "https://example.com/hook"},
    ]
    prod, problems = collected(tmp_path, written, "prod", HOOK=f"https://hooks.example.com/{CANARY}")
    assert problems == []
    assert {number: channel.type for number, channel in prod.items()} == {0: "slack", 1: "webhook"}
    assert CANARY not in repr(prod)
    dev, problems = collected(tmp_path, written, "dev")
    assert (problems, {number: channel.type for number, channel in dev.items()}) == ([], {1: "webhook"})


@pytest.mark.guarantee("Report and alerts")
def test_a_channel_that_fails_has_the_number_that_it_has_in_the_file(tmp_path: Path, http: HttpServer) -> None:
    http.default = Reply(500)
    written = [{"type": "slack", "url": f"{http.url}/{target}", "targets": [target]} for target in ("dev", "prod")]
    found, heard = collected(tmp_path, written)[0], list[str]()
    alerts.send(
        found, alerts.changed([ended(Status.FAILED)], {}), "prod", "run-1", lambda text, level: heard.append(text)
    )
    assert [text.partition(" was")[0] for text in heard] == ["alert 1 (slack)"]


def test_a_channel_that_no_target_would_have_is_a_mistake(tmp_path: Path) -> None:
    hook = {"type": "webhook", "url": "https://example.com/hook"}
    for targets, word in (
        (["production"], "a target without destinations"),
        (["prod", "live"], "a target"),
        ([], "an empty list"),
    ):
        for target in ("prod", "dev"):
            _, problems = collected(tmp_path, [{**hook, "targets": targets}], target)
            assert any(f"alerts.0.targets: found {word}" in one and "dev, prod" in one for one in problems), problems
    assert collected(tmp_path, [{**hook, "targets": None}])[1] == []
