"""What profiles.yml says under `dbt_reverse_etl: serve:`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr, ValidationError, field_validator

from dbt_reverse_etl.base.errors import ConfigurationError, Problem
from dbt_reverse_etl.base.redaction import register_secret
from dbt_reverse_etl.config.profiles import Rendered, mapping_of, read_serve, render
from dbt_reverse_etl.config.validation import Place, described, raise_if_any, validate
from dbt_reverse_etl.sinks.http.settings import HttpSettings, SecretHeader, Strict

_SECRETS = ("token", "webhook_secret")


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


class Job(Strict):
    """A job of dbt Cloud whose successful runs are pushed, and the dbt target whose destinations get them."""

    job_id: int = Field(gt=0)
    target: str = Field(min_length=1)


class ServeSettings(Strict):
    """The account, who may speak to us, which jobs count, and where the queue stands.

    Attributes:
        url: access URL of the account; it differs by region.
        listen: address and port of the webhook; TLS is the reverse proxy's.
        queue: folder of the queue and of fetched artifacts, relative to the project.
        timeout: seconds for an answer of the API.
        poll_interval: seconds between two questions to the API.
        replay_window: seconds for which an event is accepted.
        push_command: starts `dbt-reverse-etl`, where it is in another environment.
    """

    account_id: int = Field(gt=0)
    url: Annotated[str, AfterValidator(_safe_url)] = "https://cloud.getdbt.com"
    token: SecretHeader
    webhook_secret: Annotated[SecretStr, AfterValidator(_long_enough)] | None = None
    jobs: list[Job] = Field(min_length=1)
    listen: str = "127.0.0.1:8580"
    queue: Path = Path(".reverse-etl-queue")
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
        ids = [job.job_id for job in jobs]
        if len(set(ids)) < len(ids):
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
        return HttpSettings.model_validate(
            {
                "url": f"{self.url}/api/v2/accounts/{self.account_id}",
                "auth": {
                    "type": "api_key",
                    "header": "Authorization",
                    "value": f"Token {self.token.get_secret_value()}",
                },
                "timeout": {"connect": min(self.timeout, 10), "read": self.timeout},
                "concurrency": 2,
            }
        )


def load_settings(directories: Sequence[Path], env: Mapping[str, str], *, webhook: bool) -> ServeSettings:
    """The settings, with everything that is wrong at once; secrets are registered for `redact`.

    Args:
        directories: where profiles.yml may stand, see `profile_directories`.
        env: environment variables.
        webhook: whether `webhook_secret` is needed; otherwise it is not read, and its variable need not be set.

    Raises:
        ConfigurationError: with every problem.
    """
    place, written, targets = read_serve(directories)
    problems: list[Problem] = []
    block = dict(mapping_of(written, place.at(), "a mapping of settings", problems) or {})
    raise_if_any(problems)
    if not webhook:
        block.pop("webhook_secret", None)
    elif "webhook_secret" not in block:
        problems.append(_missing_secret(place))
    rendered = render(block, env, place)
    problems.extend(rendered.problems)
    _guard_secrets(block, rendered, place, problems)
    settings = validate(ServeSettings, rendered.value, _hiding(place, rendered), problems)
    problems.extend(_unknown_targets(rendered.value.get("jobs"), targets, place))
    if settings is None or problems:
        raise ConfigurationError(*dict.fromkeys(problems))
    return settings


def _missing_secret(place: Place) -> Problem:
    next_step = "create the webhook in dbt Cloud and export its secret, or use `dbt-reverse-etl poll`"
    return Problem(place.at("webhook_secret"), "nothing", "\"{{ env_var('NAME') }}\"", next_step)


def _guard_secrets(block: Mapping[str, Any], rendered: Rendered, place: Place, problems: list[Problem]) -> None:
    from_env = {path for path, _, _ in rendered.used} | {(name,) for name in _SECRETS if "{{" in str(block.get(name))}
    for name in _SECRETS:
        if isinstance(rendered.value.get(name), str):
            register_secret(rendered.value[name])
        if name in block and (name,) not in from_env:
            found = f"{described(block[name])} that stands in the file"
            problems.append(Problem(place.at(name), found, "\"{{ env_var('NAME') }}\"", "export it, and name it here"))


def _hiding(place: Place, rendered: Rendered) -> Place:
    hidden = {path for path, _, _ in rendered.used} | {(name,) for name in _SECRETS}
    return Place(place.file, place.keys, lambda path: any(path[: len(one)] == one for one in hidden))


def _unknown_targets(jobs: object, targets: frozenset[str], place: Place) -> list[Problem]:
    listed = jobs if isinstance(jobs, list) else []
    named = [(index, job.get("target")) for index, job in enumerate(listed) if isinstance(job, Mapping)]
    known = ", ".join(sorted(targets)) or "none"
    return [
        Problem(
            place.at("jobs", str(index), "target"),
            "a target without destinations",
            f"one of `outputs`: {known}",
            "add the target there, or correct the name",
        )
        for index, target in named
        if isinstance(target, str) and target not in targets
    ]
