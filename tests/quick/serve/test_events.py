"""Signatures and events of dbt Cloud's webhooks, without a server."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbt_reverse_etl.serve.event import is_signed, is_stale, parse_event
from tests.support.servers.cloud_api import event, signature

# Of RFC 4231, test case 2 (HMAC-SHA-256), and one made with `openssl dgst -sha256 -hmac`.
VECTORS = [
    (b"what do ya want for nothing?", "Jefe", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
    (
        b'{"eventId":"wev_1"}',
        "a secret of sixteen or more",
        "45c34ad0bd1a6796d93ea77da137d03a513c3b60966cb8c7e69c7e6686af74fe",
    ),
]


@pytest.mark.guarantee("dbt Cloud")
@pytest.mark.parametrize(("body", "secret", "header"), VECTORS)
def test_the_signatures_of_published_vectors_are_accepted(body: bytes, secret: str, header: str) -> None:
    assert is_signed(body, header, secret)
    assert not is_signed(body + b" ", header, secret)
    assert not is_signed(body, header, f"{secret} ")


@given(st.binary(max_size=200), st.text(max_size=90))
def test_no_other_header_is_accepted_and_none_is_an_error(body: bytes, header: str) -> None:
    right = signature(body, "secret")
    assert is_signed(body, header, "secret") == (header.strip().lower() == right)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_event_or_none(body: bytes) -> None:
    assert parse_event(body) is None


def test_an_event_of_the_documented_form_is_read() -> None:
    read = parse_event(event(7, timestamp="2023-01-31T19:29:35.789265936Z", unknown="key"))
    assert read is not None
    assert (read.event_type, read.account_id) == ("job.run.completed", 12)
    assert (read.job_id, read.run_id, read.status) == (345, 7, 10)
    assert read.at == datetime(2023, 1, 31, 19, 29, 35, 789265, timezone.utc)


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("2023-01-31T19:29:35Z", 0),
        ("2023-01-31T19:29:35.1Z", 100_000),
        ("2023-01-31 19:29:35.123456+00:00", 123_456),
        ("2023-01-31T21:29:35.123456789+02:00", 123_456),
        ("2023-01-31T19:29:35", 0),
    ],
)
def test_times_are_read_as_dbt_cloud_writes_them(text: str, second: int) -> None:
    read = parse_event(event(1, timestamp=text))
    assert read is not None
    assert read.at == datetime(2023, 1, 31, 19, 29, 35, second, timezone.utc)


@given(st.integers(-10_000, 10_000))
def test_an_event_counts_from_its_window_before_now_to_five_minutes_after(seconds: int) -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    read = parse_event(event(1, timestamp=(now + timedelta(seconds=seconds)).isoformat()))
    assert read is not None
    assert is_stale(read, now, timedelta(seconds=3600)) == (not -3600 <= seconds <= 300)
