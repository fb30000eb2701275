"""What profiles.yml says under `dbt_reverse_etl: serve:`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

from pydantic import AfterValidator, Field, SecretStr, ValidationError, field_validator

from dbt_reverse_etl.base.errors import Problem, raise_if_any
from dbt_reverse_etl.config.destinations import hides_of, register_values
from dbt_reverse_etl.config.profiles import read_serve
from dbt_reverse_etl.config.rendering import render
from dbt_reverse_etl.config.validation import Place, described, mapping_of, secret_names, validate
from dbt_reverse_etl.sinks.base import Settings
from dbt_reverse_etl.sinks.http.settings import HttpSettings, SecretHeader, Timeout
from dbt_reverse_etl.sinks.lines import SecretLine


def _safe_url(url: str) -> str:
    try:
        HttpSettings.model_validate({"url": url, "auth": {"type": "bearer", "token": "any"}})
    except ValidationError as error:
        raise ValueError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None
    return url.rstrip("/")


def _long_enough(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < 16:
        raise ValueError(
            "found fewer than 16 characters; expected the secret that dbt Cloud shows once; next: copy it whole"
        )
    return secret


class Job(Settings):
    """A job of dbt Cloud whose successful runs are pushed, and the dbt target whose destinations get them."""

    job_id: int = Field(gt=0)
    target: str = Field(min_length=1)


class ServeSettings(Settings):
    """The account, who may speak to us, which jobs count, and where the position is kept.

    Attributes:
        url: access URL of the account; it differs by region.
        listen: address and port of the webhook; TLS is the reverse proxy's.
        folder: holds the position and fetched artifacts, relative to the project.
        timeout: seconds for an answer of the API.
        poll_interval: seconds between two questions to the API.
        replay_window: seconds for which an event is accepted.
        push_command: starts `dbt-reverse-etl`, where it is in another environment.
    """

    account_id: int = Field(gt=0)
    url: Annotated[str, AfterValidator(_safe_url)] = "https://cloud.getdbt.com"
    token: SecretHeader
    webhook_secret: Annotated[SecretLine, AfterValidator(_long_enough)] | None = None
    jobs: list[Job] = Field(min_length=1)
    listen: str = "127.0.0.1:8580"
    folder: Path = Path(".reverse-etl-serve")
    timeout: float = Field(120, gt=0, le=3600)
    poll_interval: float = Field(300, ge=1, le=86400)
    replay_window: int = Field(3600, ge=60, le=86400)
    push_command: list[str] = Field(default_factory=list)

    @field_validator("listen")
    @classmethod
    def _is_an_address(cls, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("found no address; expected host:port, such as 127.0.0.1:8580; next: write both")
        return listen

    @field_validator("jobs")
    @classmethod
    def _are_listed_once(cls, jobs: list[Job]) -> list[Job]:
        if len({job.job_id for job in jobs}) < len(jobs):
            raise ValueError("found a job twice; expected one target for each job; next: remove one of them")
        return jobs

    @property
    def targets(self) -> dict[int, str]:
        """The target of each job."""
        return {job.job_id: job.target for job in self.jobs}

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `listen`; `[::1]:8580` is IPv6."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def api(self) -> HttpSettings:
        """The API of the account."""
        token = f"Token {self.token.get_secret_value()}"
        settings = HttpSettings.model_validate(
            {
                "url": f"{self.url}/api/v2/accounts/{self.account_id}",
                "auth": {"type": "api_key", "header": "Authorization", "value": token},
                "concurrency": 2,
            }
        )
        # Not validated: what bounds the answer of a destination would bound the fetch of a large manifest.
        timeout = Timeout.model_construct(connect=min(self.timeout, 10), read=self.timeout)
        return settings.model_copy(update={"timeout": timeout})


def load_settings(
    directories: Sequence[Path], env: Mapping[str, str], *, webhook: bool, listen: str | None = None
) -> ServeSettings:
    """The settings, with everything that is wrong at once; secrets are registered for `redact`.

    Args:
        directories: where profiles.yml may stand, see `profile_directories`.
        env: environment variables.
        webhook: whether `webhook_secret` is needed; otherwise it is not read, and its variable need not be set.
        listen: in place of what is written.

    Raises:
        ConfigurationError: with every problem.
    """
    place, written, targets = read_serve(directories)
    problems: list[Problem] = []
    block = dict(mapping_of(written, place.at(), "a mapping of settings", problems) or {})
    raise_if_any(problems)
    block |= {"listen": listen} if listen else {}
    if not webhook:
        block.pop("webhook_secret", None)
    elif "webhook_secret" not in block:
        next_step = "create the webhook in dbt Cloud and export its secret, or use `dbt-reverse-etl poll`"
        problems.append(Problem(place.at("webhook_secret"), "nothing", "\"{{ env_var('NAME') }}\"", next_step))
    secret = secret_names(ServeSettings)
    for name in sorted(secret & block.keys()):
        if "{{" not in str(block[name]):
            found = f"{described(block[name])} in the file"
            problems.append(Problem(place.at(name), found, "\"{{ env_var('NAME') }}\"", "export it, and name it here"))
    rendered = render(block, env, place)
    register_values(rendered.value, rendered.used, ServeSettings)
    hides = hides_of(secret, {path for path, _, _ in rendered.used})
    problems.extend(rendered.problems)
    settings = validate(ServeSettings, rendered.value, Place(place.file, place.keys, hides), problems)
    if listen:
        problems = [replace(one, where="--listen") if one.where == place.at("listen") else one for one in problems]
    problems.extend(_unknown_targets(rendered.value.get("jobs"), targets, place))
    raise_if_any(problems)
    return cast("ServeSettings", settings)  # None only with a problem


def _unknown_targets(jobs: object, targets: frozenset[str], place: Place) -> list[Problem]:
    known = ", ".join(sorted(targets)) or "none"
    return [
        Problem(
            place.at("jobs", str(index), "target"),
            "a target without destinations",
            f"one of `outputs`: {known}",
            "add the target there, or correct the name",
        )
        for index, job in enumerate(jobs if isinstance(jobs, list) else [])
        if isinstance(job, Mapping) and isinstance(job.get("target"), str) and job["target"] not in targets
    ]
