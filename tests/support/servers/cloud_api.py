"""What speaks dbt Cloud's documented API and webhooks on loopback. It is not dbt Cloud itself."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import urllib.request
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

from dbt_reverse_etl.config.manifest import LEDGER_NODE
from tests.support.servers.http import HttpServer, Received, Reply, json_reply

ACCOUNT, JOB = 12, 345
TOKEN, SECRET = "dbtc-canary-Token-8f31", "canary-Secret-77c1-of-the-webhook"
SCHEMA = {"dbt_schema_version": "https://schemas.getdbt.com/dbt/manifest/v12.json"}
Json = dict[str, Any]
ENDED = datetime(2026, 11, 20, 6, 0, tzinfo=timezone.utc)


def results(
    invocation: str, which: str = "run", rows: dict[str, str] | None = None, target: str = "prod", **args: Any
) -> Json:
    """run_results.json of one command."""
    listed = [{"unique_id": name, "status": status} for name, status in (rows or {"model.a": "success"}).items()]
    return {
        "metadata": {"invocation_id": invocation},
        "args": {"which": which, "target": target, **args},
        "results": listed,
    }


@dataclass
class CloudApi:
    """The API of one account.

    Attributes:
        runs: by id, as the API answers.
        files: by run, step and name.
        server: scripted replies come before what it would answer.
    """

    server: HttpServer = field(default_factory=HttpServer)
    runs: dict[int, Json] = field(default_factory=dict)
    files: dict[tuple[int, int, str], bytes] = field(default_factory=dict)
    unknown_jobs: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.server.default = self._answer

    def add_run(
        self,
        run_id: int,
        steps: dict[str, Json] | None = None,
        status: int = 10,
        job: int = JOB,
        *,
        minute: int | None = None,
        ledger: str = "",
        trigger: Json | None = None,
    ) -> None:
        """A run that ended, with the results of each of its dbt commands; the first step is that of the checkout.

        Args:
            minute: in which it ended; otherwise runs end in the order of their numbers.
            ledger: its relation, as the manifests name it; empty: they have none.
            trigger: what the API says of it, beside its cause.
        """
        commands = {"dbt run": results(f"inv-{run_id}")} if steps is None else steps
        names = ["Clone git repository", *(f"Invoke dbt with `{command}`" for command in commands)]
        self.runs[run_id] = {
            "id": run_id,
            "job_definition_id": job,
            "status": status,
            "finished_at": (ENDED + timedelta(minutes=run_id if minute is None else minute)).isoformat(" "),
            "trigger": {"cause": "Scheduled", "schema_override": None, "git_branch": "main", **(trigger or {})},
            "run_steps": [
                {"index": index, "name": name, "status": status, "status_humanized": "Success"}
                for index, name in enumerate(names, 1)
            ],
        }
        for step, read in enumerate(commands.values(), 2):
            nodes = {LEDGER_NODE: {"relation_name": ledger}} if ledger else {}
            manifest = {"metadata": {**SCHEMA, **read["metadata"]}, "nodes": nodes, "exposures": {}}
            self.files[run_id, step, "run_results.json"] = json.dumps(read).encode()
            self.files[run_id, step, "manifest.json"] = json.dumps(manifest).encode()

    def asked(self, text: str) -> list[str]:
        """The paths of the requests that contain a text."""
        return [request.path for request in self.server.received if text in request.path]

    def _answer(self, request: Received) -> Reply:
        if request.headers.get("authorization") != f"Token {TOKEN}":
            return json_reply({"status": {"code": 401}}, 401)
        parts = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = parts.path.removeprefix(f"/api/v2/accounts/{ACCOUNT}/")
        if path == "runs/":
            return self._list(query)
        if found := re.fullmatch(r"jobs/(\d+)/", path):
            return Reply(404) if int(found[1]) in self.unknown_jobs else _data({"id": int(found[1])})
        if found := re.fullmatch(r"runs/(\d+)/", path):
            run = self.runs.get(int(found[1]))
            related = set(json.loads(query.get("include_related", "[]")))
            left_out = {"run_steps", "trigger"} - related
            return _data({name: run[name] for name in run.keys() - left_out}) if run else Reply(404)
        if found := re.fullmatch(r"runs/(\d+)/artifacts/(\S+)", path):
            run_id, name = int(found[1]), found[2]
            last = max((step for run, step, _ in self.files if run == run_id), default=0)
            content = self.files.get((run_id, int(query.get("step", last)), name))
            return Reply(404) if content is None else Reply(200, content, {"Content-Type": "application/json"})
        return Reply(404)

    def _list(self, query: dict[str, str]) -> Reply:
        assert query["order_by"] == "-finished_at"
        chosen = [
            {name: value for name, value in run.items() if name not in ("run_steps", "trigger")}
            for run in self.runs.values()
            if run["job_definition_id"] == int(query["job_definition_id"]) and run["status"] == int(query["status"])
        ]
        # without a time first, as Postgres sorts
        chosen.sort(key=lambda run: (run["finished_at"] is None, str(run["finished_at"])), reverse=True)
        first = int(query["offset"])
        return _data(chosen[first : first + int(query["limit"])])


def _data(data: Any) -> Reply:
    return json_reply({"status": {"code": 200, "is_success": True}, "data": data})


def event(run_id: int, **changes: Any) -> bytes:
    """The body of `job.run.completed`, as the documentation shows it; ids inside `data` are texts."""
    data = {
        "jobId": str(JOB),
        "jobName": "Daily",
        "runId": str(run_id),
        "environmentId": "1",
        "runStatus": "Success",
        "runStatusCode": 10,
        "runReason": "Scheduled",
    }
    body = {
        "accountId": ACCOUNT,
        "webhookId": "wsu_1",
        "eventId": f"wev_{run_id}",
        "timestamp": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f789Z"),
        "eventType": "job.run.completed",
        "webhookName": "push",
        "data": data,
    }
    for name, value in changes.items():
        (data if name in data else body)[name] = value
    return json.dumps(body).encode()


def signature(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def post(url: str, body: bytes, header: str | None = None) -> tuple[int, Json]:
    """Send a webhook, signed unless another header is given."""
    headers = {"Authorization": signature(body) if header is None else header, "Content-Type": "application/json"}
    return fetch(urllib.request.Request(f"{url}/webhook", body, headers))


def fetch(request: urllib.request.Request | str) -> tuple[int, Json]:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")
