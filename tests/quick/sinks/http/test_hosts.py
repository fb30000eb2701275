"""What a host's name tells: nothing may pass for this machine, and no spelling hides an address of cloud metadata."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dbt_reverse_etl.sinks.hosts import is_loopback, is_metadata_host

NUMBERS = st.integers(0, 2**32 - 1) | st.integers(0xA9FE0000, 0xA9FEFFFF) | st.integers(0x7F000000, 0x7FFFFFFF)

OF_CLOUDS = ("100.100.100.200", "168.63.129.16", "192.0.0.192")  # of Alibaba, Azure, Oracle


def spellings(number: int) -> Iterator[str]:
    """Every form that the system reads as this IPv4 address: one to four parts, each in any base."""
    a, b, c, d = number.to_bytes(4, "big")
    for parts in ((number,), (a, number & 0xFFFFFF), (a, b, number & 0xFFFF), (a, b, c, d)):
        for form in ("{}", "{:#x}", "{:#X}", "0{:o}"):
            yield ".".join(form.format(part) for part in parts)


@given(NUMBERS)
@example(2852039166)
@example(0x646464C8)
@example(0xA83F8110)
@example(0xC00000C0)
def test_an_address_of_cloud_metadata_is_known_in_every_spelling_and_nothing_else_is(number: int) -> None:
    address = ipaddress.IPv4Address(number)
    metadata = address in ipaddress.ip_network("169.254.0.0/16") or str(address) in OF_CLOUDS
    for host in spellings(number):
        assert is_metadata_host(host) == metadata, host


@given(
    st.one_of(NUMBERS.flatmap(lambda number: st.sampled_from([*spellings(number)])), st.text("0127.xf:%l", max_size=12))
)
@example("127.0.0.1.example.com")
@example("0x7f.1")
@example("::ffff:10.0.0.1")
@example("::1%l")
def test_only_what_the_system_resolves_to_loopback_counts_as_loopback(host: str) -> None:
    if is_loopback(host):
        assert resolved(host) or "%" in host
        assert all(ipaddress.ip_address(address).is_loopback for address in resolved(host))


def resolved(host: str) -> set[str]:
    """The addresses to which a connection would go; none with a scope that this machine does not have."""
    with suppress(socket.gaierror):
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, 80, flags=socket.AI_NUMERICHOST)}
    return set()


@pytest.mark.parametrize(
    "host", ["crm.example.com", "10.0.0.1", "", "localhost", "::1", "1.2.3.4.5", "169.254.1.example"]
)
def test_other_hosts_are_no_cloud_metadata(host: str) -> None:
    assert not is_metadata_host(host)
