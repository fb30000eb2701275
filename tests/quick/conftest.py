"""Pure tests: no JVM, no server but HTTP on loopback, no network."""

from tests.support.servers.http import server

__all__ = ["server"]
