"""The API of dbt Cloud, as far as it is needed: version 2, runs and their artifacts.

Source: https://docs.getdbt.com/dbt-cloud/api-v2. Answers are `{"status": ..., "data": ...}`; artifacts are the files themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

import orjson

from dbt_reverse_etl.serve.event import SUCCESS, parse_time
from dbt_reverse_etl.serve.steps import Step
from dbt_reverse_etl.sinks.http.answer import Answer, Failure, retry_after
from dbt_reverse_etl.sinks.http.request import Request
from dbt_reverse_etl.sinks.http.settings import HttpSettings
from dbt_reverse_etl.sinks.http.transport import Transport

LARGEST_ANSWER = 512 * 2**20  # a manifest of a large project takes tens of MiB
PAGE = 50
_SURELY_NO = frozenset({400, 404, 405, 410, 422})


class CloudError(Exception):
    """The API did not give what was asked for; the text never holds what it said.

    Attributes:
        retry_after: seconds that it asked to wait, or None.
        final: another try is unlikely to help.
    """

    def __init__(self, reason: str, pause: float | None = None, *, final: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.retry_after, self.final = reason, pause, final


@dataclass(frozen=True)
class CloudRun:
    """A run as the API tells of it; `steps` are those that ended well, in their order."""

    run_id: int
    job_id: int
    status: int
    steps: Sequence[Step]


@dataclass(frozen=True)
class FinishedRun:
    """A run that ended with success, and when, in seconds since the epoch."""

    run_id: int
    finished_at: float


class Cloud:
    """One account. Calls block for at most the timeout of the settings, and raise CloudError.

    Args:
        count: hears of each answer: its status, or `no answer`.
    """

    def __init__(self, settings: HttpSettings, count: Callable[[str], None]) -> None:
        self._transport = Transport(settings, LARGEST_ANSWER)
        self._count = count

    def close(self) -> None:
        """Close every connection."""
        self._transport.close()

    def run(self, run_id: int) -> CloudRun:
        """A run and its steps."""
        data = self._data(f"runs/{run_id}/", include_related='["run_steps"]')
        try:
            steps = [
                Step(int(step["index"]), str(step["name"]))
                for step in data["run_steps"]
                if int(step["status"]) == SUCCESS
            ]
            return CloudRun(run_id, int(data["job_definition_id"]), int(data["status"]), steps)
        except (KeyError, TypeError, ValueError):
            raise _not_understood("the run") from None

    def finished(self, job_id: int, offset: int) -> list[FinishedRun]:
        """Runs of a job that ended with success, the newest first, `PAGE` at once."""
        data = self._data(
            "runs/",
            job_definition_id=job_id,
            status=SUCCESS,
            order_by="-finished_at",
            limit=PAGE,
            offset=offset,
        )
        try:
            return [FinishedRun(int(run["id"]), parse_time(run["finished_at"]).timestamp()) for run in data]
        except (KeyError, TypeError, ValueError):
            raise _not_understood("the list of runs") from None

    def artifact(self, run_id: int, name: str, step: int) -> bytes:
        """The file that a step of a run has written."""
        return self._get(f"runs/{run_id}/artifacts/{name}", f"{name} of step {step}", step=step)

    def _data(self, path: str, **query: object) -> Any:
        try:
            return orjson.loads(self._get(path, path.strip("/"), **query))["data"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise _not_understood(path.strip("/")) from None

    def _get(self, path: str, what: str, **query: object) -> bytes:
        answer = self._transport.exchange(Request("GET", f"{path}?{urlencode(query)}", {}))
        self._count(str(answer.status) if isinstance(answer, Answer) else "no answer")
        if isinstance(answer, Failure):
            raise CloudError(f"{what}: {answer.reason}")
        if answer.status != 200:
            raise _refusal(answer, what)
        if answer.body is None:
            raise CloudError(f"{what}: {answer.body_problem}", final=not answer.cut)
        return answer.body


def _refusal(answer: Answer, what: str) -> CloudError:
    hints = {
        401: "the token is not accepted",
        403: "the token may not read this",
        404: "there is no such file or run",
        429: "too many requests",
    }
    hint = hints.get(answer.status, "not followed" if 300 <= answer.status < 400 else "")
    reason = f"{what}: HTTP {answer.status}{f', {hint}' if hint else ''}"
    pause = retry_after(answer.headers.get("Retry-After"), datetime.now(timezone.utc))
    return CloudError(reason, pause, final=answer.status in _SURELY_NO or 300 <= answer.status < 400)


def _not_understood(what: str) -> CloudError:
    return CloudError(f"{what}: not what version 2 of the API answers", final=True)
