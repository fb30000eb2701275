"""The API of dbt Cloud, as far as it is needed: version 2, runs and their artifacts.

Source: https://docs.getdbt.com/dbt-cloud/api-v2. Answers are `{"status": ..., "data": ...}`; artifacts are the files themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from typing import Generic, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, Field, ValidationError

from dbt_reverse_etl.serve.event import SUCCESS, Id, Moment
from dbt_reverse_etl.serve.steps import Step
from dbt_reverse_etl.sinks.http.answer import Answer, Failure
from dbt_reverse_etl.sinks.http.pause import retry_after
from dbt_reverse_etl.sinks.http.request import Request
from dbt_reverse_etl.sinks.http.settings import HttpSettings
from dbt_reverse_etl.sinks.http.transport import Transport

LARGEST_ANSWER = 512 * 2**20  # a manifest of a large project takes tens of MiB
PAGE, MOST_PAGES = 50, 20
_HINTS = {
    401: "the token is not accepted",
    403: "the token may not read this",
    404: "there is no such file or run",
    429: "too many requests",
}
T = TypeVar("T")


class CloudError(Exception):
    """The API did not give what was asked for; the text never holds what it said.

    Attributes:
        pause: seconds that it asked to wait.
        status: of HTTP; 0 if that is not the reason.
    """

    def __init__(self, reason: str, pause: float = 0.0, status: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.pause, self.status = reason, pause, status

    @property
    def is_limit(self) -> bool:
        """Whether any other request is unwelcome, too."""
        return self.pause > 0 or self.status == 429


class _Trigger(BaseModel, frozen=True):
    schema_override: str | None  # required, for without it nothing would be refused
    azure_pull_request_id: int | str | None = None
    github_pull_request_id: int | str | None = None
    gitlab_merge_request_id: int | str | None = None
    non_native_pull_request_id: int | str | None = None


class CloudRun(BaseModel, frozen=True):
    """A run and its steps."""

    job_id: Id = Field(validation_alias="job_definition_id")
    status: int
    steps: Sequence[Step] = Field(validation_alias="run_steps")
    trigger: _Trigger

    @property
    def override(self) -> str:
        """What made it write to other tables than its job does; empty: nothing."""
        return ", ".join(f"{name} {value}" for name, value in self.trigger.model_dump().items() if value)


class FinishedRun(BaseModel, frozen=True):
    """A run that ended with success, and when, by dbt Cloud's clock; None: it is still to be noted there."""

    run_id: Id = Field(validation_alias="id")
    finished_at: Moment | None


class _Job(BaseModel, frozen=True):
    id: Id


class _Envelope(BaseModel, Generic[T]):
    data: T


class Cloud:
    """One account. Calls block for at most the timeout of the settings, and raise CloudError.

    Args:
        count: hears of each answer: its status, or `no answer`.
    """

    def __init__(self, settings: HttpSettings, count: Callable[[str], None]) -> None:
        self._transport = Transport(settings, LARGEST_ANSWER)
        self._count = count

    def run(self, run_id: int) -> CloudRun:
        """One run."""
        return self._data(_Envelope[CloudRun], f"runs/{run_id}/", include_related='["run_steps","trigger"]')

    def finished(self, job_id: int, since: float | None) -> list[FinishedRun]:
        """Runs of a job that ended with success, the newest first.

        Args:
            since: seconds since the epoch, by dbt Cloud's clock: all that finished from then on, and some of those before; None: the
                newest run alone, with those that have no time yet.
        """
        if since is None:
            newest = self._page(job_id, 0, 1)
            return newest if ends(newest) else _to_the_first_end(self._page(job_id, 0, PAGE) if newest else [])
        runs: list[FinishedRun] = []
        for page in range(MOST_PAGES):
            listed = self._page(job_id, page * PAGE, PAGE)
            runs += listed
            if len(listed) < PAGE or min(ends(listed), default=since) < since:
                break
        return runs

    def check_job(self, job_id: int) -> None:
        """Ask for a job: a list of its runs is empty, and no error, where there is no such job.

        Raises:
            CloudError: also if it is not there.
        """
        try:
            self._data(_Envelope[_Job], f"jobs/{job_id}/")
        except CloudError as error:
            if error.status in (403, 404):
                raise CloudError("dbt Cloud does not know it, or the token may not read it") from None
            raise

    def artifact(self, run_id: int, name: str, step: int) -> bytes:
        """The file that a step of a run has written."""
        return self._get(f"runs/{run_id}/artifacts/{name}", f"{name} of step {step}", step=step)

    def _page(self, job_id: int, offset: int, limit: int) -> list[FinishedRun]:
        asked = {"job_definition_id": job_id, "status": SUCCESS, "order_by": "-finished_at"}
        return self._data(_Envelope[list[FinishedRun]], "runs/", **asked, limit=limit, offset=offset)

    def _data(self, form: type[_Envelope[T]], path: str, **query: object) -> T:
        what = path.strip("/")
        try:
            return form.model_validate_json(self._get(path, what, **query)).data
        except ValidationError:
            raise CloudError(f"{what}: not what version 2 of the API answers") from None

    def _get(self, path: str, what: str, **query: object) -> bytes:
        answer = self._transport.exchange(Request("GET", f"{path}?{urlencode(query)}" if query else path, {}))
        self._count(str(answer.status) if isinstance(answer, Answer) else "no answer")
        if isinstance(answer, Failure):
            raise CloudError(f"{what}: {answer.reason}")
        if answer.status != 200:
            raise _refusal(answer, what)
        if answer.body is None:
            raise CloudError(f"{what}: {answer.body_problem}")
        return answer.body


def ends(listed: Iterable[FinishedRun]) -> list[float]:
    """When they finished, in seconds since the epoch, as far as that is known."""
    return [run.finished_at.timestamp() for run in listed if run.finished_at]


def _to_the_first_end(listed: Sequence[FinishedRun]) -> list[FinishedRun]:
    count = next((number for number, run in enumerate(listed, 1) if run.finished_at), len(listed))
    return [*listed[:count]]


def _refusal(answer: Answer, what: str) -> CloudError:
    hint = "not followed" if 300 <= answer.status < 400 else _HINTS.get(answer.status, "")
    pause = retry_after(answer.headers, datetime.now(timezone.utc))
    return CloudError(f"{what}: HTTP {answer.status}{f', {hint}' if hint else ''}", pause or 0.0, answer.status)
