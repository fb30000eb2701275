"""What the http sink sends: one request a row or a batch, and never to a place that a value chose."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.testing import batch_of, outcomes, person
from tests.support.effort import scaled
from tests.support.outcomes import DELIVERED, REJECTED
from tests.support.servers.http import HttpServer, http_server
from tests.support.sinks.http_sending import BATCH, CANARY, inserts, one, send, sending, settings_of, task_of


@pytest.fixture(scope="module")
def shared() -> Iterator[HttpServer]:
    """One server for all examples of a property."""
    with http_server() as running:
        yield running


TRAVERSALS = st.lists(st.sampled_from(["..", ".", "/", "\\", "a", "%2e", "..."]), min_size=1, max_size=5).map("".join)


def leads_away(key: str) -> bool:
    """A path with it would be that of another resource, at the latest where a server decodes before it normalises."""
    return not key or not {".", ".."}.isdisjoint(re.split(r"[/\\]", key))


_ONLY_REFUSED = {"path": None, "missing": "delivered", "refused": [{"path": "errors", "at": "index"}]}


class TestRequests:
    @pytest.mark.parametrize(("path", "asked"), [("", "/hook/S3CRET"), ("?source=dbt", "/hook/S3CRET?source=dbt")])
    def test_a_url_that_is_whole_is_asked_as_it_is(self, path: str, asked: str, server: HttpServer) -> None:
        task = task_of({"insert": {"method": "POST", "path": path}}, mode=Mode.INSERT_ONLY)
        assert send(f"{server.url}/hook/S3CRET", task, *inserts(7)).results == ()
        assert [request.path for request in server.received] == [asked]

    def test_a_row_is_a_put_to_its_key_with_exact_json_and_its_event_id(self, server: HttpServer) -> None:
        task = task_of({"constants": {"source": "dbt"}})
        batch = batch_of(task, inserts(7))
        assert send(server.url + "/v1/", task, *inserts(7)).results == ()
        (request,) = server.received
        assert (request.method, request.path) == ("PUT", "/v1/contacts/7")
        assert request.body == b'{"id":7,"name":"Ada","score":1.5,"source":"dbt"}'
        assert request.headers["idempotency-key"] == batch.rows.column("_event_id")[0].as_py()
        assert request.headers["content-type"] == "application/json"
        assert request.headers["user-agent"].startswith("dbt-reverse-etl")
        assert request.headers["accept-encoding"] == "identity"

    def test_a_delete_has_no_body_and_names_its_key(self, server: HttpServer) -> None:
        send(server.url, task_of(), ("delete", {"id": 7}))
        (request,) = server.received
        assert (request.method, request.path, request.body) == ("DELETE", "/contacts/7", b"")
        assert request.headers["content-length"] == "0"

    def test_each_operation_has_its_own_request_and_headers(self, server: HttpServer) -> None:
        update = {"method": "PATCH", "path": "c/{id}?by={name}", "headers": {"X-Row": "row {id}"}, "body": "key"}
        send(server.url, task_of({"update": update}), ("update", person(7, "a/b&c=é")))
        (request,) = server.received
        assert request.path == "/c/7?by=a%2Fb%26c%3D%C3%A9"
        assert request.headers["x-row"] == "row 7"
        assert request.body == b'{"id":7}'

    @pytest.mark.parametrize(
        ("wrap", "body"),
        [
            (None, b'[{"id":1},{"id":2}]'),
            ("array", b'[{"id":1},{"id":2}]'),
            ({"key": 'my "records"'}, b'{"my \\"records\\"":[{"id":1},{"id":2}]}'),
            ("ndjson", b'{"id":1}\n{"id":2}\n'),
        ],
    )
    def test_a_batch_is_one_request_with_one_idempotency_key(self, wrap: Any, body: bytes, server: HttpServer) -> None:
        upsert = {"method": "POST", "path": "contacts/batch", "body": "key"}
        task = task_of({**BATCH, "upsert": upsert, "batch": {"rows": 9, "wrap": wrap}})
        batch = batch_of(task, inserts(1, 2))
        assert send(server.url, task, *inserts(1, 2)).results == ()
        (request,) = server.received
        assert request.body == body
        events = "\n".join(batch.rows.column("_event_id").to_pylist())
        assert request.headers["idempotency-key"] == hashlib.sha256(events.encode()).hexdigest()
        assert request.headers["content-type"] == ("application/x-ndjson" if wrap == "ndjson" else "application/json")

    def test_a_mixed_batch_is_one_request_an_operation_and_deletes_go_first(self, server: HttpServer) -> None:
        changes = [("insert", person(1)), ("delete", {"id": 2}), ("update", person(3))]
        assert send(server.url, task_of(BATCH), *changes).results == ()
        assert [(request.path, request.json) for request in server.received] == [
            ("/contacts/delete", [{"id": 2}]),
            ("/contacts/batch", [person(1), person(3)]),
        ]

    def test_a_row_that_has_no_json_is_rejected_and_the_others_are_sent(self, server: HttpServer) -> None:
        changes = [("insert", person(1, score=float("nan"))), ("insert", person(2))]
        delivery = send(server.url, task_of(BATCH), *changes)
        assert outcomes(delivery, 2) == [REJECTED, DELIVERED]
        assert server.received[0].json == [person(2)]
        send(server.url, task_of({**BATCH, "nan": "null"}), *changes)
        assert server.received[1].json == [person(1, score=None), person(2)]

    def test_a_key_that_is_no_number_is_refused_where_such_a_value_is_sent_as_null(self, server: HttpServer) -> None:
        schema = pa.schema([("id", pa.float64()), ("score", pa.float64())])
        task = task_of({**BATCH, "nan": "null"}, schema=schema)
        nan, infinite = float("nan"), float("inf")
        changes = [("insert", {"id": key, "score": nan}) for key in (1.5, nan, infinite)]
        delivery = send(server.url, task, *changes, ("delete", {"id": nan}))
        assert outcomes(delivery, 4) == [DELIVERED, REJECTED, REJECTED, REJECTED]
        assert [request.json for request in server.received] == [[{"id": 1.5, "score": None}]]

    def test_connections_are_reused(self, server: HttpServer) -> None:
        task = task_of()
        with sending(server.url, task) as sink:
            for number in range(5):
                assert sink.deliver(batch_of(task, inserts(number))).results == ()
        assert server.connections == 1

    @pytest.mark.parametrize(
        ("auth", "header", "value"),
        [
            ({"type": "bearer", "token": CANARY}, "authorization", f"Bearer {CANARY}"),
            ({"type": "basic", "user": "u", "password": "pä:ss"}, "authorization", "Basic dTpww6Q6c3M="),
            ({"type": "api_key", "header": "X-Api-Key", "value": CANARY}, "x-api-key", CANARY),
        ],
    )
    def test_credentials_and_headers_of_the_destination_reach_it(
        self, auth: Any, header: str, value: str, server: HttpServer
    ) -> None:
        one(server.url, auth=auth, headers={"X-Tenant": "t1", "user-agent": "mine"})
        assert server.received[0].headers[header] == value
        assert server.received[0].headers["x-tenant"] == "t1"
        assert server.received[0].headers["user-agent"] == "mine"

    def test_the_headers_of_the_destination_win_over_those_of_the_sync_and_its_login_over_both_in_any_case(
        self, server: HttpServer
    ) -> None:
        headers = {"content-type": "application/sync", "Authorization": "sync", "authorization": "sync"}
        task = task_of({"insert": {"method": "POST", "path": "c", "headers": headers}})
        own = {"Content-Type": "application/own", "authorization": "own"}
        one(server.url, task, auth={"type": "bearer", "token": CANARY}, headers=own)
        sent = server.received[0].headers
        assert (sent["content-type"], sent["authorization"]) == ("application/own", f"Bearer {CANARY}")


class TestPaths:
    SCHEMA: ClassVar = pa.schema([("id", pa.string()), ("n", pa.int64())])

    def task(self) -> SinkTask:
        return task_of(schema=self.SCHEMA)

    @pytest.mark.guarantee("HTTP")
    @settings(max_examples=scaled(150), deadline=None)
    @given(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | TRAVERSALS,
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    def test_any_key_is_one_path_segment_or_its_row_is_rejected(self, shared: HttpServer, keys: list[str]) -> None:
        server = shared
        server.received.clear()
        delivery = send(server.url, self.task(), *[("delete", {"id": key}) for key in keys])
        sent = [unquote(request.path.removeprefix("/contacts/")) for request in server.received]
        assert all(request.path.count("/") == 2 for request in server.received)
        assert sent == [key for key in keys if not leads_away(key)]
        assert [result.index for result in delivery.results] == [i for i, key in enumerate(keys) if leads_away(key)]
        assert {result.outcome for result in delivery.results} <= {REJECTED}

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        "key", ["..", ".", "", "../admin", "a/../b", "..\\b", "a\r\nX: y", "%2e%2e", "?x", "#x", "//host/x", None]
    )
    def test_a_hostile_key_cannot_leave_its_segment(self, key: str | None, server: HttpServer) -> None:
        delivery = send(server.url, self.task(), ("delete", {"id": key}))
        assert not key or key in (".", "..") or key not in repr(delivery)
        for request in server.received:
            assert unquote(request.path) == f"/contacts/{key}"
            assert request.path.count("/") == 2
            assert "x" not in request.headers
        assert len(server.received) == (not leads_away(key or ""))

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "é", "\x00", " a", "a ", "", None])
    def test_a_value_that_cannot_stand_in_a_header_rejects_its_row(self, value: str | None, server: HttpServer) -> None:
        upsert = {"method": "PUT", "path": "c/{n}", "headers": {"X-Id": "{id}"}}
        task = task_of({"upsert": upsert}, mode=Mode.UPSERT, schema=self.SCHEMA, key=("n",))
        delivery = send(server.url, task, ("insert", {"id": value, "n": 1}))
        assert outcomes(delivery, 1) == [REJECTED]
        assert not server.received
        reason = "a value that cannot stand in header X-Id: printable ASCII only, without spaces at its ends"
        assert delivery.results[0].reason == (reason if value else "field id is empty and cannot stand in a header")

    @pytest.mark.parametrize(("a", "b"), [(".", "."), (".", "./x"), ("x/.", ".")])
    def test_two_fields_cannot_join_to_a_dot_segment(self, a: str, b: str, server: HttpServer) -> None:
        schema = pa.schema([("a", pa.string()), ("b", pa.string())])
        task = task_of({"delete": {"method": "DELETE", "path": "c/{a}{b}"}}, schema=schema, key=("a", "b"))
        assert outcomes(send(server.url, task, ("delete", {"a": a, "b": b})), 1) == [REJECTED]
        assert not server.received

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        ("options", "changes", "found"),
        [
            ({"delete": {"method": "DELETE", "path": "contacts/"}}, {}, "does not name id"),
            ({"update": {"method": "POST", "path": "contacts/{name}"}}, {}, "does not name id"),
            ({"upsert": {"method": "PUT", "path": "contacts"}}, {}, "does not name id"),
            ({"upsert": {"method": "PUT", "path": "contacts/{id}"}}, {"key": ("id", "name")}, "does not name name"),
            ({"upsert": {"method": "PUT", "path": "c/{id}/{nope}"}}, {}, "placeholder {nope}"),
            ({"delete": {"method": "DELETE", "path": "c/{id}/{name}"}}, {}, "placeholder {name}"),
            ({"upsert": {"method": "PUT", "path": "../{id}"}}, {}, "path that cannot be sent"),
            ({"upsert": {"method": "PUT", "path": "a/%2E%2e/{id}"}}, {}, "path that cannot be sent"),
            ({"upsert": {"method": "PUT", "path": "a/..%2Fb/{id}"}}, {}, "path that cannot be sent"),
            ({"upsert": {"method": "PUT", "path": "https://evil.example/{id}"}}, {}, "path that cannot be sent"),
            ({"upsert": {"method": "PUT", "path": "c/{id}#x"}}, {}, "path that cannot be sent"),
            ({"upsert": {"method": "PUT", "path": "c/{{id}}"}}, {}, "path that cannot be sent"),
            ({"upsert": {"method": "PUT", "path": "c/{id}", "headers": {"A": "x\r\ny"}}}, {}, "header A"),
            ({"batch": {"rows": 5}}, {}, "found nothing"),
            ({**BATCH, "upsert": {"method": "PUT", "path": "c/{id}"}}, {}, "found placeholders"),
            ({**BATCH, "upsert": {"method": "PUT", "path": "c", "body": "none"}}, {}, "body: none"),
            ({}, {"mode": Mode.INSERT_ONLY}, "options.insert: found nothing"),
            ({}, {"mode": Mode.UPDATE_ONLY}, "options.update: found nothing"),
            ({"delete": {"method": "DELETE", "path": "c/{id}"}}, {"mode": Mode.UPSERT}, "never be sent"),
            ({"constants": {"name": 1}}, {}, "name, which is a field too"),
            ({"constants": {"big": 2**70}}, {}, "options.constants.big"),
            ({"codes": {"LOCKED": "retryable"}}, {}, "error codes alone"),
            ({"results": _ONLY_REFUSED}, {}, "path: null alone"),
            (
                {"results": {"by": "id", "id": "id", "ok": {"path": "ok", "equals": True}}},
                {"key": ("id", "name")},
                "2 key",
            ),
        ],
    )
    def test_what_could_never_work_or_would_hit_another_row_is_refused_before_anything_is_sent(
        self, options: dict[str, Any], changes: dict[str, Any], found: str, server: HttpServer
    ) -> None:
        task = task_of(options, **changes)
        sink = HttpSink(settings_of(server.url))
        with pytest.raises(ConfigurationError) as caught:
            sink.validate(task)
        assert found in str(caught.value)
        with pytest.raises(DestinationError):
            sink.open(task)
        assert server.connections == 0

    @pytest.mark.parametrize(
        ("object_", "path"),
        [
            ("Kunden Ü", "Kunden%20%C3%9C"),
            ("a?b", "a%3Fb"),
            ("{id}", "%7Bid%7D"),
            ("v1/a:b", "v1/a:b"),
            ("a%20b('x')", "a%20b('x')"),
            ("50%", "50%25"),
        ],
    )
    def test_the_default_path_begins_with_the_object_as_a_path_has_it(
        self, object_: str, path: str, server: HttpServer
    ) -> None:
        task = task_of(object=object_)
        HttpSink(settings_of(server.url)).validate(task)
        send(server.url, task, *inserts(1))
        assert server.received[0].path == f"/{path}/1"

    def test_everything_that_is_wrong_is_said_at_once(self, server: HttpServer) -> None:
        options = {"upsert": {"method": "PUT", "path": "../c"}, "delete": {"method": "DELETE", "path": "c/{nope}"}}
        with pytest.raises(ConfigurationError) as caught:
            HttpSink(settings_of(server.url)).validate(task_of({**options, "constants": {"id": 1}}))
        assert len(caught.value.problems) >= 5
