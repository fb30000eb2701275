"""A schema registry over real HTTP: what of the documented REST API producers and consumers of Avro and Protobuf use.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from google.protobuf.descriptor_pb2 import FileDescriptorProto

USER, PASSWORD = "writer", "canary-registry-31622776"


class SchemaRegistry:
    """Schemas by id and by subject; a schema that gives a field, or its number, another type is incompatible.

    Attributes:
        url: where it listens.
        ids: schemas; of Protobuf as descriptors in base64, which it takes and, asked for `format=serialized`, gives.
    """

    def __init__(self) -> None:
        self.ids: dict[int, str] = {}
        self.types: dict[int, str] = {}
        self.subjects: dict[str, list[int]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                self._answer(*registry.get(path.split("/")[1:], parse_qs(query)))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(*registry.post(self.path.partition("?")[0].split("/")[1:], body))

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                wanted = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
                if self.headers.get("Authorization") != f"Basic {wanted}":
                    status, body = 401, {"error_code": 401, "message": "canary-unauthorized"}
                sent = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: object) -> None:
                """Nothing to the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def get(self, path: list[str], query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """`/schemas/ids/{id}`, `/subjects/{subject}/versions/latest`."""
        if path[0] == "subjects" and path[2:] == ["versions", "latest"]:
            known = self.subjects.get(path[1], [])
            return self._found(path[1], known[-1], len(known), query) if known else _MISSING
        number = int(path[-1]) if path[:2] == ["schemas", "ids"] else 0
        return self._found("", number, 0, query) if number in self.ids else _MISSING

    def _found(
        self, subject: str, number: int, version: int, query: dict[str, list[str]]
    ) -> tuple[int, dict[str, Any]]:
        if self.types[number] == "PROTOBUF" and query.get("format") != ["serialized"]:
            return 501, {"error_code": 501, "message": "canary: here it has no text"}
        kind = {} if self.types[number] == "AVRO" else {"schemaType": self.types[number]}
        place = {"subject": subject, "version": version, "id": number} if subject else {}
        return 200, {**place, **kind, "schema": self.ids[number]}

    def post(self, path: list[str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """`/subjects/{subject}/versions`: register; `/subjects/{subject}`: look up."""
        known = self.subjects.setdefault(path[1], [])
        for version, number in enumerate(known, 1):
            if self.ids[number] == body["schema"]:
                return 200, {"subject": path[1], "id": number, "version": version, "schema": self.ids[number]}
        if path[2:] != ["versions"]:
            return _MISSING
        kind = body.get("schemaType", "AVRO")
        if known and not (kind == self.types[known[-1]] and _fit(kind, self.ids[known[-1]], body["schema"])):
            return 409, {"error_code": 409, "message": "canary: Schema being registered is incompatible"}
        number = len(self.ids) + 1
        self.ids[number], self.types[number] = body["schema"], kind
        known.append(number)
        return 200, {"id": number}


_MISSING = 404, {"error_code": 40403, "message": "canary: Schema not found"}


def _fit(kind: str, old: str, new: str) -> bool:
    if kind == "PROTOBUF":
        types = [
            dict(_types(FileDescriptorProto.FromString(base64.b64decode(text)).message_type)) for text in (old, new)
        ]
    else:
        types = [{field["name"]: field["type"] for field in json.loads(text)["fields"]} for text in (old, new)]
    return all(types[0][name] == types[1][name] for name in types[0].keys() & types[1].keys())


def _types(messages: Iterable[Any], path: str = "") -> Iterator[tuple[tuple[str, int], tuple[int, int, str]]]:
    """The type of each number of each message type."""
    for message in messages:
        for field in message.field:
            yield (f"{path}.{message.name}", field.number), (field.label, field.type, field.type_name)
        yield from _types(message.nested_type, f"{path}.{message.name}")


@contextmanager
def a_registry() -> Iterator[SchemaRegistry]:
    """A registry of its own for a test."""
    registry = SchemaRegistry()
    try:
        yield registry
    finally:
        registry.stop()
