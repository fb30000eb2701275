"""The http sink as the engine meets it: the contract of a sink, its settings and options, its limits, its check."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any

import orjson
import pyarrow as pa
import pytest
import yaml
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.redaction import MASK, redact
from dbt_reverse_etl.sinks.base import Limits, Mode, SinkTask
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.settings import HttpSettings
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.testing import ReadBack, SinkContract, Trouble
from dbt_reverse_etl.values.encoding import encode_values
from tests.support.config.loaded import load_destinations
from tests.support.effort import scaled
from tests.support.servers.http import HttpServer, Received, Reply, free_port, http_server, json_reply
from tests.support.sinks.http_sending import BATCH, CANARY, settings_of, task_of

OAUTH = {"type": "oauth2", "client_id": "c", "client_secret": CANARY}


class RestStore:
    """An endpoint that keeps resources: PUT and POST create, DELETE removes, PATCH changes what is there."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self._instead: Reply | None = None
        self._applies = True

    @contextmanager
    def answering(self, instead: Reply, *, applies: bool) -> Iterator[None]:
        """With another answer to each request, whether or not it applies it."""
        self._instead, self._applies = instead, applies
        yield
        self._instead, self._applies = None, True

    def __call__(self, request: Received) -> Reply:
        answer = self._apply(request) if self._applies else Reply()
        return self._instead or answer

    def _apply(self, request: Received) -> Reply:
        there = request.path in self.rows
        if request.method == "POST" and there:
            return json_reply({"code": "exists"}, 409)
        if request.method in ("PATCH", "DELETE") and not there:
            return json_reply({"code": "gone"}, 404)
        if request.method == "DELETE":
            del self.rows[request.path]
            return Reply(204)
        self.rows[request.path] = request.json
        return Reply(200 if there else 201)


class TestContract(SinkContract):
    sink_class = HttpSink
    histories = scaled(20)

    @pytest.fixture
    def store(self) -> RestStore:
        return RestStore()

    @pytest.fixture
    def settings(self, store: RestStore) -> Iterator[dict[str, Any]]:
        with http_server(store) as server:
            yield {"url": server.url + "/api", "auth": {"type": "bearer", "token": CANARY}, "concurrency": 4}

    @pytest.fixture
    def unreachable(self) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{free_port()}", "auth": {"type": "bearer", "token": CANARY}}

    @pytest.fixture
    def troubles(self, store: RestStore) -> dict[str, Trouble]:
        """Replies, and whether the destination has applied the request."""
        kinds = {
            "its answers are lost": (Reply(reset="after"), True),
            "its requests are lost": (Reply(reset="after"), False),
            "it fails after it": (Reply(500), True),
            "it has no time": (Reply(503), False),
            "it refuses": (Reply(422), False),
            "it lets nobody in": (Reply(401), False),
            "it shows a login page": (Reply(200, b"<html>", {"Content-Type": "text/html"}), False),
        }
        return {name: partial(store.answering, reply, applies=applies) for name, (reply, applies) in kinds.items()}

    @pytest.fixture
    def read_back(self, store: RestStore) -> ReadBack:
        return lambda task: [row for path, row in store.rows.items() if path.startswith(f"/api/{task.object}/")]

    def refine(self, task: SinkTask) -> SinkTask:
        path = task.object + "/{id}"
        options: dict[Mode, Any] = {
            Mode.INSERT_ONLY: {"insert": {"method": "POST", "path": path}},
            Mode.UPSERT: {"update": {"method": "PATCH", "path": path}},
        }
        return replace(task, options=HttpOptions.model_validate(options.get(task.mode, {})))

    def expected(self, field: pa.Field, value: Any) -> Any:
        return orjson.loads(encode_values(pa.array([value], field.type)).rows[0] or b"")


class TestSettings:
    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        "settings",
        [
            {"url": "http://example.com", "auth": {"type": "bearer", "token": CANARY}},
            {"url": "http://example.com", "headers": {"X-Token": CANARY}},
            {"url": "http://example.com"},
            {"url": "http://example.com", "client_certificate": {"cert": "c.pem", "key": "k.pem"}},
            {"url": "http://0x7f.1", "auth": {"type": "bearer", "token": CANARY}},
            {"url": "https://example.com", "verify": False, "auth": {"type": "bearer", "token": CANARY}},
            {"url": "https://example.com", "verify": ""},
            {"url": "https://127.0.0.1", "verify": " "},
            {"url": "https://127.0.0.1", "verify": False, "auth": {**OAUTH, "token_url": "https://example.com/token"}},
            {"url": "https://example.com", "verify": False, "auth": {**OAUTH, "token_url": "https://127.0.0.1/token"}},
            {"url": f"https://u:{CANARY}@example.com"},
            {"url": f"https://u:p[{CANARY}]ss@example.com"},
            {"url": f"https://u:{CANARY}\u2100@example.com"},
            {"url": "https://127.0.0.1", "auth": {**OAUTH, "token_url": f"https://u:{CANARY}\u2100@example.com"}},
            {"url": f"https://example.com?token={CANARY}"},
            {"url": "http://169.254.169.254/latest"},
            {"url": "http://[::ffff:169.254.169.254]/latest"},
            {"url": "http://2852039166/latest"},
            {"url": "http://0xa9fea9fe/latest"},
            {"url": "http://169.254.43518/latest"},
            {"url": "http://0251.0376.0251.0376/latest"},
            {"url": "ftp://example.com"},
            {"url": "https://"},
            {"url": "https://example.com:0"},
            {"url": "https://example.com:99999"},
            {"url": "https://example.com/a/../b"},
            {"url": "https://example.com/{id}"},
            {"url": "https://example.com\r\nX: y"},
            {"url": "https://example.com", "auth": {"type": "bearer", "token": CANARY + "\n"}},
            {"url": "https://example.com", "headers": {"X": CANARY + "\r\nY: z"}},
            {"url": "https://example.com", "headers": {"Host": "other.example"}},
            {"url": "https://example.com", "headers": {"X Y": CANARY}},
            {"url": "https://example.com", "auth": {"type": "digest", "password": CANARY}},
            {"url": "https://example.com", "auth": {"type": "bearer", "token": CANARY, "more": CANARY}},
        ],
    )
    def test_unsafe_settings_are_refused_without_their_values(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ValidationError) as caught:
            HttpSettings.model_validate(settings)
        assert CANARY not in str(caught.value)
        assert CANARY not in repr(caught.value)

    def test_the_key_in_the_query_of_a_url_is_shown_its_place_which_is_no_file_of_dbt(self) -> None:
        with pytest.raises(
            ValidationError, match=r"a key of the query goes into auth: {type: api_key, query: NAME"
        ) as caught:
            settings_of(f"https://example.com/hook?sig={CANARY}")
        assert CANARY not in str(caught.value)
        auth = {"type": "api_key", "query": "sig", "value": CANARY}
        assert settings_of("https://example.com/hook", auth=auth).secret_headers() == {}

    def test_what_oauth2_sends_beside_its_login_is_not_shown(self) -> None:
        login = {**OAUTH, "token_url": "https://example.com/token", "parameters": {"password": CANARY}}
        assert CANARY not in repr(settings_of("https://example.com", auth=login))

    @pytest.mark.parametrize("url", [f"https://u:p[{CANARY}]ss@h", f"https://u:{CANARY}\u2100@h", "https://[::1", "x"])
    def test_a_url_that_cannot_be_read_is_said_as_one(self, url: str) -> None:
        with pytest.raises(ValidationError, match=r"found no usable url; expected https://.*; next: ") as caught:
            settings_of(url)
        assert CANARY not in "".join(format_exception(caught.value))

    def test_a_host_outside_ascii_is_refused_with_the_form_that_requests_have(self) -> None:
        with pytest.raises(ValidationError, match="expected its ASCII form"):
            settings_of("https://crm.münchen.de/api")

    def test_a_user_with_a_colon_would_be_another_one_with_another_password(self) -> None:
        with pytest.raises(ValidationError, match="found a user with a colon; expected") as caught:
            settings_of("https://a.example", auth={"type": "basic", "user": f"a:{CANARY}", "password": "b:c"})
        assert CANARY not in "".join(error["msg"] for error in caught.value.errors())

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize("value", ["", " "])
    def test_an_empty_ca_file_is_no_way_to_switch_verification_off(self, value: str) -> None:
        with pytest.raises(ValidationError, match=r"found an empty verify; expected true, or a CA file; next:"):
            settings_of("https://example.com", verify=value)

    def test_verification_may_be_off_where_every_host_is_this_machine(self) -> None:
        auth = {**OAUTH, "token_url": "https://localhost/token"}
        assert settings_of("https://127.0.0.1", verify=False, auth=auth).verify is False

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        "options",
        [
            {"success": {"status": [302]}},
            {"success": {"status": [400]}},
            {"success": {"status": []}},
            {"success": {"json": {"path": "a..b", "equals": 1}}},
            {"success": {"json": {"path": "a[x]", "equals": 1}}},
            {"results": {"by": "id", "ok": {"path": "a", "equals": 1}}},
            {"results": {"id": "id", "ok": {"path": "a", "equals": 1}}},
            {"results": {"missing": "delivered", "ok": {"path": "a", "equals": 1}}},
            {"insert": {"method": "GET", "path": "x"}},
            {"batch": {"rows": 0}},
            {"idempotency_header": "a b"},
        ],
    )
    def test_options_that_could_acknowledge_by_mistake_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            HttpOptions.model_validate(options)

    @pytest.mark.parametrize("end", ["{}\n", "\r\n{}", "{}\r"])
    @pytest.mark.parametrize(
        "auth",
        [
            {"type": "basic", "user": CANARY, "password": "x"},
            {"type": "basic", "user": "x", "password": CANARY},
            {"type": "oauth2", "token_url": "https://a.example", "client_id": "x", "client_secret": CANARY},
        ],
    )
    def test_a_login_with_a_line_break_at_an_end_is_refused_with_where_to_look(
        self, auth: dict[str, str], end: str
    ) -> None:
        settings_of("https://a.example", auth=auth)
        broken = {name: end.format(text) if text == CANARY else text for name, text in auth.items()}
        with pytest.raises(ValidationError, match="look for a line break at the end of the variable"):
            settings_of("https://a.example", auth=broken)

    def test_identity_names_the_destination_and_no_secret(self) -> None:
        def identity(url: str, **more: Any) -> str:
            return HttpSink(settings_of(url, **more)).identity

        secret = {"auth": {"type": "bearer", "token": CANARY}}
        assert identity("https://API.Example.com/v1/", **secret) == "https://api.example.com:443/v1"
        assert identity("http://[::1]:8080") == "http://[::1]:8080"
        assert identity("https://a.example", account="eu", **secret) == "https://a.example:443 of eu"
        assert identity("https://hooks.example/T0/secret", identity="sales channel") == "sales channel"
        assert identity("https://hooks.example/T0/other", identity="sales", account="eu") == "sales of eu"
        with pytest.raises(ValidationError):
            identity("https://a.example", account="")
        with pytest.raises(ValidationError):
            identity("https://a.example", identity="")

    def test_a_path_that_is_a_secret_itself_is_in_no_message(self) -> None:
        sink = HttpSink(settings_of(f"http://127.0.0.1:{free_port()}/services/T0/B0/{CANARY}"))
        with pytest.raises(DestinationError, match=r"destination http://127\.0\.0\.1:\d+: found") as caught:
            sink.check()
        assert CANARY not in str(caught.value)
        assert CANARY in sink.identity, "what was delivered there stays known as that"

    def test_a_url_from_a_secret_variable_is_masked_in_every_text(self, tmp_path: Path) -> None:
        url = f"https://hooks.example.com/services/T0/{CANARY}-hook"
        assert redact(url) == url
        block = {"type": "http", "url": "{{ env_var('DBT_ENV_SECRET_HOOK') }}"}
        (tmp_path / "profiles.yml").write_text(
            yaml.safe_dump({"dbt_reverse_etl": {"outputs": {"prod": {"crm": block}}}})
        )
        load_destinations([tmp_path], "prod", {"DBT_ENV_SECRET_HOOK": url})
        assert redact(f"found {url}") == f"found {MASK}"

    def test_importing_and_validating_without_the_client_names_the_extra(self) -> None:
        program = textwrap.dedent(
            """
            import sys
            sys.modules["requests"] = None
            from dbt_reverse_etl.base.errors import DestinationError
            from dbt_reverse_etl.sinks.http.sink import HttpSink
            from dbt_reverse_etl.sinks.http.settings import HttpSettings
            sink = HttpSink(HttpSettings(url="https://example.com"))
            try:
                sink.check()
            except DestinationError as error:
                print(error)
            """
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert "pip install 'dbt-reverse-etl[http]'" in run.stdout

    def test_limits_follow_the_options(self, server: HttpServer) -> None:
        sink = HttpSink(settings_of(server.url, concurrency=3, requests_per_second=5))
        assert sink.limits(task_of()) == Limits(rows=1, concurrency=3, requests_per_second=5)
        assert sink.limits(task_of(BATCH)).rows == 100


class TestCheck:
    def test_credentials_that_no_request_has_tried_are_said(self, server: HttpServer) -> None:
        auth = {"type": "bearer", "token": CANARY}
        assert "the credentials" in HttpSink(settings_of(server.url, auth=auth)).rights(task_of()).untried[0]
        tried = HttpSink(settings_of(server.url, auth=auth, check={"path": "/me"}))
        for sink in (tried, HttpSink(settings_of(server.url))):
            assert [one for one in sink.rights(task_of()).untried if "credentials" in one] == []
        assert server.received == []

    def test_check_connects_and_sends_nothing(self, server: HttpServer) -> None:
        HttpSink(settings_of(server.url)).check()
        server.wait_for_connections(1)
        assert server.received == []

    @pytest.mark.parametrize(("scheme", "says"), [("http", "start its server"), ("https", "name its CA in verify")])
    def test_check_speaks_of_a_ca_only_where_there_is_tls(self, scheme: str, says: str) -> None:
        with pytest.raises(DestinationError, match=f"Next: correct url, or {says}"):
            HttpSink(settings_of(f"{scheme}://127.0.0.1:{free_port()}")).check()

    @pytest.mark.parametrize(("status", "fine"), [(200, True), (401, False), (302, False), (500, False)])
    def test_check_path_is_a_get_that_must_succeed(self, status: int, fine: bool, server: HttpServer) -> None:
        server.default = Reply(status)
        sink = HttpSink(settings_of(server.url, check={"path": "/me"}, auth={"type": "bearer", "token": CANARY}))
        if fine:
            sink.check()
        else:
            with pytest.raises(DestinationError, match=f"HTTP {status}") as caught:
                sink.check()
            assert CANARY not in str(caught.value)
        (request,) = server.received
        assert (request.method, request.path, request.body) == ("GET", "/me", b"")

    @pytest.mark.parametrize(
        ("reply", "says"),
        [
            (Reply(200, b"<html>", {"Content-Type": "text/html"}), "a web page.*Next: correct the credentials or"),
            (Reply(401), "HTTP 401.*Next: correct the credentials or check.path"),
            (Reply(429), "HTTP 429.*Next: try again later"),
            (Reply(503, b"<html>", {"Content-Type": "text/html"}), "HTTP 503.*Next: try again later"),
        ],
        ids=str,
    )
    def test_check_path_proves_credentials_by_no_web_page_and_doubts_them_in_no_outage(
        self, reply: Reply, says: str, server: HttpServer
    ) -> None:
        server.default = reply
        with pytest.raises(DestinationError, match=says):
            HttpSink(settings_of(server.url, check={"path": "me"})).check()

    def test_a_text_with_the_type_of_a_web_page_proves_the_credentials(self, server: HttpServer) -> None:
        server.default = Reply(200, b"ok", {"Content-Type": "text/html; charset=utf-8"})
        HttpSink(settings_of(server.url, check={"path": "health"})).check()

    @pytest.mark.parametrize("path", ["c/{_object}", "me\n", "a b", "../me", "é", "me#x"])
    def test_a_check_path_that_would_be_sent_otherwise_is_refused(self, path: str) -> None:
        with pytest.raises(ValidationError, match="expected what a URL can hold"):
            settings_of("https://crm.example.com", check={"path": path})

    def test_a_ca_file_that_does_not_exist_is_said_before_anything_is_sent(self, server: HttpServer) -> None:
        sink = HttpSink(settings_of(server.url, verify="/nonexistent/ca.pem"))
        for step in (sink.check, lambda: sink.open(task_of())):
            with pytest.raises(DestinationError, match="CA file or client certificate"):
                step()
        assert server.connections == 0
