"""A blob service on loopback that answers what pyarrow asks of Azure, and keeps each content that a blob had."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.servers.http import Received, Reply, http_server

Query = dict[str, list[str]]
_DATE = "Sat, 28 Nov 2026 17:00:00 GMT"
_HEADERS = {
    **{"ETag": '"1"', "Last-Modified": _DATE, "Content-Type": "application/octet-stream"},
    **{"x-ms-creation-time": _DATE, "x-ms-blob-type": "BlockBlob"},
    **{"x-ms-request-id": "1", "x-ms-version": "2023-11-03"},
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

    def answer(self, request: Received) -> Reply:
        asked = {"PUT": self._write, "DELETE": self._delete}.get(request.method, self._read)
        reply = asked(request, _name(request.path), parse_qs(urlsplit(request.path).query))
        return replace(reply, headers={**_HEADERS, **reply.headers})

    def _write(self, request: Received, name: str, query: Query) -> Reply:
        kind, copied = query.get("comp"), request.headers.get("x-ms-copy-source")
        if any(all(word in f"PUT {request.path}" for word in one.split()) for one in self.denied):
            return _error(403, "AuthorizationFailure")
        if kind == ["block"]:
            self.blocks.setdefault(name, []).append(request.body)
        elif kind != ["lease"]:
            blocks = b"".join(self.blocks.pop(name, []))
            content = blocks if kind == ["blocklist"] else request.body
            self.put(name, self.blobs[_name(copied)] if copied else content)
        return Reply(202 if copied else 201)

    def _read(self, request: Received, name: str, query: Query) -> Reply:
        if query.get("action") == ["getAccessControl"]:
            return _error(400, "HierarchicalNamespaceNotEnabled")
        if query.get("comp") == ["list"]:
            below = [(name, blob) for name, blob in self.blobs.items() if name.startswith(query["prefix"][0])]
            shown = "".join(_BLOB.format(name, len(blob), date=_DATE) for name, blob in sorted(below))
            return Reply(200, _LIST.format(shown).encode(), {"Content-Type": "application/xml"})
        if (blob := self.blobs.get(name)) is None:
            return _error(404, "BlobNotFound")
        if request.method == "HEAD":
            return Reply(200, length=len(blob))
        return Reply(206, blob, {"Content-Range": f"bytes 0-{len(blob) - 1}/{len(blob)}"})

    def _delete(self, _: Received, name: str, __: Query) -> Reply:
        return _error(404, "BlobNotFound") if self.blobs.pop(name, None) is None else Reply(202)


def _name(url: str) -> str:
    return urlsplit(url).path.partition("/box/")[2]


def _error(status: int, code: str) -> Reply:
    return Reply(status, headers={"x-ms-error-code": code})


@contextmanager
def blob_service() -> Iterator[BlobService]:
    service = BlobService()
    with http_server(service.answer) as server:
        service.address = f"127.0.0.1:{server.port}"
        yield service
