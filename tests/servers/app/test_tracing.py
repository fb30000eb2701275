"""The spans of real pushes, as OpenTelemetry's own SDK keeps them."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dbt_reverse_etl.app.invocation import watched as watched_by
from dbt_reverse_etl.app.sync_push import SyncPush
from dbt_reverse_etl.app.tracing import Tracing, traced
from dbt_reverse_etl.base.errors import Problem, ReverseEtlError
from dbt_reverse_etl.base.redaction import register_secret
from dbt_reverse_etl.config.artifacts import ChangelogResult, Invocation, run
from dbt_reverse_etl.delivery.progress import Bound, Number, Progress, Watches
from dbt_reverse_etl.terminal.screen import Screen
from dbt_reverse_etl.warehouse.overview import Overview
from tests.support.dbt.artifacts import CONTACTS, ORDERS, good_project
from tests.support.delivery.pushers import pusher
from tests.support.delivery.pushers import sync as resolved
from tests.support.terminal.pushes import ROWS, SECRET, push

CANARY = "canary-Span7x9Q"


def spans_of(sync: str) -> list[ReadableSpan]:
    exporter, tracing = watched()
    assert push(sync, tracing) == (sync, ROWS)
    return list(exporter.get_finished_spans())


def watched() -> tuple[InMemorySpanExporter, Tracing]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, Tracing(provider.get_tracer("test"), "the-invocation")


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
        *(f"reverse_etl.rows.{name}" for name in ("planned", "sent", "delivered", "no_match", "counted")),
    }


@pytest.mark.guarantee("What people look at")
def test_requests_that_were_not_taken_whole_are_errors_that_say_how_many_rows(spans: list[ReadableSpan]) -> None:
    refused = [call for call in named(spans, "sink.deliver") if call.status.status_code is StatusCode.ERROR]
    assert [call.status.description for call in refused] == ["1 of 1 rows were not delivered"] * 2


def test_a_row_that_the_destination_does_not_have_is_no_error_of_its_request() -> None:
    exporter, tracing = watched()
    tell = tracing.begin(Bound("crm_contacts", "crm.contacts", "run", "invocation"))
    for delivered in (3, 2, 5):
        tell(Number.SENT, 5)
        if delivered < 5:
            tell(Number.NO_MATCH, 2)
        tell(Number.ANSWERED, delivered)
    tracing.close()
    calls = named(list(exporter.get_finished_spans()), "sink.deliver")
    missed = [(number(call, "rows.delivered"), number(call, "rows.no_match")) for call in calls]
    assert missed == [(3, 2), (2, 2), (5, 0)]
    assert [call.status.description for call in calls] == [None, "1 of 5 rows were not delivered", None]


def test_a_run_that_ends_in_the_middle_of_a_wave_leaves_no_open_span_and_is_an_error() -> None:
    exporter, tracing = watched()
    for sync in ("crm_contacts", "crm_orders", "crm_plans"):
        tell = tracing.begin(Bound(sync, f"crm.{sync}", "run", "invocation"))
        tell(Number.PLANNED, 10)
        tell(Number.WAVE, 5)
    tracing.end("crm_contacts", "failed", wrong="no answer")
    tracing.end("crm_orders", "succeeded")
    tracing.end("crm_people", "blocked", wrong="too many deletes")  # it never began
    tracing.close()
    spans = list(exporter.get_finished_spans())
    assert sorted(span.name for span in spans) == ["invocation", *["plan"] * 3, *["push"] * 3, *["wave"] * 3]
    ended = {str((push.attributes or {})["reverse_etl.sync"]): push.status for push in named(spans, "push")}
    assert (ended["crm_contacts"].status_code, ended["crm_contacts"].description) == (StatusCode.ERROR, "no answer")
    assert ended["crm_orders"].status_code is StatusCode.OK
    assert "did not end in time" in str(ended["crm_plans"].description)
    whole = named(spans, "invocation")[0].status
    assert whole.description == "crm_contacts: failed, crm_people: blocked, crm_plans: interrupted"


def test_each_of_two_runs_of_one_push_has_a_span_of_its_own() -> None:
    exporter, tracing = watched()
    for run_id in ("full load", "changes"):
        tracing.begin(Bound("crm_contacts", "crm.contacts", run_id, "invocation"))(Number.PLANNED, 10)
    tracing.end("crm_contacts", "succeeded")
    tracing.close()
    spans = list(exporter.get_finished_spans())
    assert [(push.attributes or {})["reverse_etl.run_id"] for push in named(spans, "push")] == ["full load", "changes"]
    assert [(push.attributes or {})["reverse_etl.status"] for push in named(spans, "push")] == ["followed", "succeeded"]
    assert [one.status.status_code for one in named(spans, "invocation")] == [StatusCode.OK]


RESULTS = [
    ("success", "2026-01-01T00:00:01.000002Z", "2026-01-01T00:00:03Z"),
    ("error", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:09Z"),
]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Takes what the API's own tracer makes."""
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    return found


def captured() -> Invocation:
    """What dbt's artifacts tell of two changelogs, one of which failed, and of a model that is none."""
    manifest, results = (good_project().artifact(f"{name}.json") for name in ("manifest", "run_results"))
    model = next(one for one in results["results"] if one["unique_id"] == CONTACTS)
    found = []
    for unique_id, (status, began, ended) in zip((CONTACTS, ORDERS), RESULTS, strict=True):
        times = [*model["timing"][:1], {"name": "execute", "started_at": began, "completed_at": ended}]
        answer = {"code": "snapshot 7 of c"} if status == "success" else {}
        found.append({**model, "unique_id": unique_id, "status": status, "timing": times, "adapter_response": answer})
    results["results"] = [*found, {**found[0], "unique_id": "model.shop.contacts"}]
    return run(results, manifest)


@pytest.mark.full
@pytest.mark.guarantee("What people look at")
def test_all_captures_and_pushes_of_an_invocation_are_below_one_span_which_begins_with_the_first(
    exporter: InMemorySpanExporter,
) -> None:
    invocation = captured()
    with traced(invocation.invocation_id, invocation.changelogs) as watches:
        for sync in ("crm_contacts", "crm_orders"):
            push(sync, Watches(*watches))
    spans = list(exporter.get_finished_spans())
    [whole], captures = named(spans, "invocation"), named(spans, "capture")
    assert whole.parent is None
    below = [*captures, *named(spans, "push")]
    assert [span.parent and span.parent.span_id for span in below] == [whole.context and whole.context.span_id] * 4
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    assert whole.start_time == min(span.start_time or 0 for span in spans)
    assert dict(whole.attributes or {}) == {"dbt.invocation_id": invocation.invocation_id}
    assert (whole.status.status_code, whole.status.description) == (StatusCode.ERROR, "orders_changelog: error")

    good, bad = captures
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.OK, StatusCode.ERROR)
    assert bad.status.description == "dbt ended it with error: its own log says why"
    assert good.start_time
    assert good.end_time
    assert good.end_time - good.start_time == 1_999_998_000
    assert dict(good.attributes or {}) == {
        "dbt.unique_id": CONTACTS,
        "dbt.invocation_id": invocation.invocation_id,
        "dbt.status": "success",
        "reverse_etl.snapshot": 7,
    }


def test_where_nothing_is_done_there_is_no_span_and_times_that_cannot_be_read_keep_no_push_back(
    exporter: InMemorySpanExporter,
) -> None:
    with traced("i", {CONTACTS: ChangelogResult("success", 7, "c", "yesterday", "today")}) as watches:
        assert len(watches) == 1
    assert exporter.get_finished_spans() == ()


@pytest.mark.guarantee("What people look at")
@pytest.mark.parametrize(
    ("error", "described"),
    [
        (ReverseEtlError(Problem("crm", f"no answer to {CANARY}", "one", "wait")), "crm: found no answer to "),
        (ValueError(f"row {SECRET}"), "a: found an unexpected ValueError"),
    ],
)
def test_the_span_of_a_push_that_failed_says_why_without_a_row_value_or_a_secret(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, error: Exception, described: str
) -> None:
    def failing(one: SyncPush, only: str | None) -> None:
        one._shared.watch.begin(Bound("a", "crm.a", "run", "invocation"))
        raise error

    register_secret(CANARY)
    monkeypatch.setattr(SyncPush, "push", failing)
    pushing = pusher(orders=5)
    with watched_by(pushing, Screen(lambda *_: None)):
        pushing.push(resolved("a", "orders"), Overview())
    whole, pushed = (named(list(exporter.get_finished_spans()), name)[0] for name in ("invocation", "push"))
    assert str(pushed.status.description).startswith(described)
    assert whole.status.description == "a: failed"
    assert not [text for text in (CANARY, str(SECRET)) if text in pushed.to_json() + whole.to_json()]


class Broken:
    def begin(self, bound: Bound) -> Progress:
        def tell(number: Number, value: float) -> None:
            raise RuntimeError

        return tell

    def end(self, sync: str, status: str, *, wrong: str = "") -> None:
        raise RuntimeError


@pytest.mark.guarantee("What people look at")
def test_a_push_goes_on_when_something_that_looks_on_is_broken() -> None:
    exporter, tracing = watched()
    assert push("crm_contacts", Watches(Broken(), tracing)) == ("crm_contacts", ROWS)
    assert len(named(list(exporter.get_finished_spans()), "push")) == 1


@pytest.mark.guarantee("What people look at")
def test_without_opentelemetry_there_are_no_spans_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with traced("i") as watches:
        assert watches == ()


@pytest.mark.guarantee("What people look at")
@pytest.mark.parametrize("provider", ["", "nope"])
def test_a_provider_of_opentelemetry_that_cannot_be_loaded_keeps_no_push_back(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", provider)
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    with traced("i") as watches:
        assert watches == ()


def test_versions_of_one_model_that_failed_are_two_names() -> None:
    exporter, tracing = watched()
    times = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:03Z")
    tracing.captured(
        {f"model.shop.people{version}": ChangelogResult("error", None, "", *times) for version in ("", ".v1", ".v2")}
    )
    tracing.close()
    (whole,) = named(list(exporter.get_finished_spans()), "invocation")
    assert whole.status.description == "people: error, people.v1: error, people.v2: error"
