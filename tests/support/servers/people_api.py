"""An API over HTTP that keeps rows: PUT and DELETE by key."""

from __future__ import annotations

import threading

from tests.support.servers.http import Received, Reply


class PeopleApi:
    """What it was told, by the last part of the path; `deleted` says in which order rows went."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}
        self.deleted: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, request: Received) -> Reply:
        key = int(request.path.rsplit("/", 1)[1])
        with self._lock:
            if request.method == "DELETE":
                self.deleted.append(key)
                self.rows.pop(key, None)
            else:
                self.rows[key] = request.json["name"]
        return Reply(204)
