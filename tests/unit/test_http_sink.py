"""The http sink against real sockets on loopback; what the server recorded is the oracle."""

from __future__ import annotations

import gzip
import hashlib
import logging
import ssl
import subprocess
import sys
import textwrap
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dbt_reverse_etl.encoding import encode_values
from dbt_reverse_etl.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import Limits, Mode, SinkTask
from dbt_reverse_etl.sinks.http import HttpSink
from dbt_reverse_etl.sinks.http_options import HttpOptions
from dbt_reverse_etl.sinks.http_settings import HttpSettings
from dbt_reverse_etl.sinks.http_transport import BODY_CAP, decoded
from dbt_reverse_etl.testing import PEOPLE, ReadBack, SinkContract, batch_of, outcomes, person
from tests.unit.http_server import HttpServer, Received, Reply, free_port, http_server, json_reply

CANARY = "canary-5772156649"
DELIVERED, REJECTED, RETRYABLE = Outcome.DELIVERED, Outcome.REJECTED, Outcome.RETRYABLE
UNKNOWN, FATAL = Outcome.UNKNOWN, Outcome.FATAL


class RestStore:
    """An endpoint that keeps resources: PUT and POST create, DELETE removes, PATCH changes what is there."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}

    def __call__(self, request: Received) -> Reply:
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


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as running:
        yield running


@pytest.fixture(scope="module")
def shared() -> Iterator[HttpServer]:
    """One server for all examples of a property."""
    with http_server() as running:
        yield running


def task_of(options: dict[str, Any] | None = None, **changes: Any) -> SinkTask:
    values: dict[str, Any] = {"sync_id": "a1", "sync": "people", "fence": 1, "object": "contacts", "mode": Mode.MIRROR}
    model = HttpOptions.model_validate(options or {})
    return SinkTask(**{**values, "key": ("id",), "schema": PEOPLE, "options": model, **changes})


BATCH: dict[str, Any] = {
    "batch": {"rows": 100},
    "upsert": {"method": "POST", "path": "contacts/batch"},
    "delete": {"method": "POST", "path": "contacts/delete"},
}


def settings_of(url: str, **more: Any) -> HttpSettings:
    return HttpSettings.model_validate({"url": url, **more})


def send(url: str, task: SinkTask, *changes: Any, **more: Any) -> Delivery:
    sink = HttpSink(settings_of(url, **more))
    try:
        sink.open(task)
        return sink.deliver(batch_of(task, changes))
    finally:
        sink.close()


def one(url: str, task: SinkTask | None = None, **more: Any) -> tuple[Outcome, str]:
    delivery = send(url, task or task_of(), ("insert", person(1)), **more)
    (outcome,) = outcomes(delivery, 1)
    return outcome, delivery.results[0].reason if delivery.results else ""


def inserts(*numbers: int) -> list[Any]:
    return [("insert", person(number)) for number in numbers]


class TestRequests:
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

    def test_limits_follow_the_options(self, server: HttpServer) -> None:
        sink = HttpSink(settings_of(server.url, concurrency=3, requests_per_second=5))
        assert sink.limits(task_of()) == Limits(rows=1, concurrency=3, requests_per_second=5)
        assert sink.limits(task_of(BATCH)).rows == 100

    def test_connections_are_reused(self, server: HttpServer) -> None:
        task = task_of()
        sink = HttpSink(settings_of(server.url))
        sink.open(task)
        for number in range(5):
            assert sink.deliver(batch_of(task, inserts(number))).results == ()
        sink.close()
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


class TestPaths:
    SCHEMA: ClassVar = pa.schema([("id", pa.string()), ("n", pa.int64())])

    def task(self) -> SinkTask:
        return task_of(schema=self.SCHEMA)

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=1, max_size=4, unique=True))
    def test_any_key_is_one_path_segment_or_its_row_is_rejected(self, shared: HttpServer, keys: list[str]) -> None:
        server = shared
        server.received.clear()
        delivery = send(server.url, self.task(), *[("delete", {"id": key}) for key in keys])
        sent = [unquote(request.path.removeprefix("/contacts/")) for request in server.received]
        assert all(request.path.count("/") == 2 for request in server.received)
        assert sent == [key for key in keys if key not in ("", ".", "..")]
        rejected = [index for index, key in enumerate(keys) if key in ("", ".", "..")]
        assert [result.index for result in delivery.results] == rejected

    @pytest.mark.parametrize("key", ["..", ".", "", "../admin", "a\r\nX: y", "%2e%2e", "?x", "#x", "//host/x", None])
    def test_a_hostile_key_cannot_leave_its_segment(self, key: str | None, server: HttpServer) -> None:
        send(server.url, self.task(), ("delete", {"id": key}))
        for request in server.received:
            assert unquote(request.path) == f"/contacts/{key}"
            assert request.path.count("/") == 2
            assert "x" not in request.headers
        assert len(server.received) == (key not in ("..", ".", "", None))

    @pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "é", "\x00", " a", "", None])
    def test_a_value_that_cannot_stand_in_a_header_rejects_its_row(self, value: str | None, server: HttpServer) -> None:
        upsert = {"method": "PUT", "path": "c/{n}", "headers": {"X-Id": "{id}"}}
        task = task_of({"upsert": upsert}, mode=Mode.UPSERT, schema=self.SCHEMA, key=("n",))
        delivery = send(server.url, task, ("insert", {"id": value, "n": 1}))
        assert outcomes(delivery, 1) == [REJECTED]
        assert not server.received
        assert not value or value not in delivery.results[0].reason

    def test_two_fields_cannot_join_to_a_dot_segment(self, server: HttpServer) -> None:
        schema = pa.schema([("a", pa.string()), ("b", pa.string())])
        task = task_of({"delete": {"method": "DELETE", "path": "c/{a}{b}"}}, schema=schema, key=("a", "b"))
        assert outcomes(send(server.url, task, ("delete", {"a": ".", "b": "."})), 1) == [REJECTED]
        assert not server.received

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
            ({}, {"schema": PEOPLE.append(pa.field("d", pa.duration("s")))}, "field d of type duration"),
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

    def test_everything_that_is_wrong_is_said_at_once(self, server: HttpServer) -> None:
        options = {"upsert": {"method": "PUT", "path": "../c"}, "delete": {"method": "DELETE", "path": "c/{nope}"}}
        with pytest.raises(ConfigurationError) as caught:
            HttpSink(settings_of(server.url)).validate(task_of({**options, "constants": {"id": 1}}))
        assert len(caught.value.problems) >= 5


class TestOutcomes:
    @pytest.mark.parametrize(
        ("status", "alone", "together"),
        [
            *((status, DELIVERED, DELIVERED) for status in (200, 201, 202, 204)),
            *((status, UNKNOWN, UNKNOWN) for status in (203, 206, 207)),
            *((status, FATAL, FATAL) for status in (300, 301, 302, 303, 307, 308, 401, 403, 405, 407, 501)),
            *((status, REJECTED, REJECTED) for status in (400, 404, 409, 410, 413, 418, 422)),
            *((status, RETRYABLE, RETRYABLE) for status in (408, 425, 429, 503)),
            *((status, UNKNOWN, UNKNOWN) for status in (500, 502, 504, 599)),
        ],
    )
    def test_a_status_is_one_outcome(self, status: int, alone: Outcome, together: Outcome) -> None:
        with http_server(Reply(status, headers={"Location": "/elsewhere"})) as server:
            single = send(server.url, task_of(), *inserts(1))
            batch = send(server.url, task_of(BATCH), *inserts(1, 2))
        assert outcomes(single, 1) == [alone]
        assert outcomes(batch, 2) == [together] * 2
        assert batch.refused_whole == (together is REJECTED)
        assert (single.stop is not None) == (status in (203, 206, 207))
        assert len(server.received) == 2
        assert all(str(status) in result.reason for result in (*single.results, *batch.results))

    @pytest.mark.parametrize(
        ("header", "seconds"),
        [
            ("120", 120.0),
            ("0", 0.0),
            (" 7 ", 7.0),
            ("9" * 400, 1e15),
            ("-5", None),
            ("soon", None),
            ("1.5", None),
            ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
            ("", None),
        ],
    )
    def test_retry_after_is_handed_to_the_engine(self, header: str, seconds: float | None, server: HttpServer) -> None:
        server.default = Reply(429, headers={"Retry-After": header})
        assert send(server.url, task_of(), *inserts(1)).retry_after == seconds

    def test_retry_after_takes_a_date_in_the_future(self, server: HttpServer) -> None:
        server.default = Reply(503, headers={"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"})
        assert (send(server.url, task_of(), *inserts(1)).retry_after or 0) > 365 * 86_400

    def test_a_redirect_is_never_followed_and_its_target_sees_no_byte(self, server: HttpServer) -> None:
        with http_server() as target:
            for status in (301, 302, 303, 307, 308):
                server.default = Reply(status, headers={"Location": target.url + "/x"})
                assert one(server.url, auth={"type": "api_key", "header": "X-Api-Key", "value": CANARY})[0] is FATAL
            assert target.connections == 0
        assert len(server.received) == 5

    def test_already_exists_is_delivered_in_insert_only_and_only_there(self, server: HttpServer) -> None:
        server.default = Reply(409)
        options = {"insert": {"method": "POST", "path": "c"}}
        assert one(server.url, task_of(options, mode=Mode.INSERT_ONLY))[0] is DELIVERED
        assert one(server.url, task_of({**options, "already_exists": [422]}, mode=Mode.INSERT_ONLY))[0] is REJECTED
        assert one(server.url)[0] is REJECTED

    def test_a_row_that_is_gone_counts_as_deleted_but_a_batch_does_not(self, server: HttpServer) -> None:
        for status in (404, 410):
            server.default = Reply(status)
            assert send(server.url, task_of(), ("delete", {"id": 1})).results == ()
        batch = send(server.url, task_of(BATCH), ("delete", {"id": 1}), ("delete", {"id": 2}))
        assert (outcomes(batch, 2), batch.refused_whole) == ([REJECTED] * 2, True)

    def test_update_only_without_a_match_is_rejected_and_says_so(self, server: HttpServer) -> None:
        server.default = Reply(404)
        task = task_of({"update": {"method": "PATCH", "path": "c/{id}"}}, mode=Mode.UPDATE_ONLY)
        assert one(server.url, task) == (REJECTED, "HTTP 404: no match")

    def test_a_delete_in_a_mode_without_deletes_is_not_sent(self, server: HttpServer) -> None:
        assert outcomes(send(server.url, task_of(mode=Mode.UPSERT), ("delete", {"id": 1})), 1) == [REJECTED]
        assert not server.received

    def test_a_mixed_batch_whose_first_request_is_refused_applied_nothing(self, server: HttpServer) -> None:
        server.script(Reply(400))
        changes = [("delete", {"id": 1}), ("delete", {"id": 2}), *inserts(3, 4)]
        delivery = send(server.url, task_of(BATCH), *changes)
        assert (outcomes(delivery, 4), delivery.refused_whole) == ([REJECTED] * 4, True)
        assert len(server.received) == 1

    def test_a_mixed_batch_refused_after_another_operation_was_applied_is_sent_again_apart(
        self, server: HttpServer
    ) -> None:
        server.script(Reply(200), Reply(400))
        delivery = send(server.url, task_of(BATCH), ("delete", {"id": 1}), *inserts(3, 4))
        assert outcomes(delivery, 3) == [DELIVERED, RETRYABLE, RETRYABLE]
        assert not delivery.refused_whole

    @pytest.mark.parametrize(("status", "first"), [(401, FATAL), (429, RETRYABLE), (207, UNKNOWN)])
    def test_after_a_failure_of_the_destination_the_rest_of_a_batch_is_not_sent(
        self, status: int, first: Outcome, server: HttpServer
    ) -> None:
        server.default = Reply(status, headers={"Retry-After": "3"})
        delivery = send(server.url, task_of(BATCH), ("delete", {"id": 1}), *inserts(3))
        assert outcomes(delivery, 2) == [first, RETRYABLE]
        assert "not sent" in delivery.results[1].reason
        assert len(server.received) == 1


class TestNetwork:
    def test_a_refused_connection_is_surely_not_sent(self) -> None:
        assert one(f"http://127.0.0.1:{free_port()}") == (RETRYABLE, "no connection")

    def test_a_host_that_does_not_exist_is_surely_not_sent(self) -> None:
        outcome, reason = one("http://does-not-exist.invalid")
        assert outcome is RETRYABLE
        assert reason in ("the host name was not found", "no connection in time")

    @pytest.mark.parametrize("reset", ["unread", "after"])
    def test_a_reset_is_unknown_and_is_never_repeated_by_the_sink(self, reset: Any, server: HttpServer) -> None:
        server.default = Reply(reset=reset)
        server.script(Reply(reset=reset))
        assert one(server.url)[0] is UNKNOWN
        assert server.connections == 1
        assert len(server.received) == (reset == "after")

    def test_no_answer_in_time_is_unknown(self, server: HttpServer) -> None:
        server.default = Reply(delay=30)
        assert one(server.url, timeout={"read": 0.2}) == (UNKNOWN, "no answer in time")
        assert len(server.received) == 1

    def test_what_is_no_http_is_unknown(self, server: HttpServer) -> None:
        server.default = Reply(raw=b"SSH-2.0-OpenSSH_9.9\r\n")
        assert one(server.url)[0] is UNKNOWN

    def test_an_answer_that_breaks_off_is_no_acknowledgement_where_its_body_matters(self, server: HttpServer) -> None:
        body = b'{"status": "ok"}'
        task = task_of({"success": {"json": {"path": "status", "equals": "ok"}}})
        server.default = Reply(body=body, headers={"Content-Type": "application/json"}, length=len(body) + 50)
        assert one(server.url, task)[0] is UNKNOWN
        assert one(server.url)[0] is DELIVERED

    def test_a_trickling_answer_does_not_hold_the_worker(self, server: HttpServer) -> None:
        body = b'{"status": "ok"}' + b" " * 5000
        server.default = Reply(body=body, headers={"Content-Type": "application/json"}, pause=0.05)
        task = task_of({"success": {"json": {"path": "status", "equals": "ok"}}})
        assert one(server.url, task, timeout={"read": 0.3})[0] is UNKNOWN

    @pytest.mark.parametrize("compress", [False, True])
    def test_an_answer_above_the_cap_is_not_read(self, compress: bool, server: HttpServer) -> None:
        body = b'{"status": "ok", "x": "' + b"a" * (2**21 if not compress else 2**26) + b'"}'
        headers = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if compress else {})
        server.default = Reply(body=gzip.compress(body) if compress else body, headers=headers)
        task = task_of({"success": {"json": {"path": "status", "equals": "ok"}}})
        outcome, reason = one(server.url, task)
        assert (outcome, reason) == (UNKNOWN, "HTTP 200, but the answer is larger than 1 MiB")
        assert one(server.url)[0] is DELIVERED

    def test_a_compressed_bomb_takes_no_more_memory_than_the_cap(self) -> None:
        bomb = gzip.compress(b"a" * 2**26)
        tracemalloc.start()
        try:
            body, problem = decoded(bomb, "gzip")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (body, problem) == (None, "the answer is larger than 1 MiB")
        assert peak < 4 * BODY_CAP

    @pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "identity", "br", "gzip, gzip"])
    def test_a_compressed_answer_is_read_or_refused(self, encoding: str, server: HttpServer) -> None:
        plain = b'{"status":"ok"}'
        coded = (
            zlib.compress(plain) if encoding == "deflate" else plain if encoding == "identity" else gzip.compress(plain)
        )
        headers = {"Content-Type": "application/json; charset=utf-8", "Content-Encoding": encoding}
        server.default = Reply(body=coded, headers=headers)
        task = task_of({"success": {"json": {"path": "status", "equals": "ok"}}})
        assert one(server.url, task)[0] is (UNKNOWN if encoding in ("br", "gzip, gzip") else DELIVERED)

    def test_a_connection_that_was_closed_while_idle_is_opened_again(self, server: HttpServer) -> None:
        server.script(Reply(200, headers={"Connection": "close"}))
        task = task_of()
        sink = HttpSink(settings_of(server.url))
        sink.open(task)
        assert [sink.deliver(batch_of(task, inserts(number))).results for number in range(2)] == [(), ()]
        sink.close()


class TestAcknowledgement:
    OK: ClassVar = {"success": {"json": {"path": "data.items[0].ok", "equals": True}}, "error": "error.code"}

    @pytest.mark.parametrize(
        ("reply", "outcome"),
        [
            (json_reply({"data": {"items": [{"ok": True}]}}), DELIVERED),
            (json_reply({"data": {"items": [{"ok": 1}]}}), UNKNOWN),
            (json_reply({"data": {"items": [{"ok": "true"}]}}), UNKNOWN),
            (json_reply({"data": {"items": []}}), UNKNOWN),
            (json_reply([]), UNKNOWN),
            (Reply(200, b"", {"Content-Type": "application/json"}), UNKNOWN),
            (Reply(200, b'{"data": NaN}', {"Content-Type": "application/json"}), UNKNOWN),
            (Reply(200, b'{"data": {"items": [{"ok": true}]}}', {"Content-Type": "text/plain"}), UNKNOWN),
            (Reply(200, b'{"data": {"items": [{"ok": true}]}}'), UNKNOWN),
            (Reply(200, b"<html>Log in</html>", {"Content-Type": "text/html; charset=utf-8"}), FATAL),
        ],
    )
    def test_only_the_configured_statement_acknowledges(
        self, reply: Reply, outcome: Outcome, server: HttpServer
    ) -> None:
        server.default = reply
        delivery = send(server.url, task_of(self.OK), *inserts(1))
        assert outcomes(delivery, 1) == [outcome]
        assert (delivery.stop is not None) == (outcome is UNKNOWN)

    def test_a_web_page_is_no_acknowledgement_even_without_conditions(self, server: HttpServer) -> None:
        server.default = Reply(200, b"<html>", {"Content-Type": "Text/HTML"})
        assert one(server.url) == (FATAL, "HTTP 200, but a web page (a login or a proxy?)")
        assert one(server.url, task_of({"success": {"content_type": "text/html"}}))[0] is DELIVERED

    @pytest.mark.parametrize("code", ["E_CODE", "limit.reached", 4711])
    def test_a_reason_names_status_and_code(self, code: Any, server: HttpServer) -> None:
        server.default = json_reply({"error": {"code": code, "message": CANARY}}, 422)
        assert one(server.url, task_of({"error": "error.code"})) == (REJECTED, f"HTTP 422, code {code}")
        assert one(server.url) == (REJECTED, "HTTP 422")

    @pytest.mark.parametrize("text", ["Ada", f"no such mail: {CANARY}", "a@b.example", "x" * 65, True, None, {"a": 1}])
    def test_a_message_where_a_code_should_be_is_not_shown(self, text: Any, server: HttpServer) -> None:
        server.default = json_reply({"error": {"code": text}}, 422)
        reason = one(server.url, task_of({"error": "error.code"}))[1]
        assert reason in ("HTTP 422", "HTTP 422, code Ada")


class TestResults:
    OK: ClassVar = {"path": "status", "equals": "ok"}

    def send(self, server: HttpServer, document: Any, results: dict[str, Any], *numbers: int) -> Delivery:
        server.default = json_reply(document)
        options = {**BATCH, "results": {"path": "results", "ok": self.OK, "error": "code", **results}}
        return send(server.url, task_of(options), *inserts(*(numbers or (10, 20, 30))))

    def test_rows_are_judged_in_their_order(self, server: HttpServer) -> None:
        entries = [{"status": "ok"}, {"status": "bad", "code": "E1", "message": CANARY}, {"status": "ok"}]
        delivery = self.send(server, {"results": entries}, {})
        assert outcomes(delivery, 3) == [DELIVERED, REJECTED, DELIVERED]
        assert delivery.results[0].reason == "HTTP 200, refused in results, code E1"
        assert not delivery.refused_whole

    def test_rows_are_judged_by_id_in_any_order(self, server: HttpServer) -> None:
        entries = [{"key": "30", "status": "bad"}, {"key": 10, "status": "ok"}]
        delivery = self.send(server, {"results": entries}, {"by": "id", "id": "key"})
        assert outcomes(delivery, 3) == [DELIVERED, UNKNOWN, REJECTED]
        assert delivery.stop is None
        only_errors = {"by": "id", "id": "key", "missing": "delivered"}
        assert outcomes(self.send(server, {"results": entries}, only_errors), 3) == [DELIVERED, DELIVERED, REJECTED]

    def test_rows_are_judged_by_the_index_that_an_entry_carries(self, server: HttpServer) -> None:
        entries = [{"at": {"i": 2}, "status": "ok"}, {"at": {"i": 0}, "status": "bad"}]
        assert outcomes(self.send(server, {"results": entries}, {"index": "at.i"}), 3) == [REJECTED, UNKNOWN, DELIVERED]

    @pytest.mark.parametrize(
        ("document", "results"),
        [
            ({}, {}),
            ({"results": {"0": "ok"}}, {}),
            ({"results": [{"status": "ok"}]}, {}),
            ({"results": [{"status": "ok"}] * 4}, {}),
            ({"results": [{"id": 99, "status": "ok"}]}, {"by": "id", "id": "id"}),
            ({"results": [{"id": 10, "status": "ok"}, {"id": "10", "status": "bad"}]}, {"by": "id", "id": "id"}),
            ({"results": [{"status": "ok"}]}, {"by": "id", "id": "id"}),
            ({"results": [{"id": True, "status": "ok"}]}, {"by": "id", "id": "id"}),
            ({"results": [{"i": 3, "status": "ok"}]}, {"index": "i"}),
            ({"results": [{"i": -1, "status": "ok"}]}, {"index": "i"}),
            ({"results": [{"i": "0", "status": "ok"}]}, {"index": "i"}),
            ({"results": [{"i": 1, "status": "ok"}, {"i": 1, "status": "ok"}]}, {"index": "i"}),
            ({"results": ["ok"]}, {"index": "i"}),
        ],
    )
    def test_an_answer_of_another_shape_stops_the_sync_and_leaves_its_rows_in_doubt(
        self, document: Any, results: dict[str, Any], server: HttpServer
    ) -> None:
        delivery = self.send(server, document, results)
        assert outcomes(delivery, 3) == [UNKNOWN] * 3
        assert delivery.stop is not None

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sampled_from(["ok", "bad", "nan"]), min_size=1, max_size=8), st.integers(0, 999))
    def test_each_row_gets_its_own_answer_however_the_entries_are_ordered(self, kinds: list[str], seed: int) -> None:
        def answer(request: Received) -> Reply:
            entries = [{"id": row["id"], "status": kinds[row["id"]]} for row in request.json]
            Random(seed).shuffle(entries)
            return json_reply({"results": entries})

        options = {**BATCH, "results": {"path": "results", "by": "id", "id": "id", "ok": self.OK}}
        changes = [
            ("insert", person(number, score=float("nan") if kind == "nan" else 1.0))
            for number, kind in enumerate(kinds)
        ]
        with http_server(answer) as server:
            delivery = send(server.url, task_of(options), *changes)
        assert outcomes(delivery, len(kinds)) == [DELIVERED if kind == "ok" else REJECTED for kind in kinds]

    def test_the_answer_to_a_single_row_may_be_its_entry(self, server: HttpServer) -> None:
        task = task_of({"results": {"ok": self.OK, "error": "code"}})
        server.script(json_reply({"status": "ok"}), json_reply({"status": "no", "code": "E2"}))
        assert one(server.url, task)[0] is DELIVERED
        assert one(server.url, task) == (REJECTED, "HTTP 200, refused in results, code E2")


class TestSafety:
    def test_proxies_and_netrc_and_ca_bundles_of_the_environment_have_no_effect(
        self, server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login evil password evil\n")
        (tmp_path / ".netrc").chmod(0o600)
        with http_server() as proxy:
            for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            monkeypatch.setenv("HOME", str(tmp_path))
            monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
            assert one(server.url, auth={"type": "bearer", "token": CANARY})[0] is DELIVERED
            assert one(server.url)[0] is DELIVERED
            assert proxy.connections == 0
        first, second = server.received
        assert first.headers["authorization"] == f"Bearer {CANARY}"
        assert "authorization" not in second.headers

    def test_cookies_of_an_answer_are_not_sent_back(self, server: HttpServer) -> None:
        server.default = Reply(200, headers={"Set-Cookie": "session=1"})
        task = task_of()
        sink = HttpSink(settings_of(server.url))
        sink.open(task)
        for number in range(2):
            sink.deliver(batch_of(task, inserts(number)))
        sink.close()
        assert all("cookie" not in request.headers for request in server.received)

    @pytest.mark.parametrize(
        "settings",
        [
            {"url": "http://example.com", "auth": {"type": "bearer", "token": CANARY}},
            {"url": "http://example.com", "headers": {"X-Token": CANARY}},
            {"url": "http://0x7f.1", "auth": {"type": "bearer", "token": CANARY}},
            {"url": "https://example.com", "verify": False, "auth": {"type": "bearer", "token": CANARY}},
            {"url": f"https://u:{CANARY}@example.com"},
            {"url": f"https://example.com?token={CANARY}"},
            {"url": "http://169.254.169.254/latest"},
            {"url": "http://[::ffff:169.254.169.254]/latest"},
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

    def test_identity_names_the_destination_and_no_secret(self) -> None:
        def identity(url: str, **more: Any) -> str:
            return HttpSink(settings_of(url, **more)).identity

        secret = {"auth": {"type": "bearer", "token": CANARY}}
        assert identity("https://API.Example.com/v1/", **secret) == "https://api.example.com:443/v1"
        assert identity("http://[::1]:8080") == "http://[::1]:8080"

    def test_no_secret_and_no_value_is_in_any_reason_text_or_log(
        self, server: HttpServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        schema = pa.schema([("id", pa.string())])
        auth = {"type": "bearer", "token": CANARY}
        texts: list[str] = []
        replies = [Reply(status, CANARY.encode()) for status in (200, 207, 302, 400, 401, 429, 500)]
        for reply in (*replies, Reply(reset="after"), Reply(raw=CANARY.encode()), Reply(delay=9)):
            server.script(reply)
            delivery = send(
                server.url, task_of(schema=schema), ("insert", {"id": "pii-31415"}), auth=auth, timeout={"read": 0.2}
            )
            texts.append(repr(delivery))
        delivery = send(f"http://127.0.0.1:{free_port()}", task_of(schema=schema), ("insert", {"id": "pii-31415"}))
        sink = HttpSink(settings_of(server.url, auth=auth))
        texts += [repr(delivery), repr(sink), repr(sink.__dict__), caplog.text]
        assert "pii-31415" in server.received[0].path
        assert not [text for text in texts if CANARY in text or "pii-31415" in text]

    def test_importing_and_validating_without_the_client_names_the_extra(self) -> None:
        program = textwrap.dedent(
            """
            import sys
            sys.modules["urllib3"] = None
            from dbt_reverse_etl.errors import DestinationError
            from dbt_reverse_etl.sinks.http import HttpSink
            from dbt_reverse_etl.sinks.http_settings import HttpSettings
            sink = HttpSink(HttpSettings(url="https://example.com"))
            try:
                sink.check()
            except DestinationError as error:
                print(error)
            """
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert "pip install 'dbt-reverse-etl[http]'" in run.stdout


class TestCheck:
    def test_check_connects_and_sends_nothing(self, server: HttpServer) -> None:
        HttpSink(settings_of(server.url)).check()
        server.wait_for_connections(1)
        assert server.received == []

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

    def test_a_ca_file_that_does_not_exist_is_said_before_anything_is_sent(self, server: HttpServer) -> None:
        sink = HttpSink(settings_of(server.url, verify="/nonexistent/ca.pem"))
        for step in (sink.check, lambda: sink.open(task_of())):
            with pytest.raises(DestinationError, match="CA file or client certificate"):
                step()
        assert server.connections == 0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Self-signed certificates: for 127.0.0.1, for another host, and one that has expired."""
    home = tmp_path_factory.mktemp("tls")
    wanted = {"good": ("IP:127.0.0.1", "2"), "other": ("DNS:other.example", "2"), "expired": ("IP:127.0.0.1", "-1")}
    for name, (subject, days) in wanted.items():
        (home / f"{name}.ext").write_text(f"subjectAltName={subject}")
        for command in (
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=x -keyout {0}.key -out {0}.req",
            "x509 -req -in {0}.req -signkey {0}.key -days {1} -extfile {0}.ext -out {0}.pem",
        ):
            arguments = command.format(name, days).split()
            subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True)
    return {name: home / f"{name}.pem" for name in wanted}


@pytest.mark.parametrize(
    ("shown", "trusted", "outcome"),
    [
        ("good", "good", DELIVERED),
        ("good", None, FATAL),
        ("good", "other", FATAL),
        ("other", "other", FATAL),
        ("expired", "expired", FATAL),
    ],
)
def test_only_a_verified_certificate_gets_any_row(
    shown: str, trusted: str | None, outcome: Outcome, certificates: dict[str, Path]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates[shown], certificates[shown].with_suffix(".key"))
    verify: Any = str(certificates[trusted]) if trusted else True
    with http_server(tls=context) as server:
        assert one(server.url, verify=verify)[0] is outcome
        assert len(server.received) == (outcome is DELIVERED)
        sink = HttpSink(settings_of(server.url, verify=verify))
        if outcome is DELIVERED:
            sink.check()
        else:
            with pytest.raises(DestinationError, match="no TLS that can be trusted"):
                sink.check()


def test_verification_may_be_off_for_this_machine_only(certificates: dict[str, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates["other"], certificates["other"].with_suffix(".key"))
    with http_server(tls=context) as server:
        assert one(server.url, verify=False)[0] is DELIVERED
