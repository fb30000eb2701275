"""What profiles.yml may say to the http sink: where the destination is, and who may speak to it."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    PositiveFloat,
    Secret,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dbt_reverse_etl.sinks.base import Settings
from dbt_reverse_etl.sinks.hosts import is_loopback, is_metadata_host, leaves_unencrypted, parts_of
from dbt_reverse_etl.sinks.http.preset import load_preset, merged
from dbt_reverse_etl.sinks.lines import BasicUser, OneLine, SecretLine
from dbt_reverse_etl.sinks.paths import ProjectFile, in_project

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_UNFIT = re.compile(r"[^\x21-\x7e]|[{}\\]|/\.\.?(/|$)")
# What the client itself sets, and what would make two readers of one connection disagree.
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect", "te", "upgrade"})


def _header_name(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS:
        raise ValueError("found a header that cannot be set; expected a plain header name; next: remove or rename it")
    return name


def _secret_header(value: SecretStr) -> SecretStr:
    if not HEADER_VALUE.fullmatch(value.get_secret_value()):
        raise ValueError(
            "found a secret that cannot stand in a header; expected printable ASCII without spaces at its ends; next: look for a line break at the end of the variable"
        )
    return value


HeaderName = Annotated[str, AfterValidator(_header_name)]
SecretHeader = Annotated[SecretStr, AfterValidator(_secret_header)]


class Bearer(Settings):
    """`Authorization: Bearer <token>`.

    Attributes:
        token: the token.
    """

    type: Literal["bearer"]
    token: SecretHeader

    def header(self) -> tuple[str, str]:
        return "Authorization", f"Bearer {self.token.get_secret_value()}"


class Basic(Settings):
    """`Authorization: Basic <user:password>`.

    Attributes:
        user, password: the login.
    """

    type: Literal["basic"]
    user: BasicUser
    password: SecretLine

    def header(self) -> tuple[str, str]:
        pair = f"{self.user}:{self.password.get_secret_value()}".encode()
        return "Authorization", f"Basic {base64.b64encode(pair).decode()}"


class ApiKey(Settings):
    """A header of the destination's own, such as `X-Api-Key`, or a parameter of the query.

    Attributes:
        header_name: name of the header. Either this or `query`.
        query: name of the parameter.
        value: the key.
    """

    type: Literal["api_key"]
    header_name: HeaderName | None = Field(None, alias="header")
    query: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    value: SecretHeader

    @model_validator(mode="after")
    def _has_one_place(self) -> ApiKey:
        if (self.header_name is None) == (self.query is None):
            raise ValueError("found an API key without one place; expected header or query; next: set one of them")
        return self

    def header(self) -> tuple[str, str] | None:
        return None if self.header_name is None else (self.header_name, self.value.get_secret_value())


class OAuth2(Settings):
    """OAuth 2.0 client credentials (RFC 6749, section 4.4): a token of `token_url`, as `Authorization: Bearer`.

    Attributes:
        token_url: where the token comes from; https, except on this machine.
        client_id, client_secret: the login there.
        scope: of the token.
        client_auth: send the login by HTTP Basic, or as fields of the form.
        parameters: additional fields of the form, such as `audience`, or `grant_type: refresh_token` with a `refresh_token`
            that the issuer does not rotate.
    """

    type: Literal["oauth2"]
    token_url: str
    client_id: OneLine = Field(min_length=1)
    client_secret: SecretLine
    scope: str | None = None
    client_auth: Literal["basic", "form"] = "basic"
    parameters: Secret[dict[str, str]] = Field(default_factory=lambda: Secret[dict[str, str]]({}))

    @field_validator("token_url")
    @classmethod
    def _is_safe(cls, url: str) -> str:
        if leaves_unencrypted(_checked_url(url)):
            raise ValueError("found http://; expected https:// (http only to this machine); next: change it")
        return url


class StandardWebhooks(Settings):
    """Requests signed with a shared secret, as standardwebhooks.com says: `webhook-id`, `-timestamp`, `-signature`.

    Attributes:
        secret: `whsec_` and 24 to 64 bytes in base64.
    """

    type: Literal["standard_webhooks"]
    secret: SecretStr

    @field_validator("secret")
    @classmethod
    def _is_a_key(cls, secret: SecretStr) -> SecretStr:
        if not 24 <= len(_webhook_key(secret)) <= 64:
            raise ValueError(
                "found no signing secret; expected whsec_ and 24 to 64 bytes in base64; next: copy it whole"
            )
        return secret

    @property
    def key(self) -> bytes:
        """The key of the HMAC."""
        return _webhook_key(self.secret)


def _webhook_key(secret: SecretStr) -> bytes:
    try:
        return base64.b64decode(secret.get_secret_value().removeprefix("whsec_"), validate=True)
    except ValueError:
        return b""


class PythonAuth(Settings):
    """A class of an installed package that authenticates requests, such as AWS SigV4, OAuth 1 or NTLM.

    The other keys are the arguments of the class; `args` is a list of those without a name.

    Attributes:
        class_name: `package.module.Class`, a subclass of `requests.auth.AuthBase`.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Secret[JsonValue]]

    type: Literal["python"]
    class_name: Annotated[str, Field(alias="class", pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]

    @model_validator(mode="after")
    def _has_a_list(self) -> PythonAuth:
        if not isinstance(self.arguments()[0], list):
            raise ValueError(  # noqa: TRY004  (pydantic's)
                "found args, which is no list; expected the arguments without a name; next: write a list"
            )
        return self

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Those without a name, and the others: to be shown to nobody but the class."""
        named: dict[str, Any] = {name: value.get_secret_value() for name, value in self.__pydantic_extra__.items()}
        return named.pop("args", []), named


class ClientCertificate(Settings):
    """Mutual TLS.

    Attributes:
        cert: PEM file of the certificate, with its chain.
        key: PEM file of its key.
        password: of the key.
    """

    cert: ProjectFile
    key: ProjectFile
    password: SecretStr | None = None


class Timeout(Settings):
    """Seconds. Both together bound a request and all that it needs, such as a token.

    Attributes:
        connect: to connect.
        read: for the whole answer.
    """

    connect: PositiveFloat = Field(10, le=60)
    read: PositiveFloat = Field(30, le=180)


class CheckSettings(Settings):
    """A read-only request that `check` sends.

    Attributes:
        path: relative to the base URL.
    """

    path: str

    @field_validator("path")
    @classmethod
    def _can_be_sent(cls, path: str) -> str:
        if "#" in path or _UNFIT.search(f"/{path}"):
            raise ValueError(
                "found a character or a /../; expected what a URL can hold, without placeholders; next: percent-encode it"
            )
        return path


class HttpSettings(Settings):
    """One HTTP destination; hosts come from here only.

    Attributes:
        preset: defaults for a known API: `braze`, `hubspot`, `hubspot_records`, `iterable`, `jsonapi`, `salesforce`, `slack`. It may set `url`.
        url: base URL; https, except to this machine.
        identity: a name for the place, where the path of `url` is a secret that changes. Default: `url`.
        account: a name for the account behind the credentials, where one URL serves many: another one is another destination.
        headers: additional headers of each request.
        auth: how requests prove who sends them.
        client_certificate: for mutual TLS.
        timeout: how long a request may take.
        verify: check the server's certificate against the usual CAs, or a file of CAs; false only if all hosts are this machine.
        concurrency: requests at once.
        requests_per_second: budget of the whole sync.
        check: a GET with which `dbt-reverse-etl check` tries the credentials; default: the preset's (`hubspot`, `salesforce`). None: none.
    """

    preset: str | None = None
    url: str
    identity: str | None = Field(default=None, min_length=1)
    account: str | None = Field(default=None, min_length=1)
    headers: dict[HeaderName, SecretHeader] = Field(default_factory=dict)
    auth: (
        Annotated[Bearer | Basic | ApiKey | OAuth2 | StandardWebhooks | PythonAuth, Field(discriminator="type")] | None
    ) = None
    client_certificate: ClientCertificate | None = None
    timeout: Timeout = Field(default_factory=lambda: Timeout.model_validate({}))
    verify: bool | str = True
    concurrency: int = Field(8, ge=1, le=256)
    requests_per_second: PositiveFloat | None = None
    check: CheckSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _over_its_preset(cls, written: Any) -> Any:
        """The preset's settings, and over them what is written."""
        name = written.get("preset") if isinstance(written, dict) else None
        return merged(load_preset(name)["settings"], written) if isinstance(name, str) else written

    @field_validator("verify")
    @classmethod
    def _is_said(cls, verify: bool | str, info: ValidationInfo) -> bool | str:
        if isinstance(verify, str) and not verify.strip():
            raise ValueError("found an empty verify; expected true, or a CA file; next: remove it, or set its variable")
        return in_project(verify, info) if isinstance(verify, str) else verify

    @model_validator(mode="after")
    def _is_safe(self) -> HttpSettings:
        hosts = [_checked_url(self.url).hostname or ""]
        if isinstance(self.auth, OAuth2):
            hosts.append(_checked_url(self.auth.token_url).hostname or "")
        if self.verify is False and not all(map(is_loopback, hosts)):
            raise ValueError("found verify: false; expected true, or a CA file; next: name the CA of the destination")
        if leaves_unencrypted(self.base):
            raise ValueError("found http://; expected https:// (http only to this machine); next: change url")
        return self

    @property
    def base(self) -> SplitResult:
        """The parts of `url`."""
        return urlsplit(self.url)

    @property
    def origin(self) -> str:
        """Scheme, host and port of `url`: its path may be the secret of a webhook."""
        base = self.base
        host = f"[{base.hostname}]" if ":" in (base.hostname or "") else base.hostname
        return f"{base.scheme}://{host}:{base.port or (443 if base.scheme == 'https' else 80)}"

    def secret_headers(self) -> dict[str, str]:
        """Headers of every request, credentials included: never to be shown."""
        own = self.auth.header() if isinstance(self.auth, Bearer | Basic | ApiKey) else None
        auth = dict(filter(None, [own]))
        others = {
            name: value for name, value in self.headers.items() if name.lower() not in {one.lower() for one in auth}
        }
        return {name: value.get_secret_value() for name, value in others.items()} | auth


def _checked_url(url: str) -> SplitResult:
    parts = parts_of(url)
    if parts is None or not parts.hostname:
        raise ValueError("found no usable url; expected https://host[:port][/path]; next: write the whole base URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("found credentials in url; expected them under auth; next: use auth with env_var()")
    if parts.query or parts.fragment:
        raise ValueError(
            "found ? or # in url; expected a base URL; next: a key of the query goes into auth: {type: api_key, query: NAME, value: \"{{ env_var('...') }}\"}, the rest into the paths of the sync"
        )
    if not parts.hostname.isascii():
        raise ValueError("found a host outside ASCII; expected its ASCII form, as xn--mnchen-3ya.de; next: write that")
    if _UNFIT.search(url):
        raise ValueError("found a character or a /../; expected what a base URL can hold; next: percent-encode it")
    if is_metadata_host(parts.hostname):
        raise ValueError("found an address of cloud metadata; expected a destination; next: change url")
    return parts
