"""Connections that look at the clock and at where they lead; urllib3 does neither."""

from __future__ import annotations

import io
import math
import socket
import time
from http.client import HTTPResponse
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from dbt_reverse_etl.sinks.hosts import is_metadata_host


class _Timely(io.RawIOBase):
    """What comes over a connection, until its time is over: a timeout of the socket begins anew with each byte."""

    def __init__(self, raw: io.RawIOBase, seconds: float | None) -> None:
        self._raw = raw
        self.until = math.inf if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > self.until:
            raise TimeoutError
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    """Its status and headers come within one timeout; for the body `_read` looks at the clock."""

    def __init__(self, sock: socket.socket, *arguments: Any, **more: Any) -> None:
        super().__init__(sock, *arguments, **more)
        self._timely = _Timely(self.fp.detach(), sock.gettimeout())
        self.fp = io.BufferedReader(self._timely)

    def begin(self) -> None:
        super().begin()
        self._timely.until = math.inf


class MetadataHost(ValueError):
    """A name may lead there although no setting says so."""


class _Connection(HTTPConnection):
    response_class = _Response

    def connect(self) -> None:
        super().connect()
        refuse_metadata_host(self.sock)


class _TlsConnection(HTTPSConnection):
    response_class = _Response

    def connect(self) -> None:
        super().connect()
        refuse_metadata_host(self.sock)


def refuse_metadata_host(connected: socket.socket | None) -> None:
    """Before the first byte of a request: of the address that was connected to, not of a name that may resolve anew."""
    if connected is not None and is_metadata_host(connected.getpeername()[0]):
        raise MetadataHost


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


POOLS: dict[str, type[HTTPConnectionPool]] = {"http": _Pool, "https": _TlsPool}
