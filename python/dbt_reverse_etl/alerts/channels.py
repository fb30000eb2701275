"""Where alerts go: `dbt_reverse_etl: alerts:` in profiles.yml, and the requests that carry a message there."""

from __future__ import annotations

import re
import smtplib
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timezone
from email.message import EmailMessage
from email.utils import make_msgid
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.base.tls import lenient
from dbt_reverse_etl.base.untraced import untraced
from dbt_reverse_etl.config.destinations import hides_of, register_values
from dbt_reverse_etl.config.profiles import BLOCK, read_alerts
from dbt_reverse_etl.config.rendering import render_lazily
from dbt_reverse_etl.config.validation import Place, described, mapping_of, secret_names, validate
from dbt_reverse_etl.sinks.base import Settings
from dbt_reverse_etl.sinks.hosts import is_loopback, is_metadata_host, leaves_unencrypted, parts_of
from dbt_reverse_etl.sinks.http.answer import Answer, Failure, loaded, shows_page
from dbt_reverse_etl.sinks.http.json_path import find
from dbt_reverse_etl.sinks.http.settings import SecretHeader
from dbt_reverse_etl.sinks.lines import OneLine, SecretLine
from dbt_reverse_etl.sinks.paths import ProjectFile

TIMEOUT = 10.0  # seconds for one message: a push must not wait for its messenger
_CONNECT = 3.0  # of them, for a connection of HTTP
_TLS_PORT = 465  # where a mail server speaks TLS from the first byte, and waits for ours
# Slack cuts a text behind 40 000 characters without an error. The rest is for subject and link.
# https://api.slack.com/changelog/2018-04-truncating-really-long-messages
_LONGEST = 38_000
# Without what a header reads as more than one address, as a comment or as a group.
_ADDRESS = re.compile(r'[^\s@<>,;:()\[\]\\"]+@(?:[^\s@<>,;:()\[\]\\"]+|\[[0-9A-Za-z.:]+\])')
_Login = TypeVar("_Login", str, SecretStr)


def _safe_url(url: SecretStr) -> SecretStr:
    """https, or http to this machine; its text may hold a secret and is never quoted."""
    text = url.get_secret_value()
    if not re.fullmatch(r"[\x21-\x7e]*", text):
        raise ValueError(
            "found a character that no URL has; expected printable ASCII without blanks; "
            "next: look for a blank or a line break in url, or at the end of its variable; percent-encode other letters"
        )
    parts = parts_of(text)
    if parts is None or "@" in parts.netloc or is_metadata_host(parts.hostname or ""):
        raise ValueError("an https:// URL, without a login, of a public or an internal host")
    if leaves_unencrypted(parts):
        raise ValueError("https: http is for this machine only")
    return url


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError("a mail address, as growth@example.com")
    return text


def _host(text: str) -> str:
    if not text or text.count(":") == 1 or re.search(r"[\s/\[\]]", text):  # two colons or more: IPv6
        raise ValueError(
            "found a text that is no host name; expected one alone, as smtp.example.com; "
            "next: remove what else is there, as a line break; the port goes into `port`"
        )
    return text


def _ascii(value: _Login) -> _Login:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not text.isascii():
        raise ValueError(
            "found a character that is not ASCII; expected ASCII alone, for Python's mail client sends no other login; "
            "next: take another login"
        )
    return value


Url = Annotated[SecretStr, AfterValidator(_safe_url)]
Address = Annotated[str, AfterValidator(_address)]
Host = Annotated[str, AfterValidator(_host)]


class _Channel(Settings):
    """What every channel has. Its `send` returns what the console shall add, and raises if the message was not taken.

    Attributes:
        targets: dbt targets whose pushes alert; all of them by default.
        link: put into each message, as the address of the report.
        ca_file: a CA beside those of the system.
    """

    targets: list[str] | None = None
    link: str = ""
    ca_file: ProjectFile | None = None

    @field_validator("token", "user", "password", mode="before", check_fields=False)
    @classmethod
    def _is_set(cls, login: object) -> object:
        """None for a variable that is empty, or not set, with the default ''."""
        return None if login == "" else login

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self.ca_file:
            context.load_verify_locations(self.ca_file)
            lenient(context)
        return context


class Webhook(_Channel):
    """POSTs JSON to an address of yours; `token` is sent as `Authorization: Bearer`."""

    type: Literal["webhook"]
    url: Url
    token: SecretHeader | None = None

    def send(self, subject: str, texts: Sequence[str], data: Mapping[str, Any]) -> str:  # noqa: ARG002  (data has all of it)
        """One request."""
        token = {"Authorization": f"Bearer {self.token.get_secret_value()}"} if self.token else {}
        _post(self.url, {**data, "link": self.link}, token, self._tls())
        return ""


class Slack(_Channel):
    """An incoming webhook of Slack, or of a chat that takes the same form."""

    type: Literal["slack"]
    url: Url

    def send(self, subject: str, texts: Sequence[str], data: Mapping[str, Any]) -> str:  # noqa: ARG002  (it takes texts)
        """One request."""
        escaped = [escape(text, quote=False) for text in (*texts, self.link)]  # as Slack takes what is no markup
        lines = [subject, *_fitting(escaped[:-1], _LONGEST), escaped[-1]]
        _post(self.url, {"text": "\n".join(filter(None, lines))}, {}, self._tls())
        return ""


def _fitting(texts: Sequence[str], most: int) -> list[str]:
    """The first texts with so many characters together, and how many more there are."""
    count = sum(total <= most for total in accumulate(len(text) + 1 for text in texts))
    rest = len(texts) - count
    more = f"and {rest} more sync{'s' if rest > 1 else ''}: `dbt-reverse-etl status`"
    return [*texts[:count], *([more] if rest else [])]


class Mail(_Channel):
    """A message over SMTP, by default with STARTTLS; without TLS to this machine only."""

    type: Literal["email"]
    host: Host
    port: int = Field(default=587, ge=1, le=65535)
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: Annotated[OneLine, AfterValidator(_ascii)] | None = None
    password: Annotated[SecretLine, AfterValidator(_ascii)] | None = None
    sender: Address
    to: list[Address] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_safe(self) -> Mail:
        if self.security == "none" and not is_loopback(self.host):
            raise ValueError("security: starttls or tls: a mail server elsewhere is spoken to over TLS only")
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password together, or none of them")
        if self.security == "starttls" and self.port == _TLS_PORT:
            raise ValueError(f"security: tls, for port {_TLS_PORT} has no STARTTLS; or port: 587")
        return self

    def send(self, subject: str, texts: Sequence[str], data: Mapping[str, Any]) -> str:  # noqa: ARG002  (it takes texts)
        """One message."""
        message = EmailMessage()
        message["Subject"], message["From"], message["To"] = subject, self.sender, ", ".join(self.to)
        message["Date"] = datetime.now(timezone.utc)
        message["Message-ID"] = make_msgid(domain=self.sender.rpartition("@")[2])
        message.set_content("\n\n".join(filter(None, ("\n".join(texts), self.link))))
        with closing(self._connected()) as server:
            if self.security == "starttls":
                server.starttls(context=self._tls())
            if self.user is not None and self.password is not None:
                server.login(self.user, self.password.get_secret_value())
            refused = server.send_message(message)
            with suppress(smtplib.SMTPException, OSError):  # the message is accepted: no need to wait for a goodbye
                server.putcmd("quit")
        return f"the server refused {len(refused)} of {len(self.to)} recipients: correct `to`" if refused else ""

    def _connected(self) -> smtplib.SMTP:
        if self.security == "tls":
            return smtplib.SMTP_SSL(self.host, self.port, timeout=TIMEOUT, context=self._tls())
        return smtplib.SMTP(self.host, self.port, timeout=TIMEOUT)


Channel = Webhook | Slack | Mail
_MODELS: dict[str, type[Channel]] = {"webhook": Webhook, "slack": Slack, "email": Mail}


def collect_channels(  # noqa: PLR0913, PLR0917  (as _channel)
    directories: Sequence[Path],
    target: str,
    env: Mapping[str, str],
    problems: list[Problem],
    unset: list[Problem],
    project_dir: Path | None = None,
) -> dict[int, Channel]:
    """The channels of one dbt target, by their place in the file; what is wrong with them is appended to `problems`, variables that are not set to `unset`."""
    file, written, targets = read_alerts(directories)
    place = Place(file, (BLOCK, "alerts"), project_dir=project_dir)
    if not isinstance(written, list):
        problems.append(Problem(place.at(), described(written), "a list of channels", "begin each with `- type:`"))
        return {}
    problems.extend(_unknown_targets(written, targets, place))
    found = (_channel(block, str(index), target, env, place, problems, unset) for index, block in enumerate(written))
    return {index: channel for index, channel in enumerate(found) if channel}


def _channel(  # noqa: PLR0913, PLR0917  (each is a fact of the surroundings)
    block: object,
    index: str,
    target: str,
    env: Mapping[str, str],
    alerts: Place,
    problems: list[Problem],
    unset: list[Problem],
) -> Channel | None:
    place = replace(alerts, keys=(*alerts.keys, index))
    given = mapping_of(block, place.at(), "a mapping with `type`", problems)
    if given is None or (isinstance(given.get("targets"), list) and target not in given["targets"]):
        return None  # one of another target is left alone: its variables need not be set here
    model = _MODELS.get(str(given.get("type")))
    if model is None:
        found = described(given.get("type"))
        problems.append(Problem(place.at("type"), found, f"one of {', '.join(_MODELS)}", "correct it"))
        return None
    rendered = render_lazily(given, env, place)
    problems.extend(rendered.problems)
    unset.extend(rendered.unset.values())
    if rendered.problems or rendered.unset:
        return None
    secret = secret_names(model)
    register_values(rendered.value, rendered.used, model)
    hides = hides_of(secret, {path for path, _, _ in rendered.used})
    return validate(model, rendered.value, replace(place, hides=hides), problems)


def _unknown_targets(channels: list[object], known: frozenset[str], place: Place) -> list[Problem]:
    """A channel that no target has would be silent for good."""
    asked = enumerate(block.get("targets") if isinstance(block, Mapping) else None for block in channels)
    return [
        Problem(
            place.at(str(index), "targets"),
            "a target without destinations" if targets else "an empty list",
            f"some of `outputs`: {', '.join(sorted(known)) or 'none'}",
            "correct it, or leave it out for all targets",
        )
        for index, targets in asked
        if isinstance(targets, list) and not (targets and known.issuperset(map(str, targets)))
    ]


def _post(url: SecretStr, body: Mapping[str, Any], headers: Mapping[str, str], tls: ssl.SSLContext) -> None:
    from dbt_reverse_etl.sinks.http.transport import Client

    client = Client(_CONNECT, TIMEOUT - _CONNECT, tls)
    headers = {"Content-Type": "application/json", **headers}
    with untraced():
        answer = client.send("POST", url.get_secret_value(), headers, orjson.dumps(body))
    client.close()
    if found := _refusal(answer):
        raise ReverseEtlError(Problem("the address", found, "200 to 299, and no refusal", "check url in profiles.yml"))


def _refusal(answer: Answer | Failure) -> str:
    """Why an address did not take a message; empty if it did."""
    if isinstance(answer, Failure):
        return answer.reason
    if not 200 <= answer.status < 300:
        return f"the answer {answer.status}"
    if shows_page(answer):
        return "a web page (a login or a proxy?)"
    return "an answer with ok: false" if find(loaded(answer), "ok") is False else ""
