"""The presets `hubspot` and `hubspot_records` against a local server that answers as HubSpot's documentation says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dbt_reverse_etl.base.errors import ConfigurationError, DestinationError
from dbt_reverse_etl.sinks.base import Mode
from tests.support.outcomes import DELIVERED, FATAL, NO_MATCH, REJECTED, RETRYABLE
from tests.support.servers.http import HttpServer, Received, Reply, json_reply
from tests.support.sinks.http_presets import BEARER, TOKEN, Preset, task_of


class TestHubspot:
    @pytest.fixture
    def hubspot(self, server: HttpServer) -> Preset:
        return Preset("hubspot", server, task_of("contacts", "email", Mode.UPSERT), BEARER)

    @staticmethod
    def api(*refused: str) -> Callable[[Received], Reply]:
        """Batch upsert: 200, or 207 with `errors` that name the trace id of their input."""

        def answer(request: Received) -> Reply:
            good = [one for one in request.json["inputs"] if one["id"] not in refused]
            results = [{"id": "9", "new": True, "objectWriteTraceId": one["objectWriteTraceId"]} for one in good]
            errors = [
                {"status": "error", "category": "VALIDATION_ERROR", "message": "Property values were not valid: n2",
                 "context": {"objectWriteTraceId": [key]}}
                for key in refused
            ]  # fmt: skip
            more = {"numErrors": len(errors), "errors": errors} if errors else {}
            return json_reply({"status": "COMPLETE", "results": results, **more}, 207 if errors else 200)

        return answer

    def test_contacts_are_upserted_in_batches_by_a_unique_property(self, hubspot: Preset) -> None:
        assert hubspot.send(self.api(), 1, 2)[0] == [DELIVERED] * 2
        (request,) = hubspot.server.received
        assert (request.method, request.path) == ("POST", "/crm/objects/2026-03/contacts/batch/upsert")
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        assert request.json["inputs"][0] == {
            "idProperty": "email", "id": "k1", "objectWriteTraceId": "k1", "properties": hubspot.row(1),
        }  # fmt: skip
        assert hubspot.sink.limits(hubspot.task).rows == 100

    def test_records_are_updated_in_update_only_and_one_that_is_gone_is_no_match(self, server: HttpServer) -> None:
        update_only = Preset("hubspot_records", server, task_of("contacts", "hs_object_id", Mode.UPDATE_ONLY), BEARER)
        assert update_only.send(json_reply({"id": "k1"}), 1, operation="update")[0] == [DELIVERED]
        assert [(one.method, one.path) for one in server.received] == [("PATCH", "/crm/objects/2026-03/contacts/k1")]
        gone = json_reply({"category": "OBJECT_NOT_FOUND"}, 404)
        assert update_only.send(gone, 1, operation="update")[0] == [NO_MATCH]
        upsert = Preset("hubspot_records", server, task_of("contacts", "hs_object_id", Mode.UPSERT), BEARER)
        assert upsert.send(gone, 1, operation="update")[0] == [REJECTED]
        assert len(server.received) == 3

    def test_a_null_clears_the_property_for_which_hubspot_wants_an_empty_text(
        self, hubspot: Preset, server: HttpServer
    ) -> None:
        assert hubspot.send(self.api(), 0, 1)[0] == [DELIVERED] * 2
        by_id = Preset("hubspot_records", server, task_of("contacts", "hs_object_id"), BEARER)
        assert by_id.send(json_reply({"id": "k0"}), 0)[0] == [DELIVERED]
        batch, alone = (request.json for request in server.received)
        assert batch["inputs"][0]["properties"] == {"email": "k0", "name": "", "score": 0}
        assert batch["inputs"][1]["properties"] == hubspot.row(1)
        assert alone["properties"] == {"name": "", "score": 0}

    @pytest.mark.parametrize("status", [423, 477])
    def test_a_lock_and_an_account_that_moves_are_waited_for(self, status: int, hubspot: Preset) -> None:
        found, delivery = hubspot.send(json_reply({"status": "error"}, status, **{"Retry-After": "3600"}), 1, 2)
        assert (found, delivery.refused_whole, delivery.retry_after) == ([RETRYABLE] * 2, False, 3600)

    def test_check_tries_the_token_with_a_request_that_changes_nothing(self, hubspot: Preset) -> None:
        hubspot.server.script(Reply(200), Reply(401))
        hubspot.sink.check()
        [request] = hubspot.server.received
        assert (request.method, request.path) == ("GET", "/account-info/2026-03/details")
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        with pytest.raises(DestinationError, match="HTTP 401"):
            hubspot.sink.check()
        assert hubspot.sink.rights(hubspot.task).untried == (
            "whether the API takes rows: only a request that writes tells it",
        )

    def test_a_207_rejects_the_refused_contact_alone(self, hubspot: Preset) -> None:
        found, delivery = hubspot.send(self.api("k2"), 1, 2, 3)
        assert found == [DELIVERED, REJECTED, DELIVERED]
        assert delivery.results[0].reason == "HTTP 207, refused in results, code VALIDATION_ERROR"

    @pytest.mark.parametrize(
        "context", [{}, {"context": {}}, {"context": None}, {"context": {"objectWriteTraceId": []}}]
    )
    def test_a_refusal_that_names_no_contact_is_looked_for_and_stops_nothing(
        self, context: dict[str, Any], hubspot: Preset
    ) -> None:
        def answer(request: Received) -> Reply:
            good = [{"objectWriteTraceId": one["id"]} for one in request.json["inputs"] if one["id"] != "k2"]
            errors = [{"category": "VALIDATION_ERROR", "message": "n2", **context}]
            return json_reply({"results": good, "numErrors": 1, "errors": errors}, 207)

        found, delivery = hubspot.send(answer, 1, 2, 3)
        assert (found, delivery.refused_whole, delivery.stop) == ([REJECTED] * 3, True, None)
        assert delivery.maybe_applied == (0, 1, 2)
        found, delivery = hubspot.send(answer, 2)
        assert (found, delivery.stop) == ([REJECTED], None)
        assert delivery.results[0].reason == "HTTP 207, refused in results, code VALIDATION_ERROR"

    def test_a_refusal_of_several_contacts_names_each(self, hubspot: Preset) -> None:
        errors = [{"category": "VALIDATION_ERROR", "context": {"objectWriteTraceId": ["k1", "k3"]}}]
        answer = json_reply({"results": [{"objectWriteTraceId": "k2"}], "numErrors": 2, "errors": errors}, 207)
        assert hubspot.send(answer, 1, 2, 3)[0] == [REJECTED, DELIVERED, REJECTED]

    def test_a_rate_limit_pauses_and_a_whole_refusal_applies_nothing(self, hubspot: Preset) -> None:
        limited = json_reply({"status": "error", "category": "RATE_LIMITS", "policyName": "TEN_SECONDLY_ROLLING"}, 429)
        assert hubspot.send(limited, 1, 2)[0] == [RETRYABLE] * 2
        whole = json_reply({"status": "error", "category": "VALIDATION_ERROR", "message": "n1"}, 400)
        found, delivery = hubspot.send(whole, 1, 2)
        assert (found, delivery.refused_whole, delivery.maybe_applied) == ([REJECTED] * 2, True, ())
        assert hubspot.send(json_reply({"category": "INVALID_AUTHENTICATION"}, 401), 1)[0] == [FATAL]

    def test_records_are_updated_and_archived_by_record_id_and_by_no_other_key(self, server: HttpServer) -> None:
        by_id = Preset("hubspot_records", server, task_of("contacts", "hs_object_id"), BEARER)
        assert by_id.send(Reply(204), 1, 2, operation="delete")[0] == [DELIVERED] * 2
        (request,) = server.received
        assert (request.method, request.path) == ("POST", "/crm/objects/2026-03/contacts/batch/archive")
        assert request.json == {"inputs": [{"id": "k1"}, {"id": "k2"}]}
        gone = json_reply({"status": "error", "category": "OBJECT_NOT_FOUND"}, 404)
        reply: Callable[[Received], Reply] = lambda one: gone if one.path.endswith("/k2") else json_reply({"id": "k"})  # noqa: E731
        found, delivery = by_id.send(reply, 1, 2, 3)
        assert found == [DELIVERED, REJECTED, DELIVERED]
        assert delivery.results[0].reason == "HTTP 404, code OBJECT_NOT_FOUND"
        first = server.received[1]
        assert (first.method, first.path) == ("PATCH", "/crm/objects/2026-03/contacts/k1")
        fields = {name: value for name, value in by_id.row(1).items() if name != "hs_object_id"}
        assert first.json == {"properties": fields}
        with pytest.raises(ConfigurationError, match="expected one, hs_object_id"):
            by_id.sink.validate(task_of("contacts", "email"))
        with pytest.raises(
            ConfigurationError,
            match=r"options\.delete: found no whole request, here or in preset hubspot.*or take mode upsert",
        ):
            Preset("hubspot", server, task_of("contacts", "email"), BEARER).sink.validate(task_of("contacts", "email"))
