"""Tests with real servers and processes, without Spark."""

from tests.support.fixtures import mysql_db, mysql_proxy, people_db, proxy, world
from tests.support.servers.http import server

__all__ = ["mysql_db", "mysql_proxy", "people_db", "proxy", "server", "world"]
