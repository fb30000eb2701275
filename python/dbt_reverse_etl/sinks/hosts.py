"""What the name of a host tells by itself, without asking DNS."""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether a connection to this host stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_link_local(host: str) -> bool:
    """Whether it is a link-local address, where clouds serve the credentials of a machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _is_legacy_link_local(host)
    inner = getattr(address, "ipv4_mapped", None) or address
    return bool(inner.is_link_local)


def _is_legacy_link_local(host: str) -> bool:
    """What the system reads as an IPv4 address beyond four decimal numbers: `2852039166`, `0xa9fea9fe`, `169.254.43518`."""
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host)).is_link_local
    except OSError:
        return False
