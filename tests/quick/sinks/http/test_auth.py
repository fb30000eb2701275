"""Credentials of the http sink against real sockets: OAuth 2.0, signatures, API keys in queries, mutual TLS."""

from __future__ import annotations

import base64
import logging
import os
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from standardwebhooks import Webhook, WebhookVerificationError

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.base.redaction import MASK, redact
from dbt_reverse_etl.config.destinations import register_values
from dbt_reverse_etl.sinks.http.answer import Answer, Failure
from dbt_reverse_etl.sinks.http.auth import Tokens, signature
from dbt_reverse_etl.sinks.http.settings import HttpSettings, OAuth2
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.testing import batch_of, person
from tests.support.effort import scaled
from tests.support.outcomes import DELIVERED, FATAL, RETRYABLE, UNKNOWN
from tests.support.servers.http import HttpServer, Received, Reply, free_port, http_server, json_reply
from tests.support.sinks.http_sending import BATCH, CANARY, inserts, one, send, sending, settings_of, task_of


class TokenServer:
    """Gives tokens t1, t2, ...; the destination accepts those that were not revoked."""

    def __init__(self, expires_in: Any = 3600) -> None:
        self.given = 0
        self.revoked: set[str] = set()
        self.expires_in = expires_in
        self._lock = threading.Lock()

    def __call__(self, request: Received) -> Reply:
        with self._lock:
            if request.path == "/oauth/token":
                self.given += 1
                token = f"{CANARY}-t{self.given}"
                return json_reply({"access_token": token, "token_type": "Bearer", "expires_in": self.expires_in})
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            return Reply(200 if token.startswith(CANARY) and token not in self.revoked else 401)


def oauth(url: str, **more: Any) -> dict[str, Any]:
    auth = {"type": "oauth2", "token_url": url + "/oauth/token", "client_id": "me & you", "client_secret": "s:ec/ret"}
    return {**auth, **more}


class TestOAuth2:
    def test_a_token_is_asked_for_once_and_used_for_every_request(self, server: HttpServer) -> None:
        server.default = tokens = TokenServer()
        auth = oauth(server.url, scope="a b", parameters={"audience": "crm"})
        assert send(server.url, task_of(), *inserts(*range(5)), auth=auth).results == ()
        asked, *sent = server.received
        assert tokens.given == 1
        assert (asked.method, asked.path) == ("POST", "/oauth/token")
        form = parse_qs(asked.body.decode(), strict_parsing=True)
        assert form == {"grant_type": ["client_credentials"], "scope": ["a b"], "audience": ["crm"]}
        basic = base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")).decode()
        assert basic == "me+%26+you:s%3Aec%2Fret"
        assert {request.headers["authorization"] for request in sent} == {f"Bearer {CANARY}-t1"}

    def test_the_client_may_prove_itself_in_the_form(self, server: HttpServer) -> None:
        server.default = TokenServer()
        assert one(server.url, auth=oauth(server.url, client_auth="form"))[0] is DELIVERED
        asked = server.received[0]
        form = parse_qs(asked.body.decode())
        assert (form["client_id"], form["client_secret"]) == (["me & you"], ["s:ec/ret"])
        assert "authorization" not in asked.headers

    def test_a_parameter_that_is_called_a_secret_is_in_no_text_and_an_audience_is(self) -> None:
        parameters = {"password": f"{CANARY}-form", "audience": "https://crm.example.com"}
        register_values({"auth": oauth("https://login.example.com", parameters=parameters)}, [], HttpSettings)
        assert redact(f"{CANARY}-form to https://crm.example.com") == "*** to https://crm.example.com"

    def test_a_token_that_was_revoked_is_renewed_once_and_the_row_is_delivered(self, server: HttpServer) -> None:
        server.default = tokens = TokenServer()
        tokens.revoked.add(f"{CANARY}-t1")
        assert one(server.url, auth=oauth(server.url))[0] is DELIVERED
        assert [request.path for request in server.received] == [
            "/oauth/token", "/contacts/1", "/oauth/token", "/contacts/1",
        ]  # fmt: skip

    @pytest.mark.guarantee("HTTP")
    def test_a_destination_that_refuses_every_token_is_fatal_after_the_third_new_one(self, server: HttpServer) -> None:
        server.default = tokens = TokenServer()
        tokens.revoked |= {f"{CANARY}-t{number}" for number in range(9)}
        assert _sent(server, *[1] * 4) == [(RETRYABLE, "HTTP 401 to a new token")] * 3 + [(FATAL, "HTTP 401")]
        assert tokens.given == 5

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        ("between", "last"), [*((status, RETRYABLE) for status in (200, 404, 409, 422)), (429, FATAL), (503, FATAL)]
    )
    def test_only_an_answer_about_the_row_ends_the_count_of_refused_tokens(
        self, between: int, last: Outcome, server: HttpServer
    ) -> None:
        asked = (json_reply({"access_token": f"{CANARY}-t{number}"}) for number in range(9))
        refusals = [reply for _ in range(3) for reply in (Reply(401), next(asked), Reply(401))]
        server.script(next(asked), *refusals, Reply(between), Reply(401), next(asked), Reply(401))
        assert _sent(server, *range(5))[-1][0] is last

    @pytest.mark.guarantee("HTTP")
    def test_a_refused_token_that_threads_share_counts_once(
        self, server: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.default = tokens = TokenServer()
        tokens.revoked |= {f"{CANARY}-t{number}" for number in range(3)}
        with sending(server.url, task_of(), auth=oauth(server.url)) as sink:
            monkeypatch.setattr(Tokens, "get", lambda _self, refused=None: f"{CANARY}-t{2 if refused else 1}")
            found = [
                result.outcome for n in range(8) for result in sink.deliver(batch_of(task_of(), inserts(n))).results
            ]
        assert found == [RETRYABLE] * 8

    @pytest.mark.guarantee("HTTP")
    def test_where_only_the_newest_token_lives_a_sender_that_another_one_overtook_comes_back(
        self, server: HttpServer
    ) -> None:
        server.default = tokens = TokenServer()
        with sending(server.url, task_of(), auth=oauth(server.url)) as sink:
            assert sink.deliver(batch_of(task_of(), inserts(1))).results == ()
            tokens.revoked |= {f"{CANARY}-t{number}" for number in range(3)}
            (late,) = sink.deliver(batch_of(task_of(), inserts(2))).results
            assert (late.outcome, late.reason) == (RETRYABLE, "HTTP 401 to a new token")
            assert sink.deliver(batch_of(task_of(), inserts(2))).results == ()

    @pytest.mark.guarantee("HTTP")
    def test_a_second_401_is_fatal_where_the_issuer_gives_the_refused_token_again(self, server: HttpServer) -> None:
        given = json_reply({"access_token": "the-same-token"})
        server.script(given, Reply(200), Reply(401), given, Reply(401))
        with sending(server.url, task_of(), auth=oauth(server.url)) as sink:
            assert sink.deliver(batch_of(task_of(), inserts(1))).results == ()
            (refused,) = sink.deliver(batch_of(task_of(), inserts(2))).results
        assert (refused.outcome, refused.reason) == (FATAL, "HTTP 401")

    @pytest.mark.parametrize("life", [0, -1, "0"])
    def test_a_token_without_a_life_is_not_asked_for_before_each_request(self, life: Any, server: HttpServer) -> None:
        server.default = tokens = TokenServer(expires_in=life)
        assert send(server.url, task_of(), *inserts(*range(5)), auth=oauth(server.url)).results == ()
        assert tokens.given == 1

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize("kept", [None, "", CANARY])
    def test_a_refresh_token_that_stays_is_sent_each_time(self, kept: str | None, server: HttpServer) -> None:
        given = json_reply({"access_token": "t", "refresh_token": kept})
        server.script(given, Reply(401), given)
        parameters = {"grant_type": "refresh_token", "refresh_token": CANARY}
        assert one(server.url, auth=oauth(server.url, parameters=parameters))[0] is DELIVERED
        forms = [parse_qs(asked.body.decode()) for asked in server.received if asked.path == "/oauth/token"]
        assert forms == [{"grant_type": ["refresh_token"], "refresh_token": [CANARY]}] * 2

    @pytest.mark.guarantee("HTTP")
    def test_a_refresh_token_that_an_answer_replaces_stops_the_sync_with_what_keeps_it(
        self, server: HttpServer
    ) -> None:
        server.script(json_reply({"access_token": "t", "refresh_token": f"{CANARY}-2"}))
        parameters = {"grant_type": "refresh_token", "refresh_token": CANARY}
        outcome, reason = one(server.url, auth=oauth(server.url, parameters=parameters))
        assert (outcome, len(server.received)) == (FATAL, 1)
        assert "type: python" in reason
        assert CANARY not in reason

    def test_a_refresh_token_that_nobody_asked_for_is_ignored(self, server: HttpServer) -> None:
        server.script(json_reply({"access_token": "t", "refresh_token": CANARY}))
        assert one(server.url, auth=oauth(server.url))[0] is DELIVERED

    @pytest.mark.guarantee("Secrets and row values")
    def test_a_live_token_is_in_no_text_however_many_others_the_process_renews(self) -> None:
        def post(_headers: Any, _form: bytes) -> Answer:
            return Answer(200, body=json_reply({"access_token": f"{CANARY}-{next(numbers)}"}).body)

        numbers = iter(range(9999))
        first, other = Tokens(_settings(), post), Tokens(_settings(), post)
        live = first.get()
        for _ in range(99):
            other.get(refused=str(other.get()))
        assert redact(str(live)) == MASK

    @pytest.mark.guarantee("HTTP")
    def test_threads_that_meet_a_revoked_token_renew_it_once(self, server: HttpServer) -> None:
        server.default = tokens = TokenServer()
        task = task_of()
        auth = oauth(server.url)
        with sending(server.url, task, auth=auth, concurrency=8) as sink, ThreadPoolExecutor(8) as pool:
            first = list(pool.map(lambda n: sink.deliver(batch_of(task, inserts(n))).results, range(8)))
            tokens.revoked.add(f"{CANARY}-t1")
            second = list(pool.map(lambda n: sink.deliver(batch_of(task, inserts(n))).results, range(8)))
        assert (first, second) == ([()] * 8, [()] * 8)
        assert tokens.given == 2

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        ("reply", "outcome", "reason"),
        [
            (
                json_reply({"error": "invalid_client", "error_description": CANARY}, 401),
                FATAL,
                "HTTP 401, code invalid_client",
            ),
            (json_reply({"error": "invalid_scope"}, 400), FATAL, "HTTP 400, code invalid_scope"),
            (Reply(302, headers={"Location": "/elsewhere"}), FATAL, "HTTP 302"),
            (Reply(500), RETRYABLE, "HTTP 500"),
            (Reply(503), RETRYABLE, "HTTP 503"),
            (Reply(429), RETRYABLE, "HTTP 429"),
            (Reply(reset="after"), RETRYABLE, "the connection ended without an answer"),
            (Reply(delay=30), RETRYABLE, "no answer in time"),
            (Reply(200, b"{}"), FATAL, "HTTP 200, but no bearer token"),
            (Reply(200, b"<html>"), FATAL, "HTTP 200, but no bearer token"),
            (json_reply({"access_token": "a\r\nX: y"}), FATAL, "HTTP 200, but no bearer token"),
            (json_reply({"access_token": "a", "token_type": "mac"}), FATAL, "HTTP 200, but no bearer token"),
        ],
    )
    def test_without_a_token_nothing_is_sent(
        self, reply: Reply, outcome: Outcome, reason: str, server: HttpServer
    ) -> None:
        server.script(reply)
        auth = oauth(server.url)
        assert one(server.url, auth=auth, timeout={"read": 0.3}) == (outcome, f"the token endpoint: {reason}")
        assert [request.path for request in server.received] == ["/oauth/token"]

    @pytest.mark.parametrize("status", [200, 201])
    @pytest.mark.parametrize("kind", [{"token_type": kind} for kind in ("bearer", "BearerToken", None, "")] + [{}])
    def test_a_bearer_token_has_many_names_or_none(self, kind: dict[str, Any], status: int, server: HttpServer) -> None:
        server.script(json_reply({"access_token": "t", **kind}, status))
        assert one(server.url, auth=oauth(server.url))[0] is DELIVERED
        assert server.received[1].headers["authorization"] == "Bearer t"

    def test_a_token_endpoint_that_is_down_is_retryable_and_its_retry_after_is_handed_on(
        self, server: HttpServer
    ) -> None:
        down = f"http://127.0.0.1:{free_port()}"
        assert one(server.url, auth=oauth(down)) == (RETRYABLE, "the token endpoint: no connection")
        server.script(Reply(503, headers={"Retry-After": "17"}))
        assert send(server.url, task_of(), *inserts(1), auth=oauth(server.url)).retry_after == 17

    def test_threads_that_wait_for_a_failing_endpoint_share_its_failure(self) -> None:
        queue, asked = _CountingLock(), []

        def post(_headers: Any, _form: bytes) -> Failure:
            asked.append(1)
            assert queue.all_wait.wait(30)
            return Failure(UNKNOWN, "no answer in time")

        tokens = Tokens(_settings(), post)
        tokens._lock = queue  # type: ignore[assignment]
        with ThreadPoolExecutor(4) as pool:
            found = set(pool.map(lambda _number: tokens.get(), range(4)))
        assert found == {Failure(RETRYABLE, "the token endpoint: no answer in time")}
        assert len(asked) == 1

    @settings(max_examples=scaled(200), deadline=None)
    @given(
        st.lists(st.tuples(st.floats(0, 5000), st.booleans()), max_size=30),
        st.one_of(st.integers(1, 4000), st.just("3600"), st.none(), st.just("junk"), st.just([])),
    )
    def test_no_token_is_used_at_or_after_its_expiry_and_none_is_asked_for_needlessly(
        self, steps: list[tuple[float, bool]], expires_in: Any
    ) -> None:
        now, born = 0.0, dict[str, float]()

        def post(_headers: Any, _form: bytes) -> Answer:
            token = f"token-{len(born)}"
            born[token] = now
            body = json_reply({"access_token": token, "expires_in": expires_in}).body
            return Answer(200, body=body)

        tokens = Tokens(_settings(), post, lambda: now)
        life = {None: 300, "3600": 3600, "junk": 300}.get(
            expires_in if not isinstance(expires_in, list) else None, expires_in
        )
        token = tokens.get()
        assert isinstance(token, str)
        for wait, revoked in steps:
            before = token
            now += wait
            refused = before if revoked else None
            token = tokens.get(refused)
            assert isinstance(token, str)
            assert now - born[token] < life
            assert token != refused
            if not revoked and now - born[before] < life * 0.9 - 60:
                assert token == before

    def test_token_and_secret_are_in_no_text(self, server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        server.default = tokens = TokenServer()
        tokens.revoked |= {f"{CANARY}-t{number}" for number in range(9)}
        sink = HttpSink(settings_of(server.url, auth=oauth(server.url, client_secret=CANARY)))
        sink.open(task_of())
        delivery = sink.deliver(batch_of(task_of(), inserts(1)))
        assert CANARY not in repr((delivery, sink, sink._settings)) + caplog.text
        assert redact(f"{CANARY}-t1") == MASK

    @pytest.mark.parametrize(
        "changes",
        [
            {"token_url": "http://login.example.com/token"},
            {"token_url": "https://user:pw@login.example.com/token"},
            {"token_url": "http://169.254.169.254/token"},
            {"client_id": ""},
            {"client_auth": "none"},
        ],
    )
    def test_an_unsafe_token_endpoint_is_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            settings_of("https://example.com", auth=oauth("https://login.example.com", **changes))


class _CountingLock:
    """Tells when four threads hold it or wait for it."""

    def __init__(self) -> None:
        self.all_wait = threading.Event()
        self._lock, self._count, self._counting = threading.Lock(), 0, threading.Lock()

    def __enter__(self) -> None:
        with self._counting:
            self._count += 1
            if self._count == 4:
                self.all_wait.set()
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


def _sent(server: HttpServer, *numbers: int) -> list[tuple[Outcome, str]]:
    """What became of one row after the other, by one sink."""
    with sending(server.url, task_of(), auth=oauth(server.url)) as sink:
        found = [(sink.deliver(batch_of(task_of(), inserts(number))).results or [None])[0] for number in numbers]
    return [(one.outcome, one.reason) if one else (DELIVERED, "") for one in found]


def _settings() -> OAuth2:
    return OAuth2.model_validate(oauth("https://login.example.com"))


class TestSignature:
    @pytest.mark.guarantee("HTTP")
    @settings(max_examples=scaled(100), deadline=None)
    @given(st.binary(min_size=24, max_size=64), st.text(st.characters(exclude_categories=["Cs"])))
    def test_an_independent_verifier_accepts_every_signature_and_no_altered_body(self, key: bytes, text: str) -> None:
        body = orjson.dumps(text)
        headers = signature(key, "e" * 64, int(time.time()), body)
        verifier = Webhook("whsec_" + base64.b64encode(key).decode())
        assert verifier.verify(body, headers) == text
        for altered, changed in ((body + b" ", headers), (body, headers | {"webhook-id": "f" * 64})):
            with pytest.raises(WebhookVerificationError):
                verifier.verify(altered, changed)

    def test_requests_are_signed_with_the_id_of_their_change(self, server: HttpServer) -> None:
        secret = "whsec_" + base64.b64encode(os.urandom(32)).decode()
        auth = {"type": "standard_webhooks", "secret": secret}
        send(server.url, task_of(), *inserts(1), ("delete", {"id": 2}), auth=auth)
        send(server.url, task_of(BATCH), *inserts(1, 2), auth=auth)
        assert len(server.received) == 3
        for request in server.received:
            assert request.headers["webhook-id"] == request.headers["idempotency-key"]
            if request.body:
                assert Webhook(secret).verify(request.body, dict(request.headers)) == request.json

    @pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", f"whsec_{CANARY}!", "whsec_" + "A" * 200])
    def test_a_secret_that_is_no_key_is_refused_without_its_text(self, secret: str) -> None:
        with pytest.raises(ValidationError) as caught:
            settings_of("https://example.com", auth={"type": "standard_webhooks", "secret": secret})
        assert CANARY not in str(caught.value)


class TestApiKeyInTheQuery:
    def test_it_joins_the_query_of_the_path_and_is_in_no_text(
        self, server: HttpServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        auth = {"type": "api_key", "query": "key", "value": f"{CANARY}&/ä"[:-1]}
        server.default = Reply(500)
        update = {"method": "PUT", "path": "c/{id}?by=id"}
        delivery = send(server.url, task_of({"update": update}), *inserts(1), ("update", person(2)), auth=auth)
        assert [request.path for request in server.received] == [
            f"/contacts/1?key={CANARY}%26%2F", f"/c/2?by=id&key={CANARY}%26%2F",
        ]  # fmt: skip
        assert CANARY not in repr(delivery) + caplog.text

    @pytest.mark.parametrize(
        ("url", "key"),
        [
            ("http://example.com", {"query": "key"}),
            ("https://example.com", {}),
            ("https://example.com", {"query": "key", "header": "X-Key"}),
            ("https://example.com", {"query": "a=b&c"}),
        ],
    )
    def test_a_key_without_one_safe_place_is_refused(self, url: str, key: dict[str, str]) -> None:
        with pytest.raises(ValidationError) as caught:
            settings_of(url, auth={"type": "api_key", "value": CANARY, **key})
        assert CANARY not in str(caught.value)


class TestMutualTls:
    @pytest.fixture(scope="class")
    @staticmethod
    def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
        """PEM files: `ca`, `known` (a client of that CA, its key once more encrypted), `stranger` (of another CA)."""
        home = tmp_path_factory.mktemp("mtls")
        ca, other = trustme.CA(), trustme.CA()
        ca.cert_pem.write_to_path(str(home / "ca"))
        for name, issuer in (("server", ca), ("known", ca), ("stranger", other)):
            cert = issuer.issue_cert("127.0.0.1")
            cert.cert_chain_pems[0].write_to_path(str(home / f"{name}.pem"))
            cert.private_key_pem.write_to_path(str(home / f"{name}.key"))
        key = serialization.load_pem_private_key((home / "known.key").read_bytes(), None)
        encrypted = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pw")
        )
        (home / "encrypted.key").write_bytes(encrypted)
        return {path.name: path for path in home.iterdir()}

    @pytest.fixture
    def tls(self, files: dict[str, Path]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files["server.pem"], files["server.key"])
        context.load_verify_locations(files["ca"])
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def of(self, files: dict[str, Path], cert: str, key: str, **more: str) -> dict[str, Any]:
        return {"cert": str(files[cert]), "key": str(files[key]), **more}

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_a_client_that_the_server_knows_delivers_and_any_other_does_not(
        self, version: ssl.TLSVersion, files: dict[str, Path], tls: ssl.SSLContext
    ) -> None:
        tls.minimum_version = tls.maximum_version = version
        with http_server(tls=tls) as server:
            common: dict[str, Any] = {"verify": str(files["ca"])}
            known = self.of(files, "known.pem", "known.key")
            assert one(server.url, client_certificate=known, **common)[0] is DELIVERED
            encrypted = self.of(files, "known.pem", "encrypted.key", password="pw")
            assert one(server.url, client_certificate=encrypted, **common)[0] is DELIVERED
            stranger = self.of(files, "stranger.pem", "stranger.key")
            assert one(server.url, client_certificate=stranger, **common)[0] is not DELIVERED
            assert one(server.url, **common)[0] is not DELIVERED
            assert len(server.received) == 2

    @pytest.mark.parametrize(
        ("cert", "key", "more"),
        [
            ("known.pem", "stranger.key", {}),
            ("known.pem", "known.pem", {}),
            ("known.pem", "encrypted.key", {}),
            ("known.pem", "encrypted.key", {"password": CANARY}),
        ],
    )
    def test_a_certificate_that_cannot_be_used_is_said_before_anything_is_sent(
        self, cert: str, key: str, more: dict[str, str], files: dict[str, Path], server: HttpServer
    ) -> None:
        sink = HttpSink(settings_of(server.url, client_certificate=self.of(files, cert, key, **more)))
        for step in (sink.check, lambda: sink.open(task_of())):
            with pytest.raises(DestinationError, match="client certificate") as caught:
                step()
            assert CANARY not in str(caught.value)
        assert server.connections == 0


def test_the_settings_show_no_secret_of_any_kind_of_auth() -> None:
    for auth in (oauth("https://login.example.com", client_secret=CANARY), {"type": "bearer", "token": CANARY}):
        assert CANARY not in repr(HttpSettings.model_validate({"url": "https://example.com", "auth": auth}))
