"""A blob service on loopback that answers what pyarrow asks of Azure, and keeps each content that a blob had."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_DATE = "Sat, 28 Nov 2026 17:00:00 GMT"
_HEADERS = {
    **{"ETag": '"1"', "Last-Modified": _DATE, "Content-Type": "application/octet-stream"},
    **{
        "x-ms-creation-time": _DATE,
        "x-ms-blob-type": "BlockBlob",
        "x-ms-request-id": "1",
        "x-ms-version": "2023-11-03",
    },
    **{"x-ms-server-encrypted": "true", "x-ms-request-server-encrypted": "true"},
    **{"x-ms-copy-id": "1", "x-ms-copy-status": "success", "x-ms-copy-completion-time": _DATE},
    "x-ms-lease-id": "00000000-0000-0000-0000-000000000000",
}
_BLOB = (
    "<Blob><Name>{}</Name><Properties><Creation-Time>{date}</Creation-Time><Last-Modified>{date}</Last-Modified>"
    "<Etag>1</Etag><Content-Length>{}</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>"
)
_LIST = '<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>{}</Blobs><NextMarker /></EnumerationResults>'


class BlobService:
    """One container.

    Attributes:
        blobs: by path below the container.
        contents: each content that a blob of this path had, in order.
        denied: words of a request's method and URL that get 403.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.contents: dict[str, list[bytes]] = {}
        self.denied: tuple[str, ...] = ()
        self.blocks: dict[str, list[bytes]] = {}
        self.address = ""

    def put(self, name: str, content: bytes) -> None:
        self.blobs[name] = content
        self.contents.setdefault(name, []).append(content)

    def filesystem(self) -> Any:
        from pyarrow.fs import AzureFileSystem

        places = {"blob_storage_authority": self.address, "dfs_storage_authority": self.address}
        schemes = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
        return AzureFileSystem("account", account_key=base64.b64encode(b"key").decode(), **places, **schemes)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: BlobService

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _name(self, url: str) -> str:
        return urlsplit(url).path.partition("/box/")[2]

    def _answer(self, status: int, body: bytes = b"", **more: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Length": str(len(body)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        content, name = self.rfile.read(int(self.headers["Content-Length"])), self._name(self.path)
        kind = parse_qs(urlsplit(self.path).query).get("comp")
        if any(all(word in f"{self.command} {self.path}" for word in one.split()) for one in self.service.denied):
            self._answer(403, **{"x-ms-error-code": "AuthorizationFailure"})
        elif kind == ["lease"]:
            self._answer(201)
        elif kind == ["block"]:
            self.service.blocks.setdefault(name, []).append(content)
            self._answer(201)
        else:
            copied = self.headers.get("x-ms-copy-source")
            blocks = b"".join(self.service.blocks.pop(name, []))
            self.service.put(
                name, self.service.blobs[self._name(copied)] if copied else blocks if kind == ["blocklist"] else content
            )
            self._answer(202 if copied else 201)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if query.get("action") == ["getAccessControl"]:
            self._answer(400, **{"x-ms-error-code": "HierarchicalNamespaceNotEnabled"})
        elif query.get("comp") == ["list"]:
            below = [(name, blob) for name, blob in self.service.blobs.items() if name.startswith(query["prefix"][0])]
            shown = "".join(_BLOB.format(name, len(blob), date=_DATE) for name, blob in sorted(below))
            self._answer(200, _LIST.format(shown).encode(), **{"Content-Type": "application/xml"})
        elif (blob := self.service.blobs.get(self._name(self.path))) is None:
            self._answer(404, **{"x-ms-error-code": "BlobNotFound"})
        elif self.command == "HEAD":
            self._answer(200, **{"Content-Length": str(len(blob))})
        else:
            self._answer(206, blob, **{"Content-Range": f"bytes 0-{len(blob) - 1}/{len(blob)}"})

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        gone = self.service.blobs.pop(self._name(self.path), None)
        self._answer(404 if gone is None else 202, **{"x-ms-error-code": "BlobNotFound"} if gone is None else {})


@contextmanager
def blob_service() -> Iterator[BlobService]:
    service = BlobService()
    handler = type("Handler", (_Handler,), {"service": service})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        service.address = f"127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield service
        finally:
            server.shutdown()
