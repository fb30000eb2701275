"""What the channels of alerts may be set to, and how much a message may say."""

from __future__ import annotations

import socketserver
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from pydantic import ValidationError

from dbt_reverse_etl.alerts import channels
from dbt_reverse_etl.alerts.channels import Mail, Slack, Webhook

MAIL: dict[str, Any] = {"type": "email", "host": "smtp.example.com", "sender": "a@example.com", "to": ["b@example.com"]}


@pytest.mark.guarantee("Report and alerts")
def test_mail_over_port_465_without_tls_from_the_first_byte_is_refused_with_what_to_set() -> None:
    with pytest.raises(ValidationError, match="security: tls, for port 465 has no STARTTLS; or port: 587"):
        Mail(**MAIL, port=465)
    assert Mail(**MAIL, port=465, security="tls").port == 465
    assert Mail(**MAIL).security == "starttls"


@pytest.mark.guarantee("Report and alerts")
def test_a_line_break_at_the_end_of_a_login_is_found_before_an_alert_is_due() -> None:
    hint = "look for a line break at the end of the variable"
    webhook: dict[str, Any] = {"type": "webhook", "url": "https://example.com/alerts"}
    assert Webhook(**webhook, token="abc").token
    assert Webhook(**webhook, token="").token is None, "a variable that has '' as its default"
    with pytest.raises(ValidationError, match=hint):
        Webhook(**webhook, token="abc\n")
    for login in ({"user": "me\n", "password": "abc"}, {"user": "me", "password": "abc\n"}):
        with pytest.raises(ValidationError, match=hint):
            Mail(**MAIL, **login)


@pytest.mark.guarantee("Report and alerts")
def test_an_empty_login_is_none_as_a_variable_has_it_whose_default_is_empty() -> None:
    mail = Mail(**MAIL, user="", password="")  # type: ignore[arg-type]
    assert (mail.user, mail.password) == (None, None)
    for half in ({"user": "me", "password": ""}, {"user": "", "password": "abc"}):
        with pytest.raises(ValidationError, match="user and password together, or none of them"):
            Mail(**MAIL, **half)


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize(
    "login", [{"user": "jürgen", "password": "abc"}, {"user": "me", "password": "geheimnisvoll-ü"}]
)
def test_a_login_that_the_mail_client_cannot_send_is_found_before_an_alert_is_due(login: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"expected ASCII alone, .*; next: take another login") as caught:
        Mail(**MAIL, **login)
    assert "ü" not in str(caught.value)


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize(
    "url",
    [
        *(
            "https://hooks.example.com/x\n",
            " https://hooks.example.com/x",
            "https://hooks.example.com/x y",
            "https://ü.de",
        ),
        *("https://hooks.example.com:0/x", "https://:pw@hooks.example.com/x", "https://me@hooks.example.com/x", ""),
    ],
)
def test_a_url_that_cannot_be_asked_is_found_before_an_alert_is_due(url: str) -> None:
    for model, type_ in ((Slack, "slack"), (Webhook, "webhook")):
        with pytest.raises(ValidationError, match=r"found a character that no URL has|an https:// URL"):
            model(type=type_, url=url)


@pytest.mark.guarantee("Report and alerts")
def test_a_mail_server_is_a_host_alone_and_an_address_is_one() -> None:
    for host in (
        "",
        "smtp.example.com\n",
        " smtp.example.com",
        "smtp.example.com:587",
        "smtp://mail.example.com",
        "[::1]",
    ):
        with pytest.raises(ValidationError, match="the port goes into `port`"):
            Mail(**{**MAIL, "host": host})
    for host in ("smtp.example.com", "localhost", "10.0.0.7", "2001:db8::7"):
        assert Mail(**{**MAIL, "host": host}).host == host
    for address in (
        "ops:team@example.com",
        "b(c)@example.com",
        "[x]@example.com",
        'a"b@example.com',
        "a\\b@example.com",
    ):
        for place in ({"sender": address}, {"to": [address]}):
            with pytest.raises(ValidationError, match="a mail address"):
                Mail(**{**MAIL, **place})
    assert Mail(**{**MAIL, "to": ["first.last+tag@mail.example.com"]}).to


class _MailServer(socketserver.StreamRequestHandler):
    """Takes each message, and answers QUIT as its server was set to; empty: by closing; None: never.

    Attributes:
        heard: is set by QUIT.
    """

    goodbye: bytes | None = b""
    heard: threading.Event

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                while self.rfile.readline() != b".\r\n":
                    pass
            if word == b"QUIT":
                self.heard.set()
                if self.goodbye is None:
                    continue
                with suppress(ConnectionError):  # nobody waits for it
                    self.wfile.write(self.goodbye)
                return
            self.wfile.write(b"250 fine\r\n")


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("goodbye", [b"221 bye\r\n", b"421 too busy\r\n", b"no code\r\n", b"", None])
def test_a_mail_that_was_accepted_is_sent_however_the_server_says_goodbye(goodbye: bytes | None) -> None:
    heard = threading.Event()
    handler = type("Handler", (_MailServer,), {"goodbye": goodbye, "heard": heard})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            mail = Mail(**{**MAIL, "host": "127.0.0.1"}, port=server.server_address[1], security="none")
            began = time.monotonic()
            assert mail.send("prod: 1 failing", ["crm"], {}) == ""
            assert time.monotonic() - began < channels.TIMEOUT / 2, "the caller would take it for not sent"
            assert heard.wait(5)
        finally:
            server.shutdown()


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize(("syncs", "more"), [(2, None), (400, "s"), (38_000 // 152 + 1, "")])
def test_a_text_that_slack_would_cut_ends_behind_a_sync_and_says_how_many_more_there_are(
    syncs: int, more: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[str] = []
    monkeypatch.setattr(channels, "_post", lambda url, body, *_: posted.append(body["text"]))
    slack = Slack(type="slack", url="https://hooks.example.com/T0", link="https://ci.example.com/?a=1&b=2")  # type: ignore[arg-type]
    one = f"failing: {'&' * 25}\n  {'x' * 14}"
    slack.send(f"{syncs} failing", [one] * syncs, {})
    subject, *lines, link = posted[0].split("\n")
    assert len(posted[0]) < 40_000
    assert (subject, link) == (f"{syncs} failing", "https://ci.example.com/?a=1&amp;b=2")
    rest = lines.pop() if more is not None else ""
    shown = len(lines) // 2
    assert lines == [f"failing: {'&amp;' * 25}", f"  {'x' * 14}"] * shown
    assert rest == ("" if more is None else f"and {syncs - shown} more sync{more}: `dbt-reverse-etl status`")
