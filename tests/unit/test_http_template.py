"""Bodies from template files, sizes of bodies, and what an answer may say beside a status."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dbt_reverse_etl.encoding import encode_rows
from dbt_reverse_etl.errors import ConfigurationError
from dbt_reverse_etl.outcome import Outcome
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http import HttpSink
from dbt_reverse_etl.sinks.http_answer import Answer, Sent, judge, retry_after
from dbt_reverse_etl.sinks.http_options import HttpOptions
from dbt_reverse_etl.sinks.http_template import compiled, samples
from dbt_reverse_etl.testing import outcomes, person
from tests.unit.http_server import HttpServer, http_server, json_reply
from tests.unit.test_http_sink import (
    BATCH,
    CANARY,
    DELIVERED,
    REJECTED,
    RETRYABLE,
    UNKNOWN,
    inserts,
    send,
    settings_of,
    task_of,
)

NOW = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as running:
        yield running


def templated(folder: Path, text: str, rows: int = 1, **changes: Any) -> SinkTask:
    """A task whose upsert takes its body from a file in `folder`."""
    (folder / "body.json.j2").write_text(text, encoding="utf-8")
    path = "contacts/{id}" if rows == 1 else "contacts/batch"
    upsert = {"method": "PUT" if rows == 1 else "POST", "path": path, "body_template": "body.json.j2"}
    options = {"batch": {"rows": rows}, "upsert": upsert}
    return task_of(options, mode=Mode.UPSERT, project_dir=folder, **changes)


class TestTemplates:
    def test_a_row_is_written_as_the_file_says_with_exact_json(self, server: HttpServer, tmp_path: Path) -> None:
        task = templated(tmp_path, '{"who": {{ row.name }}, "of": {{ object }}, "by": {{ key }}, "all": {{ row }}}\n')
        assert send(server.url, task, *inserts(7)).results == ()
        (request,) = server.received
        assert (
            request.body == b'{"who": "Ada", "of": "contacts", "by": ["id"], "all": {"id":7,"name":"Ada","score":1.5}}'
        )
        assert request.headers["content-type"] == "application/json"

    def test_a_batch_is_one_body_over_its_rows(self, server: HttpServer, tmp_path: Path) -> None:
        text = "[{% for row in rows %}{{ dict(row, n=loop.index) }}{% if not loop.last %},{% endif %}{% endfor %}]"
        assert send(server.url, templated(tmp_path, text, rows=10), *inserts(1, 2, 3)).results == ()
        (request,) = server.received
        assert request.json == [person(number) | {"n": number} for number in (1, 2, 3)]

    def test_a_delete_sees_its_key_alone(self, server: HttpServer, tmp_path: Path) -> None:
        (tmp_path / "d.j2").write_text("{{ row }}")
        delete = {"method": "POST", "path": "gone/{id}", "body_template": "d.j2"}
        send(server.url, task_of({"delete": delete}, project_dir=tmp_path), ("delete", {"id": 3}))
        assert server.received[0].json == {"id": 3}

    @settings(max_examples=200, deadline=None)
    @given(TEXT, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.binary())
    def test_no_value_can_leave_its_place_in_the_body(self, text: str, number: int, real: float, raw: bytes) -> None:
        row = (
            encode_rows(pa.table({"t": [text], "n": [number], "r": [real], "b": [raw], "x": pa.nulls(1)})).rows[0]
            or b""
        )
        written = '{"t": {{ row.t }}, "n": {{ row["n"] }}, "in": [{{ row.r }}, {{ "<" ~ row.t ~ ">" }}], {{ row.t }}: {{ row.x }}}'
        body = _compiled(written).render([row], alone=True)
        assert orjson.loads(body) == {"t": text, "n": number, "in": [real, f"<{text}>"]} | {text: None}

    @settings(max_examples=100, deadline=None)
    @given(TEXT)
    def test_tojson_and_safe_do_not_lead_around_the_encoding(self, text: str) -> None:
        row = orjson.dumps({"t": text})
        for name in ("tojson", "safe", "string", "e"):
            found = orjson.loads(_compiled("[{{ row.t | NAME }}]".replace("NAME", name)).render([row], alone=True))
            assert len(found) == 1
            assert found == [text] or name == "e"

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ('{"a": {{ row.nope }}}', "UndefinedError"),
            ('{"a": {{ nope }}}', "UndefinedError"),
            ('{"a": {{ rows }}}', "UndefinedError"),
            ('{"a": {{ row.name }', "no Jinja in line 1"),
            ("{\n{% for %}", "no Jinja in line 2"),
            ('{"a": "{{ row.name }}"}', "writes no JSON"),
            ("", "writes no JSON"),
            ("{{ row.name | nope }}", "no Jinja"),
            ("{{ row.score + row.name }}", "TypeError"),
            ("{{ ''.__class__.__mro__ }}", "SecurityError"),
            ("{{ row.__class__.__init__.__globals__ }}", "SecurityError"),
            ("{{ row.update({'a': 1}) }}", "SecurityError"),
            ("{{ key.append('x') }}", "SecurityError"),
            ("{% include 'other.j2' %}", "TypeError"),
            ("{{ range(999999999) | list }}", "OverflowError"),
        ],
    )
    def test_a_mistake_in_the_file_is_a_configuration_error_before_anything_is_sent(
        self, text: str, found: str, tmp_path: Path, server: HttpServer
    ) -> None:
        with pytest.raises(ConfigurationError) as caught:
            HttpSink(settings_of(server.url)).validate(templated(tmp_path, text))
        assert found in str(caught.value)
        assert "body_template" in str(caught.value)
        assert server.connections == 0

    @pytest.mark.parametrize("name", ["../x.j2", "/etc/hostname", "nope.j2", ".", "link.j2", "preset:../http.py"])
    def test_a_file_that_is_not_one_of_the_project_is_refused(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "x.j2").write_text("{}")
        project = tmp_path / "project"
        project.mkdir()
        (project / "link.j2").symlink_to(tmp_path / "x.j2")
        upsert = {"method": "PUT", "path": "c/{id}", "body_template": name}
        task = task_of({"upsert": upsert}, mode=Mode.UPSERT, project_dir=project)
        with pytest.raises(ConfigurationError, match=r"leaves the dbt project|cannot be read"):
            HttpSink(settings_of("https://example.com")).validate(task)

    def test_the_project_is_that_of_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "dbt_project.yml").touch()
        (tmp_path / "b.j2").write_text("{{ row }}")
        inside = tmp_path / "models" / "deep"
        inside.mkdir(parents=True)
        monkeypatch.chdir(inside)
        monkeypatch.delenv("DBT_PROJECT_DIR", raising=False)
        upsert = {"method": "PUT", "path": "c/{id}", "body_template": "b.j2"}
        HttpSink(settings_of("https://example.com")).validate(task_of({"upsert": upsert}, mode=Mode.UPSERT))

    @pytest.mark.parametrize("more", [{"batch": {"wrap": "array"}}, {"upsert": {"body": "none"}}])
    def test_a_second_way_to_write_the_body_is_refused(self, more: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "b.j2").write_text("{{ row }}")
        upsert = {"method": "PUT", "path": "c/{id}", "body_template": "b.j2", **more.pop("upsert", {})}
        task = task_of({"upsert": upsert, **more}, mode=Mode.UPSERT, project_dir=tmp_path)
        with pytest.raises(ConfigurationError, match="the whole body in the file"):
            HttpSink(settings_of("https://example.com")).validate(task)

    @settings(max_examples=30, deadline=None)
    @given(good=st.lists(st.booleans(), min_size=1, max_size=9))
    def test_a_row_that_breaks_the_template_is_rejected_alone(self, good: list[bool], tmp_path_factory: Any) -> None:
        text = "[{% for row in rows %}{{ row.name[0] }}{% if not loop.last %},{% endif %}{% endfor %}]"
        task = templated(tmp_path_factory.mktemp("t"), text, rows=20)
        changes = [("insert", person(n, "Ada" if fine else None)) for n, fine in enumerate(good)]
        with http_server() as server:
            delivery = send(server.url, task, *changes)
            assert sum(len(request.json) for request in server.received) == sum(good)
        assert outcomes(delivery, len(good)) == [DELIVERED if fine else REJECTED for fine in good]
        assert all("UndefinedError" in result.reason or "TypeError" in result.reason for result in delivery.results)

    def test_samples_have_a_value_of_every_type_with_an_encoding(self) -> None:
        scalars = [
            pa.string(), pa.large_string(), pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.decimal128(38, 9),
            pa.bool_(), pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"), pa.timestamp("us"),
            pa.timestamp("ns", "UTC"), pa.binary(), pa.large_binary(), pa.binary(4), pa.null(),
            pa.dictionary(pa.int8(), pa.string()),
        ]  # fmt: skip
        nested = [
            pa.list_(pa.int64()),
            pa.list_(pa.int64(), 2),
            pa.struct([("a", pa.date32())]),
            pa.map_(pa.string(), pa.int64()),
        ]
        schema = pa.schema([(f"f{number}", kind) for number, kind in enumerate(scalars + nested)])
        first, second = samples(schema, 2, {"c": 1})
        assert first == second
        written = orjson.loads(first)
        assert list(written) == [*schema.names, "c"]
        nulls = {name for name, value in written.items() if value is None}
        assert nulls == {f"f{scalars.index(pa.binary(4))}", f"f{scalars.index(pa.null())}"}


def _compiled(text: str) -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "b.j2").write_text(text, encoding="utf-8")
        return compiled("b.j2", Path(folder), "contacts", ("id",))


class TestSizes:
    @settings(max_examples=50, deadline=None)
    @given(
        st.lists(st.integers(0, 60), min_size=1, max_size=20),
        st.integers(40, 200),
        st.sampled_from([None, "ndjson", {"key": "k"}]),
    )
    def test_no_body_is_larger_than_max_bytes_and_every_row_is_sent_once_or_rejected(
        self, sizes: list[int], limit: int, wrap: Any
    ) -> None:
        changes = [("insert", person(number, "x" * size)) for number, size in enumerate(sizes)]
        task = task_of({**BATCH, "batch": {"rows": 50, "max_bytes": limit, "wrap": wrap}})
        with http_server() as server:
            delivery = send(server.url, task, *changes)
        assert all(len(request.body) <= limit for request in server.received)
        sent = b"".join(request.body for request in server.received)
        wrapped = 2 if wrap is None else 1 if wrap == "ndjson" else 8
        for number, (outcome, (_insert, row)) in enumerate(zip(outcomes(delivery, len(sizes)), changes, strict=True)):
            fits = len(orjson.dumps(row)) + wrapped <= limit
            assert outcome is (DELIVERED if fits else REJECTED)
            assert sent.count(b'{"id":%d,' % number) == fits
        assert all(result.reason == "a body larger than batch.max_bytes" for result in delivery.results)

    def test_an_operation_may_have_batches_of_its_own(self, server: HttpServer) -> None:
        delete = {"method": "DELETE", "path": "contacts/{id}", "rows": 1}
        task = task_of({**BATCH, "delete": delete, "upsert": {**BATCH["upsert"], "rows": 2}})
        assert HttpSink(settings_of(server.url)).limits(task).rows == 100
        changes = [("delete", {"id": 8}), ("delete", {"id": 9}), *inserts(1, 2, 3)]
        assert send(server.url, task, *changes).results == ()
        assert [(request.method, request.path) for request in server.received] == [
            ("DELETE", "/contacts/8"), ("DELETE", "/contacts/9"), ("POST", "/contacts/batch"), ("POST", "/contacts/batch"),
        ]  # fmt: skip


class TestRetryAfter:
    @settings(max_examples=200, deadline=None)
    @given(st.integers(-(10**6), 10**9))
    def test_seconds_and_every_form_of_a_date_mean_the_same_moment(self, seconds: int) -> None:
        moment = NOW + timedelta(seconds=seconds)
        assert retry_after(str(max(0, seconds)), NOW) == max(0, seconds)
        # RFC 9110 5.6.7: IMF-fixdate, and the obsolete forms of RFC 850 and of asctime.
        forms = [format_datetime(moment, usegmt=True), moment.strftime("%a %b %d %H:%M:%S %Y").replace(" 0", "  ", 1)]
        if 1969 <= moment.year <= 2068:  # two digits of the year
            forms.append(moment.strftime("%A, %d-%b-%y %H:%M:%S GMT"))
        for text in forms:
            assert retry_after(text, NOW) == max(0, seconds), text

    @settings(max_examples=300, deadline=None)
    @given(st.one_of(TEXT, st.from_regex(r"[A-Z][a-z]{2}, ?\d{1,3}[ -][A-Z][a-z]{2}[ -]\d{1,6} \d+:\d+:\d+ ?\w*")))
    def test_junk_is_no_pause_and_never_an_exception_or_a_negative_one(self, text: str) -> None:
        seconds = retry_after(text, NOW)
        assert seconds is None or (seconds >= 0 and math.isfinite(seconds))

    @pytest.mark.parametrize(
        ("unit", "header", "value", "pause"),
        [
            ("epoch", "X-RateLimit-Reset", str(int(NOW.timestamp()) + 9), 9),
            ("epoch", "x-ratelimit-reset", str(int(NOW.timestamp()) - 9), 0),
            ("seconds", "X-RateLimit-Reset", "2.5", 2.5),
            ("seconds", "X-RateLimit-Reset", "-2", None),
            ("seconds", "X-RateLimit-Reset", "soon", None),
            ("seconds", "X-Other", "7", None),
        ],
    )
    def test_a_header_of_ones_own_is_read_only_where_the_options_name_it(
        self, unit: str, header: str, value: str, pause: float | None, server: HttpServer
    ) -> None:
        options = HttpOptions.model_validate({"retry_after": {"header": "X-RateLimit-Reset", "unit": unit}})

        def paused(headers: dict[str, str], given: HttpOptions) -> float | None:
            from urllib3 import HTTPHeaderDict

            answer = Answer(429, headers=HTTPHeaderDict(headers))
            return judge(answer, Sent(1), given, Mode.UPSERT, NOW).retry_after

        assert paused({header: value}, options) == pause
        assert paused({header: value, "Retry-After": "3"}, options) == 3
        assert paused({header: value}, HttpOptions()) is None


class TestCodes:
    def test_a_code_tells_what_a_refusal_means(self, server: HttpServer) -> None:
        task = task_of({"error": "code", "codes": {"LOCKED": "retryable", "EXPIRED": "fatal", "BAD": "rejected"}})
        for status, code, outcome in [
            (400, "LOCKED", RETRYABLE), (422, "EXPIRED", Outcome.FATAL), (403, "BAD", REJECTED), (400, "OTHER", REJECTED),
            (403, "OTHER", Outcome.FATAL), (500, "LOCKED", UNKNOWN), (200, "LOCKED", DELIVERED),
        ]:  # fmt: skip
            server.default = json_reply({"code": code}, status)
            assert outcomes(send(server.url, task, *inserts(1)), 1) == [outcome], (status, code)

    def test_a_code_tells_what_an_entry_means(self, server: HttpServer) -> None:
        results = {"path": "", "ok": {"path": "s", "in": [200, 204]}, "error": "code"}
        task = task_of({**BATCH, "results": results, "codes": {"LOCKED": "retryable"}})
        server.default = json_reply([{"s": 204}, {"s": 500, "code": "LOCKED"}, {"s": 500, "code": "X"}])
        assert outcomes(send(server.url, task, *inserts(1, 2, 3)), 3) == [DELIVERED, RETRYABLE, REJECTED]


class TestMultiStatus:
    RESULTS: ClassVar[dict[str, Any]] = {
        "path": "done", "by": "id", "id": "key", "refused": [{"path": "bad.list", "at": ""}, {"path": "worse", "at": "key", "error": "code"}],
    }  # fmt: skip

    def judged(self, document: Any, status: int = 207) -> Any:
        options = HttpOptions.model_validate({"results": self.RESULTS, "success": {"status": [200, 207]}})
        answer = Answer(status, "application/json", orjson.dumps(document))
        return judge(answer, Sent(4, tuple("abcd"), alone=False, results=options.results), options, Mode.UPSERT, NOW)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.sampled_from(["done", "bad", "worse", "both", "none"]), min_size=4, max_size=4))
    def test_each_row_of_a_multi_status_has_its_own_outcome(self, kinds: list[str]) -> None:
        ids = dict(zip("abcd", kinds, strict=True))
        document: dict[str, Any] = {"done": [{"key": key} for key, kind in ids.items() if kind == "done"]}
        bad = [key for key, kind in ids.items() if kind in ("bad", "both")]
        worse = [{"key": key, "code": "E1", "text": CANARY} for key, kind in ids.items() if kind in ("worse", "both")]
        document |= {"bad": {"list": bad}} if bad else {}
        document |= {"worse": worse} if worse else {"worse": None}
        delivery = self.judged(document)
        assert outcomes(delivery, 4) == [
            {"done": DELIVERED, "none": UNKNOWN}.get(kind, REJECTED) for kind in kinds
        ]  # fmt: skip
        assert CANARY not in repr(delivery)
        assert not delivery.refused_whole

    @pytest.mark.parametrize(
        "document",
        [
            {"done": [{"key": "a"}], "worse": [{"key": "a"}]},
            {"done": [{"key": "z"}]},
            {"done": [], "worse": [{"key": "z"}]},
            {"done": [], "worse": {"key": "a"}},
            {"worse": []},
        ],
    )
    def test_an_answer_that_contradicts_itself_leaves_every_row_in_doubt(self, document: Any) -> None:
        delivery = self.judged(document)
        assert outcomes(delivery, 4) == [UNKNOWN] * 4
        assert delivery.stop is not None

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
