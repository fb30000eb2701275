"""Each preset against a local server that answers as the public documentation of the API says; not the live service."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
import yaml
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import ConfigurationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.preset import DIRECTORY, load_preset, merged, preset_names
from dbt_reverse_etl.sinks.http.settings import HttpSettings
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.testing import batch_of, outcomes
from tests.support.outcomes import DELIVERED, FATAL, REJECTED, RETRYABLE, UNKNOWN
from tests.support.servers.http import HttpServer, Received, Reply, json_reply
from tests.support.sinks.http_presets import BEARER, TOKEN, Preset, task_of


class TestSalesforce:
    @pytest.fixture
    def salesforce(self, server: HttpServer) -> Preset:
        return Preset("salesforce", server, task_of("Contact", "Ext__c"), BEARER)

    @staticmethod
    def api(*refused: tuple[str, str]) -> Callable[[Received], Reply]:
        """sObject collections: 200 with one result for each record, in order."""

        def entry(record: dict[str, Any]) -> dict[str, Any]:
            codes = [code for key, code in refused if key == record["Ext__c"]]
            if not codes:
                return {"id": "003xx", "success": True, "errors": [], "created": True}
            return {"success": False, "errors": [{"statusCode": codes[0], "message": "n2", "fields": []}]}

        return lambda request: json_reply([entry(record) for record in request.json["records"]])

    def test_records_are_upserted_by_external_id_and_each_on_its_own(self, salesforce: Preset) -> None:
        assert salesforce.send(self.api(), 1, 2)[0] == [DELIVERED] * 2
        (request,) = salesforce.server.received
        assert (request.method, request.path) == ("PATCH", "/services/data/v62.0/composite/sobjects/Contact/Ext__c")
        assert request.json == {
            "allOrNone": False, "records": [salesforce.row(n) | {"attributes": {"type": "Contact"}} for n in (1, 2)],
        }  # fmt: skip
        assert salesforce.sink.limits(salesforce.task).rows == 200

    def test_an_invalid_record_is_rejected_and_a_locked_one_is_sent_again(self, salesforce: Preset) -> None:
        refused = ("k2", "REQUIRED_FIELD_MISSING"), ("k3", "UNABLE_TO_LOCK_ROW")
        found, delivery = salesforce.send(self.api(*refused), 1, 2, 3)
        assert found == [DELIVERED, REJECTED, RETRYABLE]
        assert delivery.results[0].reason == "HTTP 200, refused in results, code REQUIRED_FIELD_MISSING"

    @pytest.mark.parametrize(
        ("status", "code", "outcome"),
        [
            (403, "REQUEST_LIMIT_EXCEEDED", RETRYABLE),
            (403, "INSUFFICIENT_ACCESS", FATAL),
            (401, "INVALID_SESSION_ID", FATAL),
            (400, "JSON_PARSER_ERROR", REJECTED),
            (503, "SERVER_UNAVAILABLE", RETRYABLE),
        ],
    )
    def test_a_whole_refusal_is_judged_by_its_code(
        self, status: int, code: str, outcome: Outcome, salesforce: Preset
    ) -> None:
        found, delivery = salesforce.send(json_reply([{"errorCode": code, "message": "n1"}], status), 1, 2)
        assert found == [outcome] * 2
        assert delivery.results[0].reason == f"HTTP {status}, code {code}"

    def test_records_are_deleted_one_by_one_by_external_id_and_one_that_is_gone_is_deleted(
        self, salesforce: Preset
    ) -> None:
        salesforce.server.script(Reply(204), json_reply([{"errorCode": "NOT_FOUND"}], 404))
        assert salesforce.send(Reply(500), 1, 2, operation="delete")[0] == [DELIVERED] * 2
        assert [(request.method, request.path) for request in salesforce.server.received] == [
            ("DELETE", f"/services/data/v62.0/sobjects/Contact/Ext__c/k{number}") for number in (1, 2)
        ]  # fmt: skip

    @pytest.mark.guarantee("HTTP", "Salesforce's 404 for an id that ends in .inc is no proof of a delete")
    @pytest.mark.parametrize("page", [False, True])
    @pytest.mark.parametrize(
        ("id_", "proves"),
        [
            ("ada@example.inc", False), ("Ada@EXAMPLE.INC", False), ("ada@example.com", True), ("inc", True), ("a.inc/b", True),
        ],
    )  # fmt: skip
    def test_a_404_for_an_id_that_ends_in_inc_refuses_its_row_alone(
        self, id_: str, proves: bool, page: bool, salesforce: Preset
    ) -> None:
        path = f"/services/data/v62.0/sobjects/Contact/Ext__c/{quote(id_, safe='')}"
        lost = (
            Reply(404, b"<html>", {"Content-Type": "text/html"})
            if page
            else json_reply([{"errorCode": "NOT_FOUND"}], 404)
        )
        server, task = salesforce.server, salesforce.task
        server.default = lambda request: lost if request.path == path else Reply(204)
        keys = ("k1", id_, "k2")
        salesforce.sink.open(task)
        delivery = salesforce.sink.deliver(batch_of(task, [("delete", {"Ext__c": key}) for key in keys]))
        if proves and page:  # a wrong path or a proxy
            assert outcomes(delivery, 3)[1] is FATAL
            return
        assert outcomes(delivery, 3) == [DELIVERED, DELIVERED if proves else REJECTED, DELIVERED]
        if not proves:
            assert delivery.results[0].reason.endswith("no proof that the row is missing, by missing_except")
            assert id_ not in repr(delivery)

    @pytest.mark.guarantee("HTTP", "Salesforce's 410 for a retired version of its API is no proof of a delete")
    def test_a_410_of_a_retired_version_deletes_nothing(self, salesforce: Preset) -> None:
        retired = json_reply([{"message": "n1", "errorCode": "UNSUPPORTED_API_VERSION"}], 410)
        found, delivery = salesforce.send(retired, 1, operation="delete")
        assert (found, delivery.results[0].reason) == ([REJECTED], "HTTP 410, code UNSUPPORTED_API_VERSION")

    def test_a_request_has_time_for_the_triggers_of_200_records(self, salesforce: Preset) -> None:
        timeout = salesforce.sink._settings.timeout
        assert (timeout.connect, timeout.read) == (10, 120)

    @pytest.mark.guarantee("HTTP", "Salesforce's 404 for a key field that its user may not see is no proof of a delete")
    def test_a_404_for_a_field_that_the_user_may_not_see_deletes_nothing(self, salesforce: Preset) -> None:
        hidden = "Provided external ID field does not exist or is not accessible: Ext__c"
        lost = json_reply([{"message": hidden, "errorCode": "NOT_FOUND"}], 404)
        found, delivery = salesforce.send(lost, 1, 2, operation="delete")
        assert found == [REJECTED] * 2
        assert delivery.results[0].reason.startswith("HTTP 404, code NOT_FOUND: no proof that the row is missing")
        gone = json_reply([{"message": "The requested resource does not exist", "errorCode": "NOT_FOUND"}], 404)
        assert salesforce.send(gone, 1, operation="delete")[0] == [DELIVERED]

    def test_an_id_that_ends_like_a_file_is_deleted_where_salesforce_serves_it(self, salesforce: Preset) -> None:
        salesforce.server.default = Reply(204)
        salesforce.sink.open(salesforce.task)
        batch = batch_of(salesforce.task, [("delete", {"Ext__c": "ada@example.com"})])
        assert salesforce.sink.deliver(batch).results == ()


class TestBraze:
    @pytest.fixture
    def braze(self, server: HttpServer) -> Preset:
        return Preset("braze", server, task_of("users", "external_id"), {"token": TOKEN})

    def test_attributes_are_tracked_and_75_go_into_a_request(self, braze: Preset) -> None:
        answer = json_reply({"message": "success", "attributes_processed": 2}, 201)
        assert braze.send(answer, 1, 2)[0] == [DELIVERED] * 2
        (request,) = braze.server.received
        assert (request.method, request.path) == ("POST", "/users/track")
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        assert request.json == {"attributes": [braze.row(1), braze.row(2)]}
        assert braze.sink.limits(braze.task).rows == 75

    def test_what_is_queued_during_maintenance_is_delivered(self, braze: Preset) -> None:
        assert braze.send(json_reply({"message": "queued"}, 202), 1, 2)[0] == [DELIVERED] * 2

    def test_ids_that_are_numbers_are_texts(self, server: HttpServer) -> None:
        schema = pa.schema([("external_id", pa.int64()), ("name", pa.string())])
        task = SinkTask("a1", "people", 1, "users", Mode.MIRROR, ("external_id",), schema, options=HttpOptions())
        braze = Preset("braze", server, task, {"token": TOKEN})
        server.default = json_reply({"message": "success"})
        braze.sink.open(task)
        batch = batch_of(task, [("insert", {"external_id": 7, "name": "x"}), ("delete", {"external_id": 8})])
        assert outcomes(braze.sink.deliver(batch), 2) == [DELIVERED] * 2
        braze.sink.close()
        assert sorted((request.json for request in server.received), key=len) == [
            {"external_ids": ["8"]},
            {"attributes": [{"external_id": "7", "name": "x"}]},
        ]

    def test_an_error_in_a_201_rejects_the_object_that_it_names(self, braze: Preset) -> None:
        errors = [{"type": "'external_id' is required", "input_array": "attributes", "index": 1}]
        answer = json_reply({"message": "success", "attributes_processed": 2, "errors": errors}, 201)
        assert braze.send(answer, 1, 2, 3)[0] == [DELIVERED, REJECTED, DELIVERED]

    def test_a_minor_error_that_is_plain_text_is_looked_for_and_stops_nothing(self, braze: Preset) -> None:
        answer = json_reply({"message": "success", "errors": ["n1 is invalid"]}, 201)
        found, delivery = braze.send(answer, 1, 2)
        assert (found, delivery.refused_whole, delivery.stop) == ([REJECTED] * 2, True, None)
        found, delivery = braze.send(answer, 1)
        assert (found, delivery.stop) == ([REJECTED], None)
        assert delivery.results[0].reason == "HTTP 201, refused in results, code errors"

    def test_a_fatal_error_in_the_message_acknowledges_nothing(self, braze: Preset) -> None:
        found, delivery = braze.send(json_reply({"message": "Valid data must be provided"}, 201), 1, 2)
        assert found == [UNKNOWN] * 2
        assert delivery.stop is not None
        assert braze.send(json_reply({"message": "n1"}, 400), 1, 2)[0] == [REJECTED] * 2
        assert braze.send(json_reply({"message": "Invalid API key"}, 401), 1)[0] == [FATAL]

    def test_a_rate_limit_pauses_until_its_reset(self, braze: Preset) -> None:
        limited = json_reply({"message": "rate limit"}, 429, **{"X-RateLimit-Reset": "99999999999"})
        found, delivery = braze.send(limited, 1)
        assert found == [RETRYABLE]
        assert (delivery.retry_after or 0) > 10**9

    def test_users_are_deleted_50_at_a_time(self, braze: Preset) -> None:
        def answer(request: Received) -> Reply:
            return json_reply({"deleted": len(request.json["external_ids"])}, 200)

        assert braze.send(answer, *range(60), operation="delete")[0] == [DELIVERED] * 60
        assert [len(request.json["external_ids"]) for request in braze.server.received] == [50, 10]
        assert {request.path for request in braze.server.received} == {"/users/delete"}


class TestIterable:
    @pytest.fixture
    def iterable(self, server: HttpServer) -> Preset:
        return Preset("iterable", server, task_of("users", "userId"), {"value": TOKEN})

    @staticmethod
    def answer(**failed: list[str]) -> Reply:
        lists = {
            "invalidUserIds": [],
            "invalidDataUserIds": [],
            "notFoundUserIds": [],
            "forgottenUserIds": [],
            **failed,
        }
        count = sum(map(len, lists.values()))
        return json_reply(
            {"successCount": 9, "failCount": count, "failedUpdates": lists, "invalidUserIds": lists["invalidUserIds"]}
        )

    def test_users_are_updated_in_bulk(self, iterable: Preset) -> None:
        assert iterable.send(self.answer(), 1, 2)[0] == [DELIVERED] * 2
        (request,) = iterable.server.received
        assert (request.method, request.path) == ("POST", "/api/users/bulkUpdate")
        assert request.headers["api-key"] == TOKEN
        fields = {"name": "n2", "score": 2}
        assert request.json["users"][1] == {"userId": "k2", "preferUserId": True, "dataFields": fields}
        assert iterable.sink.limits(iterable.task).rows == 1000

    def test_users_in_the_lists_of_failures_are_rejected_alone(self, iterable: Preset) -> None:
        answer = self.answer(invalidUserIds=["k1"], forgottenUserIds=["k3"])
        found, delivery = iterable.send(answer, 1, 2, 3)
        assert found == [REJECTED, DELIVERED, REJECTED]
        assert [result.reason.rpartition(" ")[2] for result in delivery.results] == [
            "invalidUserIds",
            "forgottenUserIds",
        ]

    def test_of_refused_users_that_no_list_names_none_counts_as_delivered(self, iterable: Preset) -> None:
        def answer(count: object, *listed: str) -> Reply:
            lists = {"invalidUserIds": listed, "invalidEmails": ["n1"]}
            return json_reply({"failCount": count, "failedUpdates": lists})

        for count, listed in ((3, []), (2, ["k1"])):
            found, delivery = iterable.send(answer(count, *listed), 1, 2, 3)
            assert (found, delivery.refused_whole, delivery.stop) == ([REJECTED] * 3, True, None)
            assert delivery.maybe_applied == (0, 1, 2)
        assert iterable.send(answer(1), 1)[0] == [REJECTED]
        assert iterable.send(answer(0), 1, 2)[0] == [DELIVERED] * 2
        for wrong in (0, True, "1"):
            found, delivery = iterable.send(answer(wrong, "k1"), 1, 2)
            assert found == [UNKNOWN] * 2
            assert "results.refused_count is less than 1" in (delivery.stop or "")

    @pytest.mark.parametrize("document", [{}, [], {"successCount": 0}, {"code": "GenericError"}, {"failCount": None}])
    def test_an_answer_that_does_not_count_the_refused_acknowledges_nothing(
        self, document: Any, iterable: Preset
    ) -> None:
        found, delivery = iterable.send(json_reply(document), 1, 2)
        assert (found, delivery.stop is not None) == ([UNKNOWN] * 2, True)

    def test_a_rate_limit_is_retryable_and_a_bad_key_is_fatal(self, iterable: Preset) -> None:
        assert iterable.send(json_reply({"code": "RateLimitExceeded", "msg": "n1"}, 429), 1, 2)[0] == [RETRYABLE] * 2
        assert iterable.send(json_reply({"code": "BadApiKey"}, 401), 1)[0] == [FATAL]
        found, delivery = iterable.send(json_reply({"code": "InvalidJson", "msg": "n1"}, 400), 1, 2)
        assert (found, delivery.refused_whole) == ([REJECTED] * 2, True)

    def test_users_are_deleted_one_by_one(self, iterable: Preset) -> None:
        answer = json_reply({"msg": "", "code": "Success", "params": {}})
        assert iterable.send(answer, 1, 2, operation="delete")[0] == [DELIVERED] * 2
        assert [request.path for request in iterable.server.received] == [
            "/api/users/byUserId/k1",
            "/api/users/byUserId/k2",
        ]


class TestSlack:
    @pytest.fixture
    def slack(self, server: HttpServer) -> Preset:
        return Preset("slack", server, task_of("alerts", "channel", Mode.INSERT_ONLY), {"token": TOKEN})

    def test_a_row_is_one_message(self, slack: Preset) -> None:
        assert slack.send(json_reply({"ok": True, "channel": "k1", "ts": "1.2"}), 1)[0] == [DELIVERED]
        (request,) = slack.server.received
        assert (request.method, request.path) == ("POST", "/chat.postMessage")
        assert request.json == slack.row(1)
        assert request.headers["content-type"] == "application/json; charset=utf-8"

    @pytest.mark.parametrize(
        ("error", "status", "outcome"),
        [
            ("channel_not_found", 200, REJECTED),
            ("msg_too_long", 200, REJECTED),
            ("invalid_auth", 200, FATAL),
            ("missing_scope", 200, FATAL),
            ("internal_error", 200, UNKNOWN),
            ("fatal_error", 200, UNKNOWN),
            ("service_unavailable", 200, RETRYABLE),
            ("ratelimited", 429, RETRYABLE),
            ("ratelimited", 200, RETRYABLE),
        ],
    )
    def test_ok_false_in_a_200_is_what_its_error_says(
        self, error: str, status: int, outcome: Outcome, slack: Preset
    ) -> None:
        found, delivery = slack.send(json_reply({"ok": False, "error": error}, status, **{"Retry-After": "30"}), 1)
        assert found == [outcome]
        assert delivery.results[0].reason.endswith(f", code {error}")
        assert delivery.retry_after == (30 if outcome is RETRYABLE else None)


class TestJsonApi:
    @pytest.fixture
    def jsonapi(self, server: HttpServer) -> Preset:
        return Preset("jsonapi", server, task_of("people", "key"), BEARER)

    def test_resources_are_created_changed_and_deleted(self, jsonapi: Preset) -> None:
        stored: dict[str, Any] = {}

        def api(request: Received) -> Reply:
            assert "application/vnd.api+json" in (request.headers.get("content-type"), request.headers["accept"])
            if request.method == "DELETE":
                return Reply(204 if stored.pop(request.path, None) else 404)
            data = request.json["data"]
            there = f"/people/{data['id']}" in stored
            if there == (request.method == "POST"):
                return json_reply({"errors": [{"code": "conflict"}]}, 409 if there else 404)
            stored[f"/people/{data['id']}"] = data
            return Reply(201 if request.method == "POST" else 200)

        assert jsonapi.send(api, 1, 2)[0] == [DELIVERED] * 2
        assert jsonapi.send(api, 2, operation="update")[0] == [DELIVERED]
        assert jsonapi.send(api, 1, operation="insert")[0] == [DELIVERED]  # a repeat after a crash
        assert jsonapi.send(api, 3, operation="update")[0] == [DELIVERED]  # gone in the meantime
        assert jsonapi.send(api, 2, operation="delete")[0] == [DELIVERED]
        assert list(stored) == ["/people/k1", "/people/k3"]
        assert stored["/people/k1"] == {"type": "people", "id": "k1", "attributes": {"name": "n1", "score": 1}}

    @pytest.mark.guarantee("HTTP", "A 409 of JSON:API for a wrong type or another taken value is no proof of an insert")
    @pytest.mark.parametrize(
        ("pointer", "outcome"),
        [
            ("/data/id", DELIVERED), ("/data", DELIVERED), ("/data/attributes/id", DELIVERED), (None, DELIVERED),
            ("/data/type", REJECTED), ("/data/attributes/email", REJECTED), ("/data/relationships/team", REJECTED),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("escaped", [False, True])
    def test_a_409_proves_an_insert_unless_it_points_to_something_else_than_the_id(
        self, pointer: str | None, outcome: Outcome, escaped: bool, server: HttpServer
    ) -> None:
        source = {"source": {"pointer": pointer}} if pointer else {}
        body = json.dumps({"errors": [{"status": "409", "code": "conflict", **source}]})
        body = body.replace("/", "\\/") if escaped else body  # as PHP writes it
        reply = Reply(409, body.encode(), {"Content-Type": "application/vnd.api+json"})
        once = Preset("jsonapi", server, task_of("people", "key", Mode.INSERT_ONLY), BEARER)
        assert once.send(reply, 1)[0] == [outcome]

    @pytest.mark.parametrize("operation", ["insert", "update", "delete"])
    def test_what_is_not_yet_processed_is_not_delivered(self, operation: str, jsonapi: Preset) -> None:
        found, delivery = jsonapi.send(Reply(202), 1, operation=operation)
        assert (found, delivery.stop) == ([UNKNOWN], "HTTP 202 is not listed in success.status")

    def test_a_refusal_names_its_code(self, jsonapi: Preset) -> None:
        found, delivery = jsonapi.send(json_reply({"errors": [{"code": "VALIDATION", "detail": "n1"}]}, 422), 1)
        assert found == [REJECTED]
        assert delivery.results[0].reason == "HTTP 422, code VALIDATION"
        assert jsonapi.send(Reply(429, headers={"Retry-After": "5"}), 1)[1].retry_after == 5


class TestEveryPreset:
    def test_these_are_offered(self) -> None:
        assert preset_names() == ["braze", "hubspot", "hubspot_records", "iterable", "jsonapi", "salesforce", "slack"]

    def test_a_preset_is_nothing_but_data(self) -> None:
        assert {path.suffix for path in DIRECTORY.iterdir()} == {".yml", ".j2"}
        code = [path.read_text() for path in Path(DIRECTORY).parent.glob("http*.py")]
        assert not [name for name in preset_names() for text in code if name in text.lower()]
        for name in preset_names():
            assert set(yaml.safe_load((DIRECTORY / f"{name}.yml").read_text())) <= {"settings", "options"}

    @pytest.mark.parametrize("name", preset_names())
    def test_it_names_the_vendors_page_and_the_day_on_which_it_was_checked(self, name: str) -> None:
        head = [line for line in (DIRECTORY / f"{name}.yml").read_text().splitlines() if line.startswith("# ")]
        assert re.match(r"# https://\S+, (not )?checked", head[1]), head
        assert re.search(r"20\d\d-\d\d-\d\d", " ".join(head)), head

    @pytest.mark.parametrize("name", preset_names())
    def test_it_is_what_a_user_could_write(self, name: str, server: HttpServer) -> None:
        """The preset's own data as a user's settings and options give the same plan."""
        preset = load_preset(name)
        auth = {"type": "bearer", "token": TOKEN}
        by_hand = HttpSettings.model_validate(
            merged(preset["settings"], {"url": server.url, "auth": None}) | {"auth": auth}
        )
        by_name = HttpSettings.model_validate({"preset": name, "url": server.url} | {"auth": None})
        assert by_hand.model_dump(exclude={"auth", "preset"}) == by_name.model_dump(exclude={"auth", "preset"})
        options = HttpOptions.model_validate(dict(preset["options"]))
        key = "hs_object_id" if options.key in (None, "*") else options.key
        modes = {"slack": Mode.INSERT_ONLY, "hubspot": Mode.UPSERT}
        task = task_of("things", key, modes.get(name, Mode.MIRROR))
        assert HttpSink(by_name)._options(task) == options
        HttpSink(by_name).validate(task)

    @pytest.mark.parametrize("name", sorted({*preset_names()} - {"slack"}))
    def test_a_field_that_is_named_like_a_method_of_a_row_is_sent(self, name: str, server: HttpServer) -> None:
        """Nothing is delivered here: the answers are those of no API."""
        wanted = load_preset(name)["options"]["key"]
        names = ("items", "keys", "values", "get", "copy", "update")
        row = {"Ext__c" if wanted == "*" else wanted: "k1"} | {name: f"of {name}" for name in names}
        schema = pa.schema([(field, pa.string()) for field in row])
        task = SinkTask("a1", "p", 1, "things", Mode.UPSERT, (schema.names[0],), schema, options=HttpOptions())
        sink = HttpSink(HttpSettings.model_validate({"preset": name, "url": server.url, "auth": BEARER}))
        sink.validate(task)
        sink.open(task)
        sink.deliver(batch_of(task, [("insert", row)]))
        sink.close()
        assert all(f'"{one}":"of {one}"' in server.received[0].body.decode().replace(": ", ":") for one in names)

    @pytest.mark.parametrize(("mode", "operation"), [(Mode.UPSERT, "update"), (Mode.MIRROR, "delete")])
    def test_a_request_that_no_preset_names_is_never_made_up(self, mode: Mode, operation: str) -> None:
        sink = HttpSink(HttpSettings.model_validate({"preset": "slack", "auth": {"token": TOKEN}}))
        with pytest.raises(
            ConfigurationError, match=rf"options.{operation}: found no whole request, here or in"
        ) as raised:
            sink.validate(task_of("alerts", "channel", mode))
        assert "options.update.path, or take mode insert_only" in str(raised.value)
        assert "take mode upsert" not in str(raised.value)

    def test_ones_own_keys_win_over_the_preset_one_by_one(self) -> None:
        settings = HttpSettings.model_validate({"preset": "hubspot", "requests_per_second": 3, "auth": BEARER})
        assert (settings.requests_per_second, settings.concurrency) == (3, 4)
        sink = HttpSink(settings)
        own = {
            "batch": {"rows": 7},
            "upsert": {"headers": {"X-Team": "t"}},
            "delete": None,
            "success": {"status": [200]},
        }
        task = task_of("contacts", "email", Mode.UPSERT, own)
        options = sink._options(task)
        assert sink.limits(task).rows == 7
        assert options.upsert is not None
        assert (options.upsert.method, options.upsert.headers) == ("POST", {"X-Team": "t"})
        assert (options.delete, options.success.status) == (None, [200])

    def test_options_that_do_not_fit_the_preset_are_said_before_anything_is_sent(self) -> None:
        sink = HttpSink(HttpSettings.model_validate({"preset": "slack", "auth": {"token": TOKEN}}))
        task = task_of("alerts", "channel", Mode.INSERT_ONLY, {"results": {"ok": {"path": "ok", "in": [True]}}})
        assert sink.limits(task).rows == 1
        with pytest.raises(ConfigurationError, match=r"options.results.ok: found options that do not fit preset slack"):
            sink.validate(task)

    def test_an_unknown_preset_is_refused_with_the_known_ones(self) -> None:
        for name in ("nope", "../http", ""):
            with pytest.raises(ValidationError, match="expected one of braze, hubspot"):
                HttpSettings.model_validate({"preset": name, "url": "https://example.com"})
