"""Connections to `serve`: short, few for each client, and an idle one never keeps another out."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

LIFE = 20.0  # seconds that a connection lasts at most
OF_A_CLIENT, IN_ALL = 64, 256


class Connection(H11Protocol):
    """One request and its answer. Beyond the bounds the new connection replaces the oldest: a client with many idle ones only loses its own."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As its base; and it ends in time."""
        super().connection_made(transport)
        self._began = self.loop.time()
        self._end = self.loop.call_later(LIFE, transport.abort)
        open_ones = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        of_client = [one for one in open_ones if one._host == self._host]
        for some, most in ((of_client, OF_A_CLIENT), (open_ones, IN_ALL)):
            if len(some) > most:
                min(some, key=lambda one: one._began).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """As its base."""
        self._end.cancel()
        super().connection_lost(exc)

    @property
    def _host(self) -> str:
        return self.client[0] if self.client else ""
