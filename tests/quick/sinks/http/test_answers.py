"""What the answer to a request means: only a positive statement delivers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.delivery.ports import Status
from dbt_reverse_etl.sinks.base import Mode, always
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.testing import batch_of, outcomes, person
from tests.support.delivery.desk import Desk
from tests.support.outcomes import DELIVERED, FATAL, NO_MATCH, REJECTED, RETRYABLE, UNKNOWN
from tests.support.servers.http import HttpServer, Received, Reply, http_server, json_reply
from tests.support.sinks.http_sending import BATCH, CANARY, inserts, one, send, sending, settings_of, task_of

_NOT_UNDERSTOOD = (203, 206, 207, 301, 302, 303, 307, 308, 600, 999)


class TestOutcomes:
    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        ("status", "alone", "together"),
        [
            *((status, DELIVERED, DELIVERED) for status in (200, 201, 202, 204)),
            *((status, UNKNOWN, UNKNOWN) for status in _NOT_UNDERSTOOD),
            (300, REJECTED, UNKNOWN),
            *((status, FATAL, FATAL) for status in (401, 403, 405, 407, 501)),
            *((status, REJECTED, REJECTED) for status in (400, 404, 409, 410, 413, 418, 422)),
            *((status, RETRYABLE, RETRYABLE) for status in (408, 423, 425, 429)),
            *((status, UNKNOWN, UNKNOWN) for status in (500, 502, 503, 504, 599)),
        ],
    )
    def test_a_status_is_one_outcome(self, status: int, alone: Outcome, together: Outcome) -> None:
        with http_server(Reply(status, headers={"Location": "/elsewhere"})) as server:
            single = send(server.url, task_of(), *inserts(1))
            batch = send(server.url, task_of(BATCH), *inserts(1, 2))
        assert outcomes(single, 1) == [alone]
        assert outcomes(batch, 2) == [together] * 2
        assert batch.refused_whole == (together is REJECTED)
        assert (single.stop is not None) == (status in _NOT_UNDERSTOOD)
        assert len(server.received) == 2
        assert all(str(status) in result.reason for result in (*single.results, *batch.results))

    @pytest.mark.guarantee(
        "HTTP", "A 503 without Retry-After, which a gateway may send after the write, leaves its rows in doubt"
    )
    def test_a_503_applied_nothing_only_where_the_destination_says_when_to_come_back(self, server: HttpServer) -> None:
        server.default = Reply(503)
        assert [one(server.url), one(server.url, task_of({"retryable": [503]}))] == [
            (UNKNOWN, "HTTP 503"), (RETRYABLE, "HTTP 503"),
        ]  # fmt: skip
        server.default = Reply(503, headers={"Retry-After": "1"})
        assert one(server.url)[0] is RETRYABLE

    def test_statuses_that_the_options_list_win_over_what_they_mean_elsewhere(self, server: HttpServer) -> None:
        for status in (403, 405, 423):
            server.default = Reply(status)
            assert send(server.url, task_of({"missing": [status]}), ("delete", {"id": 1})).results == ()
            once = {"insert": {"method": "POST", "path": "c"}, "already_exists": [status]}
            assert one(server.url, task_of(once, mode=Mode.INSERT_ONLY))[0] is DELIVERED
            assert one(server.url, task_of({"missing": [status], "already_exists": [status]}))[0] is not DELIVERED

    def test_a_path_that_the_options_except_proves_of_no_row_that_it_is_missing(self, server: HttpServer) -> None:
        server.default = json_reply({"code": "NOT_FOUND"}, 404)
        both = {"insert": {"method": "POST", "path": "c"}, "update": {"method": "PATCH", "path": "c/{id}"}}
        excepted = {"missing_except": "/7$"}
        codes = {"error": "code", "codes": {"NOT_FOUND": "no_match"}}
        no_proof = "HTTP 404: no proof that the row is missing, by missing_except"
        for operation, options, mode, usual, unproven in (
            ("delete", {}, Mode.MIRROR, DELIVERED, (REJECTED, no_proof)),
            ("delete", codes, Mode.MIRROR, DELIVERED, (NO_MATCH, "HTTP 404, code NOT_FOUND")),
            ("update", {"update": both["update"]}, Mode.UPDATE_ONLY, NO_MATCH, (REJECTED, no_proof)),
        ):
            task = task_of({**options, **excepted}, mode=mode)
            assert outcomes(send(server.url, task, (operation, person(1))), 1) == [usual]
            found = send(server.url, task, (operation, person(7)))
            assert [(row.outcome, row.reason) for row in found.results] == [unproven]
        asked = len(server.received)
        upsert = task_of({**both, **excepted}, mode=Mode.UPSERT)
        assert outcomes(send(server.url, upsert, ("update", person(7))), 1) == [REJECTED]
        assert len(server.received) == asked + 1  # it is not sent as an insert

    def test_an_answer_that_the_options_except_proves_of_no_row_that_it_is_missing(self, server: HttpServer) -> None:
        update = {"update": {"method": "PATCH", "path": "c/{id}"}}
        both = {"insert": {"method": "POST", "path": "c"}, **update}
        for operation, options, mode, usual in (
            ("delete", {}, Mode.MIRROR, DELIVERED),
            ("update", update, Mode.UPDATE_ONLY, NO_MATCH),
            ("update", both, Mode.UPSERT, DELIVERED),
        ):
            task = task_of({**options, "missing_except": "no such field"}, mode=mode)
            unreadable = Reply(404, b"no such row", {"Content-Encoding": "br"})
            for reply, outcome in (
                (json_reply({"message": "no such row"}, 404), usual),
                (json_reply({"message": "no such field"}, 404), REJECTED),
                (unreadable, REJECTED),
            ):
                server.script(reply)
                assert outcomes(send(server.url, task, (operation, person(1))), 1) == [outcome]

    def test_an_answer_that_the_options_except_proves_of_no_row_that_it_exists(self, server: HttpServer) -> None:
        insert = {"insert": {"method": "POST", "path": "c"}}
        both = {**insert, "update": {"method": "PATCH", "path": "c/{id}"}}
        no_proof = "HTTP 409: no proof that the row exists, by already_exists_except"
        for options, mode, reason in ((insert, Mode.INSERT_ONLY, no_proof), (both, Mode.UPSERT, "HTTP 409")):
            task = task_of({**options, "already_exists_except": "wrong type"}, mode=mode)
            for reply, outcome in (
                (json_reply({"message": "the id is taken"}, 409), DELIVERED),
                (json_reply({"message": "a wrong type"}, 409), REJECTED),
                (Reply(409, b"the id is taken", {"Content-Encoding": "br"}), REJECTED),
            ):
                server.script(reply)
                asked = len(server.received)
                found = send(server.url, task, ("insert", person(1)))
                assert outcomes(found, 1) == [outcome]
                assert [row.reason for row in found.results] == ([reason] if outcome is REJECTED else [])
                was_sent_instead = mode is Mode.UPSERT and outcome is DELIVERED
                assert len(server.received) == asked + (2 if was_sent_instead else 1)

    @pytest.mark.parametrize("name", ["missing_except", "already_exists_except"])
    def test_an_exception_that_is_no_regular_expression_is_refused(self, name: str) -> None:
        with pytest.raises(ValidationError, match=r"found '\('; expected a regular expression.*next: correct it"):
            HttpOptions.model_validate({name: "("})

    @pytest.mark.parametrize("listed", [{}, {"missing": [404], "already_exists": [409]}])
    def test_a_status_that_applied_nothing_by_the_options_delivers_nothing(
        self, listed: dict[str, Any], server: HttpServer
    ) -> None:
        both = {"insert": {"method": "POST", "path": "c"}, "update": {"method": "PATCH", "path": "c/{id}"}}
        for operation, status, mode in (
            ("delete", 404, Mode.MIRROR), ("insert", 409, Mode.INSERT_ONLY),
            ("insert", 409, Mode.UPSERT), ("update", 404, Mode.UPSERT),
        ):  # fmt: skip
            server.script(Reply(status))
            calls = {"delete": {}, "insert": {"insert": both["insert"]}}.get(operation, both)
            calls = both if mode is Mode.UPSERT else calls
            task = task_of({**calls, **listed, "retryable": [status]}, mode=mode)
            assert outcomes(send(server.url, task, (operation, person(1))), 1) == [RETRYABLE]
        assert len(server.received) == 4

    @pytest.mark.guarantee("HTTP")
    def test_a_redirect_is_never_followed_and_its_target_sees_no_byte(self, server: HttpServer) -> None:
        with http_server() as target:
            for status in (301, 302, 303, 307, 308):
                server.default = Reply(status, headers={"Location": target.url + "/x"})
                assert one(server.url, auth={"type": "api_key", "header": "X-Api-Key", "value": CANARY})[0] is UNKNOWN
            assert target.connections == 0
        assert len(server.received) == 5

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        "reply",
        [Reply(303, headers={"Location": "/people"}), Reply(201, b"<html>", {"Content-Type": "text/html"})],
        ids=["redirect", "web page"],
    )
    def test_a_row_that_was_stored_before_a_redirect_or_a_web_page_is_deleted_when_the_model_drops_it(
        self, reply: Reply, server: HttpServer
    ) -> None:
        stored: dict[str, bytes] = {}

        def api(request: Received) -> Reply:
            stored[request.path] = request.body
            if request.method == "DELETE":
                del stored[request.path]
            return Reply(204)

        desk, server.default = Desk(), api
        desk.sink = HttpSink(settings_of(server.url))  # type: ignore[assignment]
        desk.push({"k1": 1})
        server.default = lambda request: api(request) and reply
        assert desk.push({"k1": 1, "k2": 2}).status == Status.FAILED
        assert list(stored) == ["/object/k1", "/object/k2"]
        server.default = api
        assert desk.push({"k1": 1}).counts.delivered.delete == 1
        assert list(stored) == ["/object/k1"]

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

    def test_update_only_without_a_match_says_so_and_rejects_nothing(self, server: HttpServer) -> None:
        server.default = Reply(404)
        task = task_of({"update": {"method": "PATCH", "path": "c/{id}"}}, mode=Mode.UPDATE_ONLY)
        assert one(server.url, task) == (NO_MATCH, "HTTP 404: no match")

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

    @pytest.mark.guarantee("HTTP", "A web page with status 404 deletes nothing, and says of no row that it is missing")
    @pytest.mark.parametrize("status", [404, 410, 409])
    def test_a_web_page_tells_nothing_of_a_row(self, status: int, server: HttpServer) -> None:
        server.default = Reply(status, b"<html>", {"Content-Type": "text/html; charset=utf-8"})
        update_only = task_of({"update": {"method": "PATCH", "path": "c/{id}"}}, mode=Mode.UPDATE_ONLY)
        insert_only = task_of({"insert": {"method": "POST", "path": "c"}}, mode=Mode.INSERT_ONLY)
        apart = task_of({"insert": {"method": "POST", "path": "c"}, "update": {"method": "PATCH", "path": "c/{id}"}})
        page = f"HTTP {status}, but a web page (a wrong path or a proxy?)"
        for task, operation in (
            (task_of(), "delete"), (update_only, "update"), (insert_only, "insert"), (apart, "insert"), (apart, "update"),
        ):  # fmt: skip
            found = send(server.url, task, (operation, person(1)))
            assert [(row.outcome, row.reason) for row in found.results] == [(FATAL, page)]
        assert len(server.received) == 5

    def test_a_user_whose_api_writes_html_can_say_so(self, server: HttpServer) -> None:
        task = task_of({"web_pages": True})
        page = {"Content-Type": "text/html"}
        for reply in (Reply(404, b"<html>", page), Reply(204), Reply(200, b"<html>", page), json_reply({"ok": True})):
            server.default = reply
            assert send(server.url, task, ("delete", {"id": 1})).results == ()

    @pytest.mark.parametrize("status", [200, 201, 204, 205])
    def test_a_success_without_a_body_is_no_web_page_whatever_its_content_type(
        self, status: int, server: HttpServer
    ) -> None:
        page = {"Content-Type": "text/html; charset=utf-8"}
        options = {"success": {"status": [status]}}
        for more in ({}, {"error": "code"}):  # the body is wanted, or not
            server.default = Reply(status, b"", page)
            assert send(server.url, task_of({**options, **more}), *inserts(1)).results == ()
            for body in (b"", b"<html>"):  # that something is missing is no success
                server.default = Reply(404, body, page)
                assert outcomes(send(server.url, task_of(more), ("delete", {"id": 1})), 1) == [FATAL]

    def test_a_web_page_stops_a_batch_before_each_row_is_asked_for(self, server: HttpServer) -> None:
        server.default = Reply(404, b"<html>", {"Content-Type": "text/html"})
        assert outcomes(send(server.url, task_of(BATCH), *inserts(1, 2)), 2) == [FATAL] * 2

    def test_the_other_request_of_an_upsert_waits_for_the_budget_and_is_not_made_after_a_stop(
        self, server: HttpServer
    ) -> None:
        task = task_of({"insert": {"method": "POST", "path": "c"}, "update": {"method": "PATCH", "path": "c/{id}"}})
        with sending(server.url, task) as sink:
            batch = batch_of(task, inserts(1))
            for goes_on, outcome, methods in ((True, DELIVERED, ["POST", "PATCH"]), (False, RETRYABLE, ["POST"])):
                server.script(Reply(409), Reply(204))
                before = len(server.received)
                delivery = sink.deliver(replace(batch, go_on=lambda goes_on=goes_on: goes_on))
                assert outcomes(delivery, 1) == [outcome]
                assert [request.method for request in server.received[before:]] == methods

    @pytest.mark.parametrize("status", [400, 413, 422])
    def test_a_web_page_of_a_refusal_is_one(self, status: int, server: HttpServer) -> None:
        server.default = Reply(status, b"<html>", {"Content-Type": "text/html"})
        assert one(server.url)[0] is REJECTED

    @pytest.mark.guarantee("HTTP")
    def test_every_request_of_a_batch_waits_for_the_budget_and_after_no_answer_or_a_stop_no_other_is_made(
        self, server: HttpServer
    ) -> None:
        options = {**BATCH, "delete": {"method": "DELETE", "path": "contacts/{id}", "rows": 1}}
        asked: list[int] = []

        def deletes(go_on: Callable[[], bool], **more: Any) -> tuple[list[Outcome], int]:
            before = len(server.received)
            with sending(server.url, task_of(options), **more) as sink:
                batch = batch_of(task_of(options), [("delete", {"id": number}) for number in range(4)])
                found = outcomes(sink.deliver(replace(batch, go_on=go_on)), 4)
            return found, len(server.received) - before

        assert deletes(lambda: not asked.append(len(server.received))) == ([DELIVERED] * 4, 4)
        assert asked == [1, 2, 3]
        answers = iter([True, False])
        assert deletes(lambda: next(answers)) == ([DELIVERED, DELIVERED, RETRYABLE, RETRYABLE], 2)
        server.script(Reply(204), Reply(delay=5))
        assert deletes(always, timeout={"read": 0.2}) == ([DELIVERED, UNKNOWN, RETRYABLE, RETRYABLE], 2)
        server.script(Reply(204), Reply(500))
        assert deletes(always) == ([DELIVERED, UNKNOWN, DELIVERED, DELIVERED], 4)


class TestAcknowledgement:
    OK: ClassVar = {"success": {"json": {"path": "data.items[0].ok", "equals": True}}, "error": "error.code"}

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        ("reply", "outcome"),
        [
            (json_reply({"data": {"items": [{"ok": True}]}}), DELIVERED),
            (
                Reply(200, b'\xef\xbb\xbf{"data": {"items": [{"ok": true}]}}', {"Content-Type": "application/json"}),
                DELIVERED,
            ),
            (json_reply({"data": {"items": [{"ok": 1}]}}), UNKNOWN),
            (json_reply({"data": {"items": [{"ok": "true"}]}}), UNKNOWN),
            (json_reply({"data": {"items": []}}), UNKNOWN),
            (json_reply([]), UNKNOWN),
            (Reply(200, b"", {"Content-Type": "application/json"}), UNKNOWN),
            (Reply(200, b'{"data": NaN}', {"Content-Type": "application/json"}), UNKNOWN),
            (Reply(200, b'{"data": {"items": [{"ok": true}]}}', {"Content-Type": "text/plain"}), UNKNOWN),
            (Reply(200, b'{"data": {"items": [{"ok": true}]}}'), UNKNOWN),
            (Reply(200, b"<html>Log in</html>", {"Content-Type": "text/html; charset=utf-8"}), UNKNOWN),
        ],
    )
    def test_only_the_configured_statement_acknowledges(
        self, reply: Reply, outcome: Outcome, server: HttpServer
    ) -> None:
        server.default = reply
        delivery = send(server.url, task_of(self.OK), *inserts(1))
        assert outcomes(delivery, 1) == [outcome]
        assert (delivery.stop is not None) == (outcome is UNKNOWN)

    @pytest.mark.guarantee("HTTP", "A web page with status 200, such as a login, delivers nothing")
    @pytest.mark.parametrize(
        "came",
        [
            "Text/HTML",
            "text/html\r\nContent-Type: text/html",  # where a gateway adds its own
            "application/json; charset=utf-8\r\nContent-Type: text/html; charset=utf-8",
            "text/html; charset=utf-8, application/json",
            'application/json; profile="a,b;c", text/html',
        ],
    )
    def test_a_web_page_is_no_acknowledgement_even_without_conditions(self, came: str, server: HttpServer) -> None:
        server.default = Reply(404, b"<html>", {"Content-Type": came})
        assert outcomes(send(server.url, task_of(), ("delete", {"id": 1})), 1) == [FATAL]
        server.default = Reply(200, b"<html>", {"Content-Type": came})
        assert one(server.url) == (UNKNOWN, "HTTP 200, but a web page (a login or a proxy?)")
        assert one(server.url, task_of({"success": {"content_type": "text/html"}}))[0] is DELIVERED

    @pytest.mark.parametrize(
        ("content_type", "came", "outcome"),
        [
            ("Application/JSON; charset=utf-8", "application/json", DELIVERED),
            ("application/json", "application/json; charset=utf-8", DELIVERED),
            (None, "application/json\r\nContent-Type: application/json; charset=utf-8", DELIVERED),
            (None, "application/json,", DELIVERED),
            (None, 'application/json; profile="a, text/html"', DELIVERED),
            (None, "application/json, text/plain", UNKNOWN),
            ("application/json; charset=utf-8", "text/plain", UNKNOWN),
            (None, "text/plain", UNKNOWN),
            (None, "", UNKNOWN),
            ("", "text/plain", DELIVERED),
            ("", "", DELIVERED),
        ],
    )
    def test_a_content_type_counts_without_parameters_and_an_empty_one_for_any(
        self, content_type: str | None, came: str, outcome: Outcome, server: HttpServer
    ) -> None:
        server.default = Reply(200, b'{"ok": true}', {"Content-Type": came} if came else {})
        named = {} if content_type is None else {"content_type": content_type}
        success = {"json": {"path": "ok", "equals": True}, **named}
        assert one(server.url, task_of({"success": success}))[0] is outcome

    @pytest.mark.parametrize("code", ["E_CODE", "limit.reached", 4711])
    def test_a_reason_names_status_and_code(self, code: Any, server: HttpServer) -> None:
        server.default = json_reply({"error": {"code": code, "message": CANARY}}, 422)
        assert one(server.url, task_of({"error": "error.code"})) == (REJECTED, f"HTTP 422, code {code}")
        assert one(server.url) == (REJECTED, "HTTP 422")

    def test_a_code_after_a_byte_order_mark_is_read(self, server: HttpServer) -> None:
        server.default = Reply(422, b'\xef\xbb\xbf{"code": "E1"}', {"Content-Type": "application/json"})
        assert one(server.url, task_of({"error": "code"})) == (REJECTED, "HTTP 422, code E1")

    @pytest.mark.parametrize("text", ["Ada", f"no such mail: {CANARY}", "a@b.example", "x" * 65, True, None, {"a": 1}])
    def test_a_message_where_a_code_should_be_is_not_shown(self, text: Any, server: HttpServer) -> None:
        server.default = json_reply({"error": {"code": text}}, 422)
        reason = one(server.url, task_of({"error": "error.code"}))[1]
        assert reason in ("HTTP 422", "HTTP 422, code Ada")

    @pytest.mark.parametrize("code", ["Member Exists", "https://api.example/problems/locked", "_locked", 1487390])
    def test_a_code_that_the_options_name_may_look_like_anything(self, code: Any, server: HttpServer) -> None:
        server.default = json_reply({"title": code}, 400)
        assert one(server.url, task_of({"error": "title"})) == (REJECTED, "HTTP 400")
        named = task_of({"error": "title", "codes": {str(code): "retryable"}})
        assert one(server.url, named) == (RETRYABLE, f"HTTP 400, code {code}")

    def test_a_code_says_why_an_answer_with_status_200_acknowledges_nothing(self, server: HttpServer) -> None:
        ok = {"success": {"json": {"path": "success", "equals": True}}}
        codes = {"error": "errors[0].code", "codes": {"606": "retryable", "601": "fatal", "1006": "rejected"}}
        results = {"results": {"path": "result", "ok": {"path": "status", "equals": "updated"}}}
        document = {"requestId": "e42b", "success": False}
        for options in ({**ok, **codes}, {**ok, **codes, **results}, {**codes, **results}):
            for code, outcome in (("606", RETRYABLE), ("601", FATAL), ("1006", REJECTED), ("1003", UNKNOWN)):
                server.default = json_reply({**document, "errors": [{"code": code}]}, **{"Retry-After": "7"})
                found = send(server.url, task_of({**BATCH, **options}), *inserts(1, 2))
                assert outcomes(found, 2) == [outcome] * 2
                assert found.retry_after == (7 if outcome is RETRYABLE else None)
                assert (found.stop is not None) == (outcome is UNKNOWN)


class TestOtherWay:
    """An upsert whose first request says that the row exists, or that it does not."""

    OPTIONS: ClassVar[dict[str, Any]] = {
        "insert": {"method": "POST", "path": "contacts"},
        "update": {"method": "PATCH", "path": "contacts/{id}"},
    }

    @pytest.mark.parametrize(("operation", "status", "methods"), [
        ("insert", 409, ["POST", "PATCH"]), ("update", 404, ["PATCH", "POST"]), ("update", 410, ["PATCH", "POST"]),
        ("insert", 404, ["POST"]), ("update", 409, ["PATCH"]),
    ])  # fmt: skip
    def test_it_is_sent_the_other_way_once_with_an_id_of_its_own(
        self, operation: str, status: int, methods: list[str], server: HttpServer
    ) -> None:
        server.script(Reply(status))
        delivery = send(server.url, task_of(self.OPTIONS, mode=Mode.UPSERT), (operation, person(7)))
        assert [request.method for request in server.received] == methods
        assert (delivery.results == ()) == (len(methods) == 2)
        assert len({request.headers["idempotency-key"] for request in server.received}) == len(methods)
        assert all(request.json == person(7) for request in server.received)

    def test_a_code_with_a_meaning_of_its_own_is_no_reason_to_send_it_the_other_way(self, server: HttpServer) -> None:
        codes = {"error": "code", "codes": {"TENANT_GONE": "fatal", "IN_USE": "retryable", "NOT_FOUND": "no_match"}}
        for operation, status, code, outcome in (
            ("update", 404, "TENANT_GONE", FATAL), ("insert", 409, "IN_USE", RETRYABLE),
            ("update", 404, "NOT_FOUND", DELIVERED), ("update", 404, "OTHER", DELIVERED),
            ("delete", 404, "NOT_FOUND", DELIVERED), ("delete", 404, "TENANT_GONE", FATAL),
        ):  # fmt: skip
            server.script(json_reply({"code": code}, status))
            before = len(server.received)
            options = {**self.OPTIONS, "delete": {"method": "DELETE", "path": "contacts/{id}"}, **codes}
            found = send(server.url, task_of(options), (operation, person(7)))
            assert outcomes(found, 1) == [outcome], (operation, code)
            is_sent_twice = operation != "delete" and outcome is DELIVERED
            assert len(server.received) - before == 1 + is_sent_twice

    def test_a_row_that_exists_and_does_not_is_rejected_and_not_sent_for_ever(self, server: HttpServer) -> None:
        server.default = lambda request: Reply(409 if request.method == "POST" else 404)
        delivery = send(server.url, task_of(self.OPTIONS, mode=Mode.UPSERT), *inserts(7))
        assert [result.outcome for result in delivery.results] == [REJECTED]
        assert len(server.received) == 2
