"""How long an answer asks to wait: Retry-After, and a vendor's header of its own."""

from __future__ import annotations

import math
from datetime import timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from urllib3 import HTTPHeaderDict

from dbt_reverse_etl.sinks.base import Mode
from dbt_reverse_etl.sinks.http.answer import Answer, Sent, judge
from dbt_reverse_etl.sinks.http.options import HttpOptions
from dbt_reverse_etl.sinks.http.pause import retry_after
from tests.support.effort import scaled
from tests.support.servers.http import HttpServer, Reply
from tests.support.sinks.http_sending import NOW, TEXT, inserts, send, task_of


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("9" * 400, 1e15),
        ("-5", None),
        ("soon", None),
        ("2.0", 2.0),
        ("1.5", 1.5),
        (f"2.{'0' * 400}", 2.0),
        ("1.", None),
        ("1.5.2", None),
        ("7, 9", 9.0),  # where a gateway adds its own
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("", None),
    ],
)
def test_retry_after_is_handed_to_the_engine(header: str, seconds: float | None, server: HttpServer) -> None:
    server.default = Reply(429, headers={"Retry-After": header})
    assert send(server.url, task_of(), *inserts(1)).retry_after == seconds


def test_retry_after_takes_a_date_in_the_future(server: HttpServer) -> None:
    server.default = Reply(503, headers={"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"})
    assert (send(server.url, task_of(), *inserts(1)).retry_after or 0) > 365 * 86_400


@pytest.mark.guarantee("HTTP")
@settings(max_examples=scaled(200), deadline=None)
@given(st.integers(-(10**6), 10**9))
def test_seconds_and_every_form_of_a_date_mean_the_same_moment(seconds: int) -> None:
    moment = NOW + timedelta(seconds=seconds)
    assert retry_after({"Retry-After": str(max(0, seconds))}, NOW) == max(0, seconds)
    # RFC 9110 5.6.7: IMF-fixdate, and the obsolete forms of RFC 850 and of asctime.
    forms = [format_datetime(moment, usegmt=True), moment.strftime("%a %b %d %H:%M:%S %Y").replace(" 0", "  ", 1)]
    if 1969 <= moment.year <= 2068:  # two digits of the year
        forms.append(moment.strftime("%A, %d-%b-%y %H:%M:%S GMT"))
    for text in forms:
        assert retry_after({"Retry-After": text}, NOW) == max(0, seconds), text


def test_of_several_pauses_the_longest_counts_be_they_seconds_or_dates() -> None:
    for seconds, other in ((40, 1700), (1700, 40)):
        dates = [format_datetime(NOW + timedelta(seconds=one), usegmt=True) for one in (seconds, other)]
        for text in (f"{seconds}, {other}", f"{seconds}, {dates[1]}", f"{dates[0]}, {other}", ", ".join(dates)):
            assert retry_after({"Retry-After": text}, NOW) == 1700, text
    for text in ("5,", "5, soon", "5, 3;"):
        assert retry_after({"Retry-After": text}, NOW) == 5, text


@pytest.mark.guarantee("HTTP")
@settings(max_examples=scaled(300), deadline=None)
@given(st.one_of(TEXT, st.from_regex(r"[A-Z][a-z]{2}, ?\d{1,3}[ -][A-Z][a-z]{2}[ -]\d{1,6} \d+:\d+:\d+ ?\w*")))
def test_junk_is_no_pause_and_never_an_exception_or_a_negative_one(text: str) -> None:
    for headers in ({"Retry-After": text}, {"Retry-After": format_datetime(NOW, usegmt=True), "Date": text}):
        seconds = retry_after(headers, NOW)
        assert seconds is None or (seconds >= 0 and math.isfinite(seconds))


@pytest.mark.guarantee(
    "HTTP", "A date at which to come back is counted from the answer's own, whatever this clock shows"
)
@pytest.mark.parametrize("hours", [-30, 0, 30])
def test_a_date_is_counted_from_the_date_of_the_answer(hours: int) -> None:
    there = NOW + timedelta(hours=hours)
    headers = {"Retry-After": format_datetime(there + timedelta(seconds=40), usegmt=True)}
    headers["Date"] = format_datetime(there, usegmt=True)
    assert retry_after(headers, NOW) == 40
    reset = {"X-Reset": str(int(there.timestamp()) + 40), "Date": headers["Date"]}
    options = HttpOptions.model_validate({"retry_after": {"header": "X-Reset", "unit": "epoch"}})
    answer = Answer(429, headers=HTTPHeaderDict(reset))
    assert judge(answer, Sent(1), options, Mode.UPSERT, NOW).retry_after == 40


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
    unit: str, header: str, value: str, pause: float | None
) -> None:
    options = HttpOptions.model_validate({"retry_after": {"header": "X-RateLimit-Reset", "unit": unit}})

    def paused(headers: dict[str, str], given: HttpOptions, status: int = 429) -> float | None:
        answer = Answer(status, headers=HTTPHeaderDict(headers))
        return judge(answer, Sent(1), given, Mode.UPSERT, NOW).retry_after

    assert paused({header: value}, options) == pause
    assert paused({header: value, "Retry-After": "3"}, options) == 3
    assert paused({header: value}, HttpOptions.model_validate({})) is None
    for status in (408, 423, 425, 503):  # vendors send the header with every answer, and nothing was used up
        assert paused({header: value}, options, status) is None
        assert paused({header: value, "Retry-After": "3"}, options, status) == 3
    locked = {"error": "code", "codes": {"LOCKED": "retryable"}}
    with_codes = options.model_copy(update=HttpOptions.model_validate(locked).model_dump(include={"error", "codes"}))
    for status, seconds in ((403, pause), (409, None)):
        answer = Answer(status, body=b'{"code": "LOCKED"}', headers=HTTPHeaderDict({header: value}))
        assert judge(answer, Sent(1), with_codes, Mode.UPSERT, NOW).retry_after == seconds
