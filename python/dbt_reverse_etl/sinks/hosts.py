"""What the name of a host tells by itself, without asking DNS."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import SplitResult, urlsplit

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Where clouds serve the credentials of a machine, beside the link-local addresses: AWS (and its pods) and Google by IPv6, Scaleway's, Oracle's Classic, Alibaba,
# Azure's host.
_METADATA = {
    *map(ipaddress.ip_address, ("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42")),
    *map(ipaddress.ip_address, ("192.0.0.192", "100.100.100.200", "168.63.129.16")),
}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address stands in its last four bytes
# RFC 8215: a prefix of one's own in here, of a length that nobody else knows; these bytes hold the IPv4 address (RFC 6052, section 2.2).
_OWN_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_BYTES = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))


def is_loopback(host: str) -> bool:
    """Whether a connection to this host stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parts_of(url: str) -> SplitResult | None:
    """The parts of an http or https URL; None: it has no usable host or port. The text of `urlsplit`'s error would quote a login."""
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def leaves_unencrypted(parts: SplitResult) -> bool:
    """Whether what is sent to this URL leaves the machine without TLS."""
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def is_metadata_host(host: str) -> bool:
    """Whether it is an address where clouds serve the credentials of a machine; every link-local one may be."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:  # what the system reads as one, beyond four decimal numbers: `2852039166`, `0xa9fea9fe`, `169.254.43518`
            address = ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return False
    return any(inner.is_link_local or inner in _METADATA for inner in _inner(address))


def _inner(address: _Address) -> list[_Address]:
    """The IPv4 addresses that a mapped, tunnelled or translated IPv6 address may lead to."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address in _OWN_NAT64:
        return [ipaddress.IPv4Address(bytes(address.packed[n] for n in places)) for places in _BYTES]
    if address in _NAT64:
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address.ipv4_mapped or address.sixtofour or ipaddress.IPv6Address(int(address))]  # without its scope
