"""Answers that speak of each row: every row gets its own outcome, and an answer of another shape none."""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dbt_reverse_etl.base.outcome import Delivery, Outcome
from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.http.answer import Answer, Sent, judge
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.testing import batch_of, outcomes, person
from tests.support.effort import scaled
from tests.support.outcomes import DELIVERED, FATAL, NO_MATCH, REJECTED, RETRYABLE, UNKNOWN
from tests.support.servers.http import HttpServer, Received, Reply, http_server, json_reply
from tests.support.sinks.http_sending import BATCH, CANARY, NOW, inserts, one, send, settings_of, task_of


class TestResults:
    OK: ClassVar = {"path": "status", "equals": "ok"}

    def send(self, server: HttpServer, document: Any, results: dict[str, Any], *numbers: int) -> Delivery:
        server.default = json_reply(document)
        options = {**BATCH, "results": {"path": "results", "ok": self.OK, "error": "code", **results}}
        return send(server.url, task_of(options), *inserts(*(numbers or (10, 20, 30))))

    @pytest.mark.guarantee("HTTP")
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

    @pytest.mark.guarantee("HTTP")
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

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize("missing", ["unknown", "delivered"])
    def test_an_id_that_the_api_spells_in_another_way_leaves_the_rows_without_an_entry_in_doubt_and_no_others(
        self, missing: str, server: HttpServer
    ) -> None:
        entries = [{"key": "010", "status": "ok"}, {"key": "20", "status": "ok"}, {"key": "30", "status": "bad"}]
        delivery = self.send(server, {"results": entries}, {"by": "id", "id": "key", "missing": missing})
        assert outcomes(delivery, 3) == [UNKNOWN, DELIVERED, REJECTED]
        assert delivery.stop is None
        assert "is the key spelled as the API keeps it?" in delivery.results[0].reason

    def test_rows_of_such_ids_that_are_sent_again_alone_do_not_stop_a_run_whose_other_ids_fit(
        self, server: HttpServer
    ) -> None:
        server.default = lambda request: json_reply(
            {"results": [{"key": f"{row['id']:03}" if row["id"] < 100 else row["id"]} for row in request.json]}
        )
        results = {"path": "results", "by": "id", "id": "key", "refused": [{"path": "errors", "at": "key"}]}
        task = task_of({**BATCH, "results": results})
        sink = HttpSink(settings_of(server.url))

        def sent(*numbers: int) -> tuple[list[Outcome], bool]:
            delivery = sink.deliver(batch_of(task, inserts(*numbers)))
            return outcomes(delivery, len(numbers)), delivery.stop is not None

        for _run in range(2):
            sink.open(task)
            assert sent(10) == ([UNKNOWN], False), "one row says nothing of the others"
            assert sent(10, 20) == ([UNKNOWN] * 2, True)
            assert sent(10, 200) == ([UNKNOWN, DELIVERED], False)
            assert sent(10, 20) == ([UNKNOWN] * 2, False)
        sink.close()

    @pytest.mark.guarantee("HTTP")
    @settings(max_examples=scaled(60), deadline=None)
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

    def test_an_operation_may_have_no_results_beside_those_of_the_sync(self, server: HttpServer) -> None:
        delete = {"method": "DELETE", "path": "contacts/{id}", "rows": 1, "success": {"status": [204]}}
        changes = [("delete", {"id": 1}), *inserts(2, 3)]
        for own, answered in (({"results": None}, [DELIVERED] * 3), ({}, [UNKNOWN, RETRYABLE, RETRYABLE])):
            server.script(Reply(204), json_reply([{"status": "ok"}] * 2))
            task = task_of({**BATCH, "results": {"path": "", "ok": self.OK}, "delete": {**delete, **own}})
            assert outcomes(send(server.url, task, *changes), 3) == answered

    def test_a_status_outside_2xx_needs_the_results_of_its_own_operation(self) -> None:
        results, success = {"ok": self.OK}, {"status": [200, 404]}
        request = {"method": "POST", "path": "c"}
        HttpOptions.model_validate({"insert": {**request, "success": success, "results": results}})
        for delete in ({"results": None}, {"results": None, "success": success}):
            both = {"results": results, "success": {"status": [200] if "success" in delete else [200, 404]}}
            with pytest.raises(ValidationError, match=r"found a success.status outside 2xx"):
                HttpOptions.model_validate({**both, "delete": delete})


class TestMultiStatus:
    RESULTS: ClassVar[dict[str, Any]] = {
        "path": "done", "by": "id", "id": "key", "refused": [{"path": "bad.list", "at": ""}, {"path": "worse", "at": "key", "error": "code"}],
    }  # fmt: skip

    def judged(self, document: Any, status: int = 207) -> Any:
        options = HttpOptions.model_validate({"results": self.RESULTS, "success": {"status": [200, 207]}})
        answer = Answer(status, "application/json", orjson.dumps(document))
        return judge(answer, Sent(4, tuple("abcd"), alone=False, results=options.results), options, Mode.UPSERT, NOW)

    @pytest.mark.guarantee("HTTP")
    @settings(max_examples=scaled(200), deadline=None)
    @given(st.lists(st.sampled_from(["done", "bad", "worse", "both", "none"]), min_size=4, max_size=4))
    def test_each_row_of_a_multi_status_has_its_own_outcome(self, kinds: list[str]) -> None:
        ids = dict(zip("abcd", kinds, strict=True))
        document: dict[str, Any] = {"done": [{"key": key} for key, kind in ids.items() if kind == "done"]}
        bad = [key for key, kind in ids.items() if kind in ("bad", "both")]
        worse = [{"key": key, "code": "E1", "text": CANARY} for key, kind in ids.items() if kind in ("worse", "both")]
        document |= {"bad": {"list": bad}} if bad else {}
        document["worse"] = worse or None
        delivery = self.judged(document)
        assert outcomes(delivery, 4) == [
            {"done": DELIVERED, "none": UNKNOWN}.get(kind, REJECTED) for kind in kinds
        ]  # fmt: skip
        assert CANARY not in repr(delivery)
        assert not delivery.refused_whole

    def test_a_list_of_refusals_may_name_an_id_that_was_not_sent_beside_others(self) -> None:
        delivery = self.judged({"done": [{"key": "b"}], "worse": [{"key": ["a", "z"]}]})
        assert outcomes(delivery, 4) == [REJECTED, DELIVERED, UNKNOWN, UNKNOWN]
        assert delivery.stop is None

    def test_a_limit_that_refuses_some_rows_says_when_to_come_back(self) -> None:
        options = HttpOptions.model_validate({"results": self.RESULTS, "codes": {"LIMIT": "retryable"}})

        def judged(code: str) -> Delivery:
            document = {"done": [{"key": key} for key in "abc"], "worse": [{"key": "d", "code": code}]}
            answer = Answer(200, "application/json", orjson.dumps(document), headers={"Retry-After": "7"})
            return judge(answer, Sent(4, tuple("abcd"), results=options.results), options, Mode.UPSERT, NOW)

        assert (judged("LIMIT").retry_after, outcomes(judged("LIMIT"), 4)[3]) == (7, RETRYABLE)
        assert (judged("E1").retry_after, outcomes(judged("E1"), 4)[3]) == (None, REJECTED)

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        "document",
        [
            {"done": [{"key": "a"}], "worse": [{"key": "a"}]},
            {"done": [{"key": "z"}]},
            {"done": [], "worse": [{"key": "z"}]},
            {"done": [], "worse": [{"key": []}]},
            {"done": [{"key": key} for key in "abcdz"]},
            {"done": [], "worse": [{}]},
            {"done": [], "worse": {"key": "a"}},
            {"worse": []},
        ],
    )
    def test_an_answer_that_contradicts_itself_leaves_every_row_in_doubt(self, document: Any) -> None:
        delivery = self.judged(document)
        assert outcomes(delivery, 4) == [UNKNOWN] * 4
        assert delivery.stop is not None

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        "results",
        [
            {"path": None},
            {"path": None, "refused": [{"path": "e", "at": "i"}]},
            {"refused": [{"path": "e", "at": "i"}]},
            {"ok": {"path": "a"}},
            {"ok": {"path": "a", "equals": 1, "in": [1]}},
            {"ok": {"path": "a", "in": []}},
        ],
    )
    def test_results_that_acknowledge_nothing_are_refused(self, results: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            HttpOptions.model_validate({"results": results})


class TestCodes:
    def test_a_code_tells_what_a_refusal_means(self, server: HttpServer) -> None:
        task = task_of({"error": "code", "codes": {"LOCKED": "retryable", "EXPIRED": "fatal", "BAD": "rejected"}})
        for status, code, outcome in [
            (400, "LOCKED", RETRYABLE), (422, "EXPIRED", FATAL), (403, "BAD", REJECTED), (400, "OTHER", REJECTED),
            (403, "OTHER", FATAL), (200, "LOCKED", DELIVERED),
            (500, "LOCKED", RETRYABLE), (500, "OTHER", UNKNOWN), (503, "EXPIRED", FATAL), (429, "BAD", REJECTED),
        ]:  # fmt: skip
            server.default = json_reply({"code": code}, status)
            assert outcomes(send(server.url, task, *inserts(1)), 1) == [outcome], (status, code)

    def test_a_code_tells_what_an_entry_means(self, server: HttpServer) -> None:
        results = {"path": "", "ok": {"path": "s", "in": [200, 204]}, "error": "code"}
        task = task_of({**BATCH, "results": results, "codes": {"LOCKED": "retryable", "NOT_FOUND": "no_match"}})
        codes = ("LOCKED", "X", "NOT_FOUND")
        server.default = json_reply([{"s": 204}, *({"s": 500, "code": code} for code in codes)])
        found = outcomes(send(server.url, task, *inserts(1, 2, 3, 4)), 4)
        assert found == [DELIVERED, RETRYABLE, REJECTED, NO_MATCH]

    @pytest.mark.guarantee("HTTP")
    def test_of_a_mixed_batch_whose_answers_do_not_name_the_refused_rows_some_may_be_applied(
        self, server: HttpServer
    ) -> None:
        task = task_of(
            {
                **BATCH,
                "results": {
                    "by": "id",
                    "id": "id",
                    "missing": "delivered",
                    "path": None,
                    "refused": [{"path": "bad", "at": ""}],
                    "refused_count": "failed",
                },
            }
        )
        changes = [("delete", {"id": 1}), ("delete", {"id": 2}), *inserts(3, 4)]
        server.script(json_reply({"failed": 1}))
        first = send(server.url, task, *changes)
        assert (outcomes(first, 4), first.refused_whole, first.maybe_applied) == ([REJECTED] * 4, True, (0, 1))
        server.script(json_reply({"failed": 0}), json_reply({"failed": 1}))
        assert outcomes(send(server.url, task, *changes), 4) == [DELIVERED, DELIVERED, RETRYABLE, RETRYABLE]

    def test_a_code_that_says_that_a_row_is_missing_says_of_several_only_that_one_is(self, server: HttpServer) -> None:
        task = task_of({**BATCH, "error": "code", "codes": {"NOT_FOUND": "no_match"}})
        server.default = json_reply({"code": "NOT_FOUND"}, 404)
        several = send(server.url, task, *inserts(1, 2))
        assert (outcomes(several, 2), several.refused_whole) == ([REJECTED] * 2, True)
        assert outcomes(send(server.url, task, *inserts(1)), 1) == [NO_MATCH]
