"""A schema registry over real HTTP: what of the documented REST API producers and consumers of Avro use.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.servers.http import HttpServer, Received, Reply, json_reply

USER, PASSWORD = "writer", "canary-registry-31622776"
_LOGIN = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"


class SchemaRegistry:
    """Schemas by id and by subject; a schema that gives a field another type is incompatible.

    Attributes:
        url: where it listens.
        ids: schemas.
    """

    def __init__(self) -> None:
        self.ids: dict[int, str] = {}
        self.subjects: dict[str, list[int]] = {}
        self._server = HttpServer(self._answer)
        self.url, self.stop = self._server.url, self._server.close

    def _answer(self, request: Received) -> Reply:
        status, body = 401, {"error_code": 401, "message": "canary-unauthorized"}
        if request.headers.get("authorization") == _LOGIN:
            path = request.path.partition("?")[0].split("/")[1:]
            status, body = self.get(path) if request.method == "GET" else self.post(path, request.json)
        return json_reply(body, status, **{"Content-Type": "application/vnd.schemaregistry.v1+json"})

    def get(self, path: list[str]) -> tuple[int, dict[str, Any]]:
        """`/schemas/ids/{id}`."""
        number = int(path[-1]) if path[:2] == ["schemas", "ids"] else 0
        return (200, {"schema": self.ids[number]}) if number in self.ids else _MISSING

    def post(self, path: list[str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """`/subjects/{subject}/versions`: register; `/subjects/{subject}`: look up."""
        known = self.subjects.setdefault(path[1], [])
        for version, number in enumerate(known, 1):
            if self.ids[number] == body["schema"]:
                return 200, {"subject": path[1], "id": number, "version": version, "schema": self.ids[number]}
        if path[2:] != ["versions"]:
            return _MISSING
        if known and not _fit(self.ids[known[-1]], body["schema"]):
            return 409, {"error_code": 409, "message": "canary: Schema being registered is incompatible"}
        number = len(self.ids) + 1
        self.ids[number] = body["schema"]
        known.append(number)
        return 200, {"id": number}


_MISSING = 404, {"error_code": 40403, "message": "canary: Schema not found"}


def _fit(old: str, new: str) -> bool:
    before, after = ({field["name"]: field["type"] for field in json.loads(text)["fields"]} for text in (old, new))
    return all(before[name] == after[name] for name in before.keys() & after.keys())


@contextmanager
def a_registry() -> Iterator[SchemaRegistry]:
    """A registry of its own for a test."""
    registry = SchemaRegistry()
    try:
        yield registry
    finally:
        registry.stop()
