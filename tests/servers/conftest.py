"""Tests with real servers and processes, without Spark."""

from tests.support.fixtures import mysql_db, mysql_proxy, people_db, proxy, world
from tests.support.servers.http import server
from tests.support.sinks.sqlite_file import db, path

__all__ = ["db", "mysql_db", "mysql_proxy", "path", "people_db", "proxy", "server", "world"]
