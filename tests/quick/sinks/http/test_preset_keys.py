"""Which keys a preset can say, and that its upsert is one request."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.settings import HttpSettings
from dbt_reverse_etl.sinks.http.sink import HttpSink
from tests.support.servers.http import HttpServer
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


def test_another_type_of_auth_replaces_that_of_the_preset() -> None:
    settings = HttpSettings.model_validate({"preset": "iterable", "auth": AUTH})
    assert settings.secret_headers() == {"Authorization": "Bearer t"}
    key = {"type": "api_key", "value": "v"}
    for auth in (key, {"value": "v"}):
        assert HttpSettings.model_validate({"preset": "iterable", "auth": auth}).secret_headers() == {"Api-Key": "v"}
