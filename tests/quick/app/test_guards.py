"""Guards, as pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.app.guards import asks_for_visible_rows, check_guards, failed_tests, refuse_unknown, violations
from dbt_reverse_etl.app.push_report import Report
from dbt_reverse_etl.base.errors import ConfigurationError, GuardBlocked
from dbt_reverse_etl.config.guards import Guards
from dbt_reverse_etl.delivery.counts import PerOperation
from dbt_reverse_etl.delivery.health import Health, Left, Standing

counts = st.builds(PerOperation, *[st.integers(0, 1000)] * 3)


@pytest.mark.guarantee("Guards")
@given(counts, st.integers(0, 1000), st.integers(0, 1000), st.booleans())
def test_a_push_passes_exactly_if_its_deletes_are_within_the_limit(
    planned: PerOperation, live_rows: int, most: int, first: bool
) -> None:
    found = violations(Guards.model_validate({"max_deletes": most or 1}), planned, live_rows, first=first)
    emptied = planned.delete > 0 and live_rows == 0
    assert bool(found) is (planned.delete > (most or 1) or emptied)


@pytest.mark.guarantee("Guards")
@given(counts, st.integers(1, 1000), st.integers(1, 100))
def test_a_share_is_of_the_rows_before_the_push(planned: PerOperation, live_rows: int, percent: int) -> None:
    guards = Guards.model_validate({"max_changes": f"{percent}%"})
    before = max(1, live_rows - planned.insert + planned.delete)
    assert bool(violations(guards, planned, live_rows, first=False)) is (planned.total > before * percent / 100)
    not_inserted = planned.update + planned.delete
    assert bool(violations(guards, planned, live_rows, first=True)) is (not_inserted > before * percent / 100)


limits = st.one_of(st.none(), st.integers(1, 50), st.integers(1, 100).map(lambda percent: f"{percent}%"))
few = st.builds(PerOperation, *[st.sampled_from([0, 0, 1, 5])] * 3)


@pytest.mark.guarantee("Guards")
@given(few, limits, limits, st.booleans())
def test_the_rows_that_a_filter_shows_are_counted_only_where_they_may_decide(
    planned: PerOperation, deletes: int | str | None, changes: int | str | None, first: bool
) -> None:
    guards = Guards.model_validate({"max_deletes": deletes, "max_changes": changes})
    shown = planned.insert + planned.update  # at least: they are in the head
    found = [violations(guards, planned, shown + more, first=first) for more in (0, 1, 10, 10**7)]
    is_asked = asks_for_visible_rows(guards, planned, first=first)
    assert is_asked or [bool(one) for one in found] == [bool(found[0])] * 4
    if not (planned.delete or planned.update or planned.insert):
        return
    shares = [limit for limit in (deletes, changes) if isinstance(limit, str)]
    assert not is_asked or shares or not shown


@pytest.mark.guarantee("Guards")
@given(counts, counts, st.integers(1, 99), st.integers(1, 99))
def test_an_override_holds_for_its_head_and_its_counts_only(
    planned: PerOperation, other: PerOperation, head: int, other_head: int
) -> None:
    word = f"crm@{head}:+{planned.insert}~{planned.update}-{planned.delete}"
    assert check_guards("crm", ["too many"], planned, head, [word]) == word
    with pytest.raises(GuardBlocked) as refused:
        check_guards("crm", ["too many"], planned, head, [])
    assert f"--override '{word}'" in str(refused.value)
    if (other, other_head) != (planned, head):
        with pytest.raises(GuardBlocked):
            check_guards("crm", ["too many"], other, other_head, [word])


def test_nothing_is_asked_of_a_push_without_an_objection() -> None:
    assert check_guards("crm", [], PerOperation(delete=9), 3, ["crm@3:+0~0-9"]) == ""


def test_a_blocked_retry_names_itself_for_a_push_would_leave_out_the_rows_that_wait() -> None:
    with pytest.raises(GuardBlocked, match=r"='crm@3:\+0~0-9' dbt-reverse-etl retry --select crm"):
        check_guards("crm", ["too many"], PerOperation(delete=9), 3, [], retry=True)


def test_failed_tests_are_named_as_dbt_names_them() -> None:
    assert failed_tests("people", []) == []
    assert failed_tests("people", ["test.shop.current_unique_people_id.12ab34cd56"]) == [
        "tests not passed of people: current_unique_people_id"
    ]
    unit_tests = ["unit_test.shop.people.valid_email", "unit_test.shop.people.no.mail", "test.shop.my.test"]
    assert failed_tests("people", unit_tests) == ["tests not passed of people: valid_email, no.mail, my.test"]
    [all_of_them] = failed_tests("people", [f"test.shop.t{number}.0123456789" for number in range(9)])
    assert all_of_them == f"tests not passed of people: {', '.join(f't{number}' for number in range(9))}"


def test_the_next_step_of_a_blocked_push_fits_into_an_alert_whatever_was_found() -> None:
    sync, model, test = (word + "_" * (63 - len(word)) for word in ("crm", "people", "unique"))  # dbt's longest test
    planned = PerOperation(123_456_789, 123_456_789, 123_456_789)
    found = failed_tests(model, [f"test.shop.{test}.0123456789"] * 9)
    guards = Guards.model_validate({"max_deletes": "10%", "max_changes": "10%"})
    with pytest.raises(GuardBlocked) as blocked:
        check_guards(sync, [*violations(guards, planned, 2 * 10**8, first=False), *found], planned, 12345, [])
    here = Standing(Health.FAILING, left=(Left("rejected", "HTTP 422", 3, "next_run"),))
    report = Report(sync, "crm.people", "blocked", message=str(blocked.value), standing=here)
    next_step = report.message[report.message.index(". Next: ") :]
    found, mark, rest = report.why.partition("…")
    assert (len(report.message) > 1000, len(report.why)) == (True, 1000)
    assert report.message.startswith(found)
    assert mark + rest == f"…{next_step}…"


def test_a_text_that_does_not_fit_into_an_alert_ends_with_an_ellipsis() -> None:
    whole, cut = (Report("crm", "crm.people", "failed", message="x" * length).why for length in (1000, 1001))
    assert whole == "x" * 1000
    assert cut == "x" * 999 + "…"


@pytest.mark.guarantee("Guards")
@given(counts, st.integers(1, 99))
def test_an_override_that_a_blocked_push_has_printed_is_known_and_no_other(planned: PerOperation, head: int) -> None:
    with pytest.raises(GuardBlocked) as blocked:
        check_guards("crm", ["too much"], planned, head, [])
    printed = str(blocked.value).rpartition("--override '")[2].removesuffix("'")
    refuse_unknown([printed], {"crm"})
    for wrong in ("crm", printed.replace("crm", "crn"), f"{printed}x", printed.replace("@", "@-"), "x" * 10**6):
        with pytest.raises(ConfigurationError) as refused:
            refuse_unknown([printed, wrong], {"crm"})
        assert len(str(refused.value)) < 300
    assert refused.value.exit_code == 2
