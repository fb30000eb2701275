"""The spans of real pushes, as OpenTelemetry's own SDK keeps them."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dbt_reverse_etl.app.tracing import Tracing, trace_captures, tracers
from dbt_reverse_etl.config.artifacts import ChangelogResult, Invocation, run
from dbt_reverse_etl.delivery.progress import Bound, Number, Progress, Watches
from tests.support.dbt.artifacts import CONTACTS, ORDERS, good_project
from tests.support.terminal.pushes import ROWS, SECRET, push


def spans_of(sync: str) -> list[ReadableSpan]:
    exporter, tracing = watched()
    assert push(sync, tracing) == (sync, ROWS)
    return list(exporter.get_finished_spans())


def watched() -> tuple[InMemorySpanExporter, Tracing]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, Tracing(provider.get_tracer("test"))


@pytest.fixture(scope="module")
def spans() -> list[ReadableSpan]:
    return spans_of("crm_contacts")


def named(spans: list[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def number(span: ReadableSpan, name: str) -> int:
    value = (span.attributes or {})[f"reverse_etl.{name}"]
    assert isinstance(value, int)
    return value


@pytest.mark.guarantee("What people look at")
def test_a_push_is_a_span_with_its_plan_its_waves_and_each_call_of_the_sink_below(spans: list[ReadableSpan]) -> None:
    (run,), (plan,), waves, calls = (named(spans, name) for name in ("push", "plan", "wave", "sink.deliver"))
    assert run.context
    assert plan.parent
    assert {span.parent.span_id for span in (plan, *waves) if span.parent} == {run.context.span_id}
    assert {call.parent.span_id for call in calls if call.parent} == {
        wave.context.span_id for wave in waves if wave.context
    }
    assert [number(wave, "rows.planned") for wave in waves] == [ROWS // 2, ROWS // 2]
    assert all(span.end_time for span in spans)


@pytest.mark.guarantee("What people look at")
def test_calls_that_were_paused_or_failed_are_spans_of_their_own_and_the_rows_add_up(spans: list[ReadableSpan]) -> None:
    (run,), calls = named(spans, "push"), named(spans, "sink.deliver")
    assert sum(number(call, "rows.sent") for call in calls) == ROWS + 2, "one was paused, one failed"
    assert sum(number(call, "rows.delivered") for call in calls) == ROWS
    assert (number(run, "rows.planned"), number(run, "rows.counted"), number(run, "fence")) == (ROWS, ROWS, 1)
    assert sorted(event.name for event in run.events) == ["pause", "rows sent again", "rows sent again"]
    assert run.status.status_code is StatusCode.OK


@pytest.mark.guarantee("What people look at")
def test_spans_hold_ids_and_counts_and_neither_row_values_nor_addresses(spans: list[ReadableSpan]) -> None:
    text = "".join(span.to_json() for span in spans)
    assert str(SECRET) not in text
    assert "127.0.0.1" not in text
    names = {name for span in spans for name in span.attributes or {}}
    assert names == {
        "dbt.invocation_id",
        *(f"reverse_etl.{name}" for name in ("sync", "run_id", "fence", "status", "wave")),
        *(f"reverse_etl.rows.{name}" for name in ("planned", "sent", "delivered", "counted")),
    }


def test_a_run_that_ends_in_the_middle_of_a_wave_leaves_no_open_span_and_is_an_error() -> None:
    exporter, tracing = watched()
    tell = tracing.begin(Bound("crm_contacts", "crm.contacts", "run", "invocation"))
    tell(Number.PLANNED, 10)
    tell(Number.WAVE, 5)
    tracing.end("crm_contacts", "failed", well=False)
    tracing.end("crm_people", "failed", well=False)  # it never began
    spans = list(exporter.get_finished_spans())
    assert {span.name for span in spans} == {"push", "plan", "wave"}
    assert named(spans, "push")[0].status.status_code is StatusCode.ERROR


@pytest.mark.guarantee("What people look at")
def test_a_capture_is_a_span_with_the_times_of_dbts_artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    manifest, results = (good_project().artifact(f"{name}.json") for name in ("manifest", "run_results"))
    times = {"name": "execute", "started_at": "2026-01-01T00:00:01.000002Z", "completed_at": "2026-01-01T00:00:03Z"}
    model = next(one for one in results["results"] if one["unique_id"] == CONTACTS)
    results["results"] = [
        {
            **model,
            "status": "success",
            "timing": [*model["timing"][:1], times],
            "adapter_response": {"code": "snapshot 7 of c"},
        },
        {**model, "unique_id": ORDERS, "status": "error", "timing": [times]},
        {**model, "unique_id": "model.shop.contacts", "timing": [times]},
    ]
    trace_captures(run(results, manifest))
    good, bad = exporter.get_finished_spans()
    assert (good.name, good.status.status_code, bad.status.status_code) == ("capture", StatusCode.OK, StatusCode.ERROR)
    assert good.start_time
    assert good.end_time
    assert good.end_time - good.start_time == 1_999_998_000
    assert dict(good.attributes or {}) == {
        "dbt.unique_id": CONTACTS,
        "dbt.invocation_id": manifest["metadata"]["invocation_id"],
        "dbt.status": "success",
        "reverse_etl.snapshot": 7,
    }


def test_times_that_cannot_be_read_keep_no_push_back() -> None:
    result = ChangelogResult("success", 7, "c", "yesterday", "today")
    trace_captures(Invocation("i", "run", False, False, None, {CONTACTS: result}, {}))


class Broken:
    def begin(self, bound: Bound) -> Progress:
        def tell(number: Number, value: float) -> None:
            raise RuntimeError

        return tell

    def end(self, sync: str, status: str) -> None:
        raise RuntimeError


@pytest.mark.guarantee("What people look at")
def test_a_push_goes_on_when_something_that_looks_on_is_broken() -> None:
    exporter, tracing = watched()
    assert push("crm_contacts", Watches(Broken(), tracing)) == ("crm_contacts", ROWS)
    assert len(named(list(exporter.get_finished_spans()), "push")) == 1


@pytest.mark.guarantee("What people look at")
def test_without_opentelemetry_there_are_no_spans_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(tracers()) == 1
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert tracers() == ()
