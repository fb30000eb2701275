"""A small real CRM for the demo: PUT and DELETE /customers/{id} behind a bearer token, rows kept in memory."""

from __future__ import annotations

import hmac
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PATH = re.compile(r"/customers/(\d+)")


class Crm:
    """Use it in a `with`: it listens on a free port of this machine meanwhile.

    Attributes:
        rows: what was put, by id.
        token: what a client has to send.
        requests: `PUT /customers/1`, in order of arrival; only those with the right token.
    """

    def __init__(self, token: str) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.token = token
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Crm:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> int:
        """Carry out one request; returns the HTTP status."""
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self.token}".encode()):
            return 401
        with self._lock:
            self.requests.append(f"{method} {path}")
            found = _PATH.fullmatch(path)
            if not found:
                return 404
            if method == "DELETE":
                return 204 if self.rows.pop(int(found[1]), None) else 404
            self.rows[int(found[1])] = json.loads(body)
            return 200


def _handler(crm: Crm) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status = crm.answer(self.command, self.path, self.headers.get("Authorization") or "", body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_PUT = do_DELETE = _serve  # noqa: N815  (the names that http.server looks for)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
