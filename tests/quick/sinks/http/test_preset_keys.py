"""Which keys a preset can say, that its upsert is one request, and that rows may go one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.settings import HttpSettings
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.testing import outcomes
from tests.support.outcomes import DELIVERED, REJECTED
from tests.support.servers.http import HttpServer, json_reply
from tests.support.sinks.http_sending import send

AUTH = {"type": "bearer", "token": "t"}
KEYS = {
    "braze": "external_id",
    "hubspot": "email",
    "hubspot_records": "hs_object_id",
    "iterable": "userId",
    "jsonapi": "id",
    "salesforce": "Ext__c",
}


def task_of(*key: str, mode: Mode = Mode.UPSERT, options: dict[str, Any] | None = None) -> SinkTask:
    schema = pa.schema([(name, pa.string()) for name in (*key, "name")])
    return SinkTask("a1", "people", 1, "users", mode, key, schema, options=HttpOptions.model_validate(options or {}))


def sink_of(preset: str, server: HttpServer) -> HttpSink:
    return HttpSink(HttpSettings.model_validate({"preset": preset, "url": server.url, "auth": AUTH}))


class TestKeys:
    @pytest.mark.parametrize("mode", [Mode.UPSERT, Mode.MIRROR, Mode.INSERT_ONLY])
    @pytest.mark.parametrize(("preset", "key"), KEYS.items())
    def test_a_preset_that_knows_one_key_field_refuses_two_before_anything_is_sent(
        self, preset: str, key: str, mode: Mode, server: HttpServer
    ) -> None:
        task = task_of(key, "brand", mode=mode)
        sink = sink_of(preset, server)
        with pytest.raises(ConfigurationError, match=rf"found key fields {key}, brand; expected one.*Next: \w+"):
            sink.validate(task)
        with pytest.raises(DestinationError):
            sink.open(task)
        assert server.connections == 0

    @pytest.mark.parametrize("preset", ["braze", "iterable"])
    def test_a_key_of_another_name_is_not_taken_for_the_users_id(self, preset: str, server: HttpServer) -> None:
        with pytest.raises(ConfigurationError, match=f"found key fields email; expected one, {KEYS[preset]}"):
            sink_of(preset, server).validate(task_of("email", mode=Mode.MIRROR))

    @pytest.mark.parametrize(("preset", "key"), KEYS.items())
    def test_the_key_of_its_documentation_is_accepted(self, preset: str, key: str, server: HttpServer) -> None:
        sink_of(preset, server).validate(task_of(key))

    def test_a_sync_with_requests_of_its_own_may_have_another_key(self, server: HttpServer) -> None:
        own = {"key": None, "upsert": {"body_template": None, "path": "users/track"}}
        sink_of("braze", server).validate(task_of("email", "brand", options=own))

    def test_a_user_may_say_it_too(self, server: HttpServer) -> None:
        sink = HttpSink(HttpSettings.model_validate({"url": server.url}))
        sink.validate(task_of("a", options={"key": "a"}))
        sink.validate(task_of("b", options={"key": "*"}))
        for key, wanted in ((("b",), "a"), (("a", "b"), "a"), (("a", "b"), "*")):
            with pytest.raises(ConfigurationError, match=f"found key fields {', '.join(key)}; expected one"):
                sink.validate(task_of(*key, options={"key": wanted}))


@pytest.mark.parametrize("preset", ["braze", "hubspot", "iterable", "salesforce"])
def test_inserts_and_updates_of_one_batch_share_one_request(preset: str, server: HttpServer) -> None:
    key = KEYS[preset]
    rows = [("insert", {key: "k1", "name": "n1"}), ("update", {key: "k2", "name": "n2"})]
    send(server.url, task_of(key), *rows, preset=preset, auth=AUTH)
    (request,) = server.received
    assert b"n1" in request.body
    assert b"n2" in request.body


ANSWERS: dict[str, tuple[Any, Any]] = {  # one row delivered, one row refused
    "braze": ({"message": "success"}, {"message": "success", "errors": [{"index": 0}]}),
    "hubspot": (
        {"results": [{"objectWriteTraceId": "k1"}]},
        {"results": [], "errors": [{"context": {"objectWriteTraceId": ["k1"]}}]},
    ),
    "iterable": ({"failCount": 0}, {"failCount": 1}),
    "salesforce": ([{"success": True}], [{"success": False, "errors": []}]),
}


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (pa.bool_(), True, "true"),
        (pa.float64(), 1e-5, "0.00001"),
        (pa.float64(), 2.0, "2.0"),
        (pa.float64(), 12345678901.5, "1.23456789015e+10"),
        (pa.float64(), 1e15, "1e+15"),
        (pa.int64(), 7, "7"),
    ],
)
def test_a_key_that_is_no_text_has_one_text_in_the_request_and_for_the_answer(
    kind: pa.DataType, key: object, text: str, server: HttpServer
) -> None:
    schema = pa.schema([("number", kind), ("name", pa.string())])
    task = SinkTask("a1", "people", 1, "contacts", Mode.UPSERT, ("number",), schema, options=HttpOptions())
    server.default = lambda request: json_reply({"results": request.json["inputs"]})
    assert send(server.url, task, ("insert", {"number": key, "name": "n"}), preset="hubspot", auth=AUTH).results == ()
    assert server.received[0].json["inputs"][0]["id"] == text


class TestOneByOne:
    @pytest.mark.parametrize("operation", ["insert", "update"])
    @pytest.mark.parametrize("preset", ANSWERS)
    def test_rows_of_a_preset_of_batches_may_go_one_by_one(
        self, preset: str, operation: str, server: HttpServer
    ) -> None:
        key = KEYS[preset]
        task = task_of(key, options={"batch": {"rows": 1}})
        sink_of(preset, server).validate(task)
        server.script(*(json_reply(answer) for answer in ANSWERS[preset]))
        for wanted in (DELIVERED, REJECTED):
            found = send(server.url, task, (operation, {key: "k1", "name": "n1"}), preset=preset, auth=AUTH)
            assert outcomes(found, 1) == [wanted]
        first, second = server.received
        assert first.body == second.body
        (one,) = first.json if isinstance(first.json, list) else next(v for v in first.json.values() if v)
        assert "n1" in str(one)

    @pytest.mark.guarantee("HTTP", "A 404 of an endpoint of batches is no proof of a delete, also for a row alone")
    def test_a_404_of_an_endpoint_of_batches_deletes_no_row_that_goes_alone(self, server: HttpServer) -> None:
        server.default = json_reply({"message": "not found"}, 404)
        for preset in ("braze", "hubspot_records"):
            key = KEYS[preset]
            task = task_of(key, mode=Mode.MIRROR, options={"delete": {"rows": 1}})
            sink_of(preset, server).validate(task)
            found = send(server.url, task, ("delete", {key: "k1"}), preset=preset, auth=AUTH)
            assert outcomes(found, 1) == [REJECTED]

    def test_a_preset_of_single_rows_that_is_asked_for_batches_names_what_to_change(self, server: HttpServer) -> None:
        options = {"batch": {"rows": 5}, "update": None, "delete": None}
        task = task_of("id", mode=Mode.INSERT_ONLY, options=options)
        with pytest.raises(
            ConfigurationError, match=r"UndefinedError.*Next: leave key and rows as the preset has them"
        ):
            sink_of("jsonapi", server).validate(task)


def test_another_type_of_auth_replaces_that_of_the_preset() -> None:
    settings = HttpSettings.model_validate({"preset": "iterable", "auth": AUTH})
    assert settings.secret_headers() == {"Authorization": "Bearer t"}
    key = {"type": "api_key", "value": "v"}
    for auth in (key, {"value": "v"}):
        assert HttpSettings.model_validate({"preset": "iterable", "auth": auth}).secret_headers() == {"Api-Key": "v"}
