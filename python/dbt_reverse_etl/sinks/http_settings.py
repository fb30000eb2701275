"""What profiles.yml and `meta.reverse_etl.options` may say to the http sink."""

from __future__ import annotations

import base64
import ipaddress
import re
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, PositiveFloat, SecretStr, model_validator

from dbt_reverse_etl.sinks.base import Options, Settings
from dbt_reverse_etl.sinks.http_answer import parse_path

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# What the client itself sets, and what would make two readers of one connection disagree.
OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect", "te", "upgrade"})


class _Strict(Settings):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _header_name(name: str) -> str:
    if not HEADER_NAME.fullmatch(name) or name.lower() in OWN_HEADERS:
        raise ValueError("found a header that cannot be set; expected a plain header name; next: remove or rename it")
    return name


def _secret_header(value: SecretStr) -> SecretStr:
    if not HEADER_VALUE.fullmatch(value.get_secret_value()):
        raise ValueError(
            "found a secret that cannot stand in a header; expected printable ASCII without spaces at its ends; "
            "next: look for a line break at the end of the variable"
        )
    return value


HeaderName = Annotated[str, AfterValidator(_header_name)]
SecretHeader = Annotated[SecretStr, AfterValidator(_secret_header)]
Path = Annotated[str, AfterValidator(lambda text: (parse_path(text), text)[1])]
Status = Annotated[int, Field(ge=200, le=499)]


class Bearer(_Strict):
    """`Authorization: Bearer <token>`."""

    type: Literal["bearer"]
    token: SecretHeader

    def header(self) -> tuple[str, str]:
        return "Authorization", f"Bearer {self.token.get_secret_value()}"


class Basic(_Strict):
    """`Authorization: Basic <user:password>`."""

    type: Literal["basic"]
    user: str
    password: SecretStr

    def header(self) -> tuple[str, str]:
        pair = f"{self.user}:{self.password.get_secret_value()}".encode()
        return "Authorization", f"Basic {base64.b64encode(pair).decode()}"


class ApiKey(_Strict):
    """A header of the destination's own, such as `X-Api-Key`."""

    type: Literal["api_key"]
    header_name: HeaderName = Field(alias="header")
    value: SecretHeader

    def header(self) -> tuple[str, str]:
        return self.header_name, self.value.get_secret_value()


class Timeout(_Strict):
    """Seconds until a connection stands, and between two pieces of an answer."""

    connect: PositiveFloat = Field(10, le=300)
    read: PositiveFloat = Field(30, le=3600)


class CheckSettings(_Strict):
    """A read-only request that `check` sends."""

    path: str


class HttpSettings(_Strict):
    """One HTTP destination; hosts come from here only."""

    url: str
    headers: dict[HeaderName, SecretHeader] = Field(default_factory=dict)
    auth: Annotated[Bearer | Basic | ApiKey, Field(discriminator="type")] | None = None
    timeout: Timeout = Field(default_factory=lambda: Timeout.model_validate({}))
    verify: bool | str = True
    concurrency: int = Field(8, ge=1, le=256)
    requests_per_second: PositiveFloat | None = None
    check: CheckSettings | None = None

    @model_validator(mode="after")
    def _is_safe(self) -> HttpSettings:
        host = _checked_url(self.url).hostname or ""
        if is_loopback(host):
            return self
        if self.verify is False:
            raise ValueError(
                "found verify: false; expected true, or the path of a CA file; next: name the CA of the destination"
            )
        if self.url.lower().startswith("http:") and (self.auth or self.headers):
            raise ValueError(
                "found http:// with credentials; expected https:// (http only to this machine); next: change url"
            )
        return self

    @property
    def base(self) -> SplitResult:
        """The parts of `url`."""
        return urlsplit(self.url)

    @property
    def port(self) -> int:
        """The port of `url`, or the usual one of its scheme."""
        return self.base.port or (443 if self.base.scheme == "https" else 80)

    def secret_headers(self) -> dict[str, str]:
        """Headers of every request, credentials included: never to be shown."""
        auth = {} if self.auth is None else dict([self.auth.header()])
        taken = {name.lower() for name in auth}
        others = {name: value for name, value in self.headers.items() if name.lower() not in taken}
        return {name: value.get_secret_value() for name, value in others.items()} | auth


def _checked_url(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        port_is_valid = parts.port != 0
    except ValueError:
        port_is_valid = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_valid:
        raise ValueError("found no usable url; expected https://host[:port][/path]; next: write the whole base URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("found credentials in url; expected them under auth; next: use auth with env_var()")
    if parts.query or parts.fragment:
        raise ValueError("found ? or # in url; expected a base URL; next: move the query to the paths of the sync")
    if re.search(r"[^\x21-\x7e]|[{}\\]|/\.\.?(/|$)", url):
        raise ValueError("found a character or a /../ that a base URL cannot hold; next: percent-encode it")
    if _is_link_local(parts.hostname):
        raise ValueError("found a link-local host (cloud metadata); expected a destination; next: change url")
    return parts


def is_loopback(host: str) -> bool:
    """Whether a request to this host stays on this machine, judged without asking DNS."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_link_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    inner = getattr(address, "ipv4_mapped", None) or address
    return bool(inner.is_link_local)


class OperationOptions(_Strict):
    """The request of one operation. `path` and `headers` take `{field}`; `path` is relative to the base URL.

    `body`: all fields, the key fields, or none. Default: `fields`, for a delete `none` (in batches `key`).
    """

    method: Literal["POST", "PUT", "PATCH", "DELETE"]
    path: str
    headers: dict[HeaderName, str] = Field(default_factory=dict)
    body: Literal["fields", "key", "none"] | None = None


class BatchOptions(_Strict):
    """How rows share a request: `rows` 1 sends each alone, as a bare object unless `wrap` is set."""

    rows: int = Field(1, ge=1, le=100_000)
    wrap: Literal["array", "ndjson"] | dict[Literal["key"], str] | None = None


class JsonEquals(_Strict):
    """A value in the answer that says yes."""

    path: Path
    equals: JsonValue


class SuccessOptions(_Strict):
    """When an answer acknowledges the rows: all conditions together."""

    status: list[Status] = Field([200, 201, 202, 204], min_length=1)
    content_type: str | None = None
    body: JsonEquals | None = Field(None, alias="json")


class ResultsOptions(_Strict):
    """Where the answer speaks of each row.

    Attributes:
        path: the list of entries; empty for the answer itself.
        by: `index`: entries stand in the order of the rows, or carry their index under `index`;
            `id`: an entry carries the row's only key field under `id`.
        ok: what an entry of a delivered row says.
        error: path of the error code in an entry; shown only if it looks like a code.
        missing: outcome of a row that no entry mentions.
    """

    path: Path = ""
    by: Literal["index", "id"] = "index"
    index: Path | None = None
    id: Path | None = None
    ok: JsonEquals
    error: Path | None = None
    missing: Literal["unknown", "delivered"] = "unknown"

    @model_validator(mode="after")
    def _is_addressed(self) -> ResultsOptions:
        if (self.by == "id") != (self.id is not None) or (self.by == "id" and self.index is not None):
            raise ValueError("found by and id apart; expected by: id with id: <path>, or by: index; next: set both")
        if self.missing == "delivered" and self.by == "index" and self.index is None:
            raise ValueError(
                "found missing: delivered with entries by order; expected each entry to name its row; "
                "next: set index: <path>, or by: id"
            )
        return self


class HttpOptions(Options):
    """What one sync may say: the requests, and when their answers acknowledge rows."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    insert: OperationOptions | None = None
    update: OperationOptions | None = None
    upsert: OperationOptions | None = None
    delete: OperationOptions | None = None
    batch: BatchOptions = Field(default_factory=lambda: BatchOptions.model_validate({}))
    constants: dict[str, JsonValue] = Field(default_factory=dict)
    nan: Literal["reject", "null"] = "reject"
    idempotency_header: HeaderName | None = "Idempotency-Key"
    success: SuccessOptions = Field(default_factory=lambda: SuccessOptions.model_validate({}))
    results: ResultsOptions | None = None
    error: Path | None = None
    already_exists: list[Status] = Field([409])
    missing: list[Status] = Field([404, 410])

    @model_validator(mode="after")
    def _success_is_plausible(self) -> HttpOptions:
        if self.results is None and any(status >= 300 for status in self.success.status):
            raise ValueError(
                "found a success.status outside 2xx; expected it only with results, which judge each row; "
                "next: remove the status or describe results"
            )
        if any(300 <= status < 400 for status in self.success.status):
            raise ValueError("found a redirect in success.status; redirects are never followed; next: remove it")
        return self
