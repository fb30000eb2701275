"""Bodies from template files, and the sizes of bodies."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.errors import ConfigurationError, ReverseEtlError
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.body import UnsafeError, compiled
from dbt_reverse_etl.sinks.http.sink import HttpSink
from dbt_reverse_etl.sinks.http.template import samples
from dbt_reverse_etl.testing import batch_of, outcomes, person
from dbt_reverse_etl.values.encoding import encode_rows
from tests.support.effort import scaled
from tests.support.outcomes import DELIVERED, NO_MATCH, REJECTED
from tests.support.servers.http import HttpServer, Reply, http_server
from tests.support.sinks.http_sending import BATCH, TEXT, inserts, send, settings_of, task_of


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

    @pytest.mark.guarantee("dbt and its commands")
    def test_a_task_on_another_machine_has_the_file_although_it_has_no_project(
        self, server: HttpServer, tmp_path: Path
    ) -> None:
        task = templated(tmp_path, "{{ row }}")
        sink = HttpSink(settings_of(server.url))
        texts = sink.texts(task)
        assert texts == {"body.json.j2": "{{ row }}"}
        (tmp_path / "body.json.j2").unlink()
        with pytest.raises(ReverseEtlError):
            send(server.url, task, *inserts(1))
        assert send(server.url, replace(task, texts=texts, project_dir=None), *inserts(1)).results == ()
        assert server.received[-1].json == person(1)

    def test_a_batch_is_one_body_over_its_rows(self, server: HttpServer, tmp_path: Path) -> None:
        text = "[{% for row in rows %}{{ dict(row, n=loop.index) }}{% if not loop.last %},{% endif %}{% endfor %}]"
        assert send(server.url, templated(tmp_path, text, rows=10), *inserts(1, 2, 3)).results == ()
        (request,) = server.received
        assert request.json == [person(number) | {"n": number} for number in (1, 2, 3)]

    def test_a_template_of_batches_also_writes_one_row_and_needs_no_key_in_the_path(
        self, server: HttpServer, tmp_path: Path
    ) -> None:
        (tmp_path / "body.json.j2").write_text("{{ rows }}")
        upsert = {"method": "PUT", "path": "contacts", "body_template": "body.json.j2"}
        task = task_of({"upsert": upsert}, mode=Mode.UPSERT, project_dir=tmp_path)
        HttpSink(settings_of(server.url)).validate(task)
        assert send(server.url, task, *inserts(1, 2)).results == ()
        assert [request.json for request in server.received] == [[person(1)], [person(2)]]
        ids = [request.headers["idempotency-key"] for request in server.received]
        assert ids == batch_of(task, inserts(1, 2)).rows.column("_event_id").to_pylist()
        for text in ("{{ row }}", "[{{ row }}, {{ rows }}]"):
            (tmp_path / "body.json.j2").write_text(text)
            with pytest.raises(ConfigurationError, match="PUT with a path that does not name id"):
                HttpSink(settings_of(server.url)).validate(task)

    def test_a_template_of_rows_whose_path_names_the_key_is_of_one_row(
        self, server: HttpServer, tmp_path: Path
    ) -> None:
        (tmp_path / "body.json.j2").write_text("{{ rows[0] }}")
        update = {"method": "PUT", "path": "contacts/{id}", "body_template": "body.json.j2"}
        task = task_of({"update": update}, mode=Mode.UPDATE_ONLY, project_dir=tmp_path)
        server.default = Reply(404)
        assert outcomes(send(server.url, task, *inserts(1)), 1) == [NO_MATCH]

    def test_an_upsert_is_one_call_for_inserts_and_updates(self, server: HttpServer, tmp_path: Path) -> None:
        task = templated(tmp_path, "{{ rows }}", rows=10)
        assert send(server.url, task, ("insert", person(1)), ("update", person(2))).results == ()
        (request,) = server.received
        assert request.json == [person(1), person(2)]

    @pytest.mark.parametrize("operation", ["insert", "update"])
    @pytest.mark.parametrize("status", [404, 409])
    def test_the_same_request_is_not_sent_again_instead(
        self, operation: str, status: int, server: HttpServer, tmp_path: Path
    ) -> None:
        server.default = Reply(status)
        delivery = send(server.url, templated(tmp_path, "{{ row }}"), (operation, person(1)))
        assert (outcomes(delivery, 1), len(server.received)) == ([REJECTED], 1)

    def test_a_delete_sees_its_key_alone(self, server: HttpServer, tmp_path: Path) -> None:
        (tmp_path / "d.j2").write_text("{{ row }}")
        delete = {"method": "POST", "path": "gone/{id}", "body_template": "d.j2"}
        send(server.url, task_of({"delete": delete}, project_dir=tmp_path), ("delete", {"id": 3}))
        assert server.received[0].json == {"id": 3}

    @pytest.mark.guarantee("HTTP")
    def test_a_field_named_like_a_method_is_the_field_and_the_methods_of_rows_without_it_stay(self) -> None:
        names = ("items", "values", "keys", "get", "copy", "pop", "update", "clear")
        written = "[" + ", ".join(f"{{{{ row.{name} }}}}" for name in names) + "]"
        row = orjson.dumps({name: n for n, name in enumerate(names)})
        assert orjson.loads(_compiled(written).render([row], alone=True)) == [*range(8)]
        called = "{ {% for name, value in row.items() %}{{ name }}: {{ value }}{% endfor %} }"
        assert orjson.loads(_compiled(called).render([b'{"a": 1}'], alone=True)) == {"a": 1}
        for text in (written, called):
            _compiled(text).try_out([b'{"id": 1}'], alone=True, whole=False)
        with pytest.raises(UnsafeError):
            _compiled("{{ row.pop('id') }}").try_out([b'{"id": 1}'], alone=True, whole=False)

    @pytest.mark.guarantee("HTTP")
    @settings(max_examples=scaled(200), deadline=None)
    @given(TEXT, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.binary())
    def test_no_value_can_leave_its_place_in_the_body(self, text: str, number: int, real: float, raw: bytes) -> None:
        row = (
            encode_rows(
                pa.table({"t": [text], "n": [number], "r": [real], "b": [raw], "x": pa.nulls(1, pa.string())})
            ).rows[0]
            or b""
        )
        written = '{"t": {{ row.t }}, "n": {{ row["n"] }}, "in": [{{ row.r }}, {{ "<" ~ row.t ~ ">" }}], {{ row.t }}: {{ row.x }}}'
        body = _compiled(written).render([row], alone=True)
        assert orjson.loads(body) == {"t": text, "n": number, "in": [real, f"<{text}>"]} | {text: None}

    @settings(max_examples=scaled(100), deadline=None)
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
            ('{"a": {{ row.name }', "no Jinja in line 1"),
            ("{\n{% for %}", "no Jinja in line 2"),
            ('{"a": "{{ row.name }}"}', "writes no JSON"),
            ("", "writes no JSON"),
            ("{{ row.name | nope }}", "no Jinja"),
            ("{{ row.score + row.name }}", "TypeError"),
            ("{{ row.name * row.id }}", "multiplies a text, as a decimal is: write `| float` behind it"),
            ("{{ row.score * 1e308 * 9 }}", "writes NaN or Infinity, which JSON does not have"),
            ("{{ ''.__class__.__mro__ }}", "outside of the sandbox"),
            ("{{ row.__class__.__init__.__globals__ }}", "outside of the sandbox"),
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

    @pytest.mark.guarantee("HTTP")
    def test_a_decimal_is_a_text_that_no_template_repeats(self, tmp_path: Path, server: HttpServer) -> None:
        schema = pa.schema([("id", pa.int64()), ("amount", pa.decimal128(9, 2))])
        change = ("insert", {"id": 1, "amount": Decimal("12.50")})
        for text, outcome in (
            ("{{ row.amount * 100 }}", REJECTED), ("{{ 100 * row.amount }}", REJECTED),
            ("{{ row.amount | float * 100 }}", DELIVERED), ("{{ [row.id] * 2 }}", DELIVERED),
        ):  # fmt: skip
            task = templated(tmp_path, text, schema=schema)
            assert outcomes(send(server.url, task, change), 1) == [outcome]
            with (
                nullcontext() if outcome is DELIVERED else pytest.raises(ConfigurationError, match="multiplies a text")
            ):
                HttpSink(settings_of(server.url)).validate(task)
        assert [request.json for request in server.received] == [1250.0, [1, 1]]

    @pytest.mark.guarantee("HTTP")
    @pytest.mark.parametrize(
        "text", ["{{ N }}", '{"a": [{{ {"b": [1, N]} }}]}', "{{ N | tojson }}", "{{ dict(row, b=N) }}"]
    )
    @pytest.mark.parametrize("number", ["row.score * 1e308 * 9", "'nan' | float"])
    def test_infinity_is_null_only_where_the_options_name_it_so(
        self, text: str, number: str, tmp_path: Path, server: HttpServer
    ) -> None:
        (tmp_path / "body.json.j2").write_text(text.replace("N", f"({number})"))
        upsert = {"method": "PUT", "path": "c/{id}", "body_template": "body.json.j2"}
        for options, outcome in (({}, REJECTED), ({"nan": "null"}, DELIVERED)):
            task = task_of({"upsert": upsert, **options}, mode=Mode.UPSERT, project_dir=tmp_path)
            assert outcomes(send(server.url, task, ("insert", person(1) | {"name": None})), 1) == [outcome]
        assert [b"null" in request.body for request in server.received] == [True]

    def test_nothing_is_worked_out_while_a_template_is_compiled(self) -> None:
        tracemalloc.start()
        try:
            _compiled('{{ "x" | center(200000000) }}{{ rows | replace("x" | center(200000000), "") }}')
            assert tracemalloc.get_traced_memory()[1] < 50_000_000
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("after", ["", " | tojson"])
    def test_a_text_that_is_too_long_is_refused_before_it_is_copied_as_json(self, after: str) -> None:
        template = _compiled(f"{{{{ 'x' | center(40000000){after} }}}}")
        tracemalloc.start()
        try:
            with pytest.raises(UnsafeError, match="writes more than 16777216 characters"):
                template.try_out([b'{"id": 1}'], alone=True, whole=True)
            assert tracemalloc.get_traced_memory()[1] < 60_000_000
        finally:
            tracemalloc.stop()

    def test_a_mistake_in_a_file_for_batches_is_the_only_problem_that_is_named(
        self, tmp_path: Path, server: HttpServer
    ) -> None:
        (tmp_path / "body.json.j2").write_text("{{ rows | nope }}")
        upsert = {"method": "PUT", "path": "contacts", "body_template": "body.json.j2"}
        with pytest.raises(ConfigurationError) as caught:
            HttpSink(settings_of(server.url)).validate(
                task_of({"upsert": upsert}, mode=Mode.UPSERT, project_dir=tmp_path)
            )
        assert {problem.found for problem in caught.value.problems} == {"no Jinja in line 1: No filter named 'nope'."}

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

    @settings(max_examples=scaled(30), deadline=None)
    @given(good=st.lists(st.booleans(), min_size=1, max_size=9))
    def test_a_row_that_breaks_the_template_is_rejected_alone(self, good: list[bool], tmp_path_factory: Any) -> None:
        text = "[{% for row in rows %}{{ row.name[0] }}{% if not loop.last %},{% endif %}{% endfor %}]"
        task = templated(tmp_path_factory.mktemp("t"), text, rows=20)
        changes = [("insert", person(n) | {"name": "Ada" if fine else None}) for n, fine in enumerate(good)]
        with http_server() as server:
            delivery = send(server.url, task, *changes)
            assert sum(len(request.json) for request in server.received) == sum(good)
        assert outcomes(delivery, len(good)) == [DELIVERED if fine else REJECTED for fine in good]
        assert all("UndefinedError" in result.reason or "TypeError" in result.reason for result in delivery.results)

    def test_samples_have_a_value_of_every_type(self) -> None:
        scalars = [
            pa.string(), pa.large_string(), pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(38, 9),
            pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.binary(), pa.large_binary(),
        ]  # fmt: skip
        nested = [pa.list_(pa.int64()), pa.struct([("a", pa.date32())]), pa.map_(pa.string(), pa.int64())]
        schema = pa.schema([(f"f{number}", kind) for number, kind in enumerate(scalars + nested)])
        first, second = samples(schema, 2, {"c": 1})
        assert first == second
        written = orjson.loads(first)
        assert list(written) == [*schema.names, "c"]
        assert None not in written.values()


def _compiled(text: str) -> Any:
    return compiled(text, "contacts", ("id",))


class TestSizes:
    @pytest.mark.guarantee(
        "HTTP", "A body stays within the size that the API takes; a row too large for it is refused alone"
    )
    @settings(max_examples=scaled(50), deadline=None)
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


def test_a_python_whose_importlib_has_no_traversable_reads_templates() -> None:
    """3.14 and later."""
    without = "import importlib.abc; vars(importlib.abc).pop('Traversable', None)"
    program = f"{without}; import dbt_reverse_etl.sinks.http.template"
    subprocess.run([sys.executable, "-c", program], check=True)
