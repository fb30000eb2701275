"""Pure tests: no JVM, no server but HTTP on loopback, no network."""

from tests.support.servers.http import server
from tests.support.sinks.sqlite_file import db, path

__all__ = ["db", "path", "server"]
