"""TLS with a user's own authority, whose certificate lacks what newer versions of Python ask for, and the reason of a refusal."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dbt_reverse_etl.alerts.channels import Webhook
from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.sinks.sql.dialects.mysql.session import _tls
from dbt_reverse_etl.sinks.sql.settings import MysqlSettings
from tests.support.outcomes import DELIVERED, FATAL
from tests.support.servers.http import http_server
from tests.support.sinks.http_sending import one, settings_of


@pytest.fixture(autouse=True)
def _newest_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 verifies strictly by default."""
    default = ssl.create_default_context

    def strict(**more: Any) -> ssl.SSLContext:
        context = default(**more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In-house: its basic constraints are not critical. `server.pem` and `server.key` are of 127.0.0.1."""
    home = tmp_path_factory.mktemp("authority")
    (home / "ca.ext").write_text("basicConstraints=CA:TRUE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid")
    (home / "server.ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid")
    new = "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={0} -keyout {0}.key -out {0}.req"
    for command in (
        new.format("ca"), new.format("server"),
        "x509 -req -in ca.req -signkey ca.key -days 2 -extfile ca.ext -out ca.pem",
        "x509 -req -in server.req -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext -out server.pem",
    ):  # fmt: skip
        subprocess.run(["openssl", *command.split()], cwd=home, check=True, capture_output=True)
    return home


@pytest.fixture
def server_tls(authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    return context


def test_an_in_house_authority_that_its_user_names_is_trusted(authority: Path, server_tls: ssl.SSLContext) -> None:
    with http_server(tls=server_tls) as server:
        assert one(server.url, verify=str(authority / "ca.pem"))[0] is DELIVERED


def test_a_refused_certificate_is_refused_with_the_reason(authority: Path, server_tls: ssl.SSLContext) -> None:
    with http_server(tls=server_tls) as server:
        for url, verify, reason in (
            (server.url, True, "unable to get local issuer certificate"),
            (server.url.replace("127.0.0.1", "localhost"), str(authority / "ca.pem"), "Hostname mismatch, certificate is not valid for 'localhost'"),
        ):  # fmt: skip
            outcome, text = one(url, verify=verify)
            assert (outcome, text) == (
                FATAL, f"the TLS certificate of the destination was not accepted: {reason}",
            )  # fmt: skip
            with pytest.raises(DestinationError, match=reason):
                HttpSink(settings_of(url, verify=verify)).check()
        assert not server.received


def test_only_an_authority_of_ones_own_is_verified_less_strictly(authority: Path) -> None:
    ca = str(authority / "ca.pem")
    mysql = {"host": "db.example.com", "user": "u", "database": "d", "ssl_mode": "verify_identity"}
    webhook = {"type": "webhook", "url": "https://example.com"}
    for own, usual in (
        (_tls(MysqlSettings.model_validate({**mysql, "ssl_ca": ca}))["ssl"], _tls(MysqlSettings.model_validate(mysql))["ssl"]),
        (Webhook.model_validate({**webhook, "ca_file": ca})._tls(), Webhook.model_validate(webhook)._tls()),
    ):  # fmt: skip
        assert not own.verify_flags & ssl.VERIFY_X509_STRICT
        assert usual.verify_flags & ssl.VERIFY_X509_STRICT
