"""Tests with a real Spark session, which all tests of a process share."""

from tests.support.fixtures import mysql_db, people_db
from tests.support.servers.http import server
from tests.support.spark_session import compiled, project, spark

__all__ = ["compiled", "mysql_db", "people_db", "project", "server", "spark"]
