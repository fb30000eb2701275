"""What profiles.yml and `meta.reverse_etl.options` may say to the singer sink."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, Secret, field_validator, model_validator

from dbt_reverse_etl.base.redaction import folded, names_a_secret
from dbt_reverse_etl.sinks.base import Options, Settings
from dbt_reverse_etl.sinks.paths import in_project

# What names a place in an environment and in the parameters of a URL, where logins and identifiers of a run stand, too.
_PLACE = re.compile(
    r"(host(addr|name)?|port|dbname|database|server|schema|search_path|warehouse|account|project|dataset|bucket|region"
    r"|service|endpoint|url|uri|dsn|catalog|destination_path|odbc_connect|^options)$",
    re.IGNORECASE,
)
# Other names under which a login is found here, where no column of a model is.
_OF_LOGIN = re.compile(r"(^|_)(pat|(access|private|api|secret)_key_id)$|(^|_)pass$")
# A mapping, or its JSON, that names a place beside the login.
_CREDENTIALS = re.compile(r"(^|_)(auth|credentials?(_json)?|key_?file_json)$")
# What is of a login there, or expires; any other name may tell the place. `keyspace` and `key_prefix` do.
_EXPIRES = re.compile(
    r"(^|_)([a-z]*keys?(_(id|file|path|pem|json|base64|data))?$|session(_(id|name))?$"
    r"|(pem|p8|p12|pfx|sas|sig|signature|assertion|jwt|otp|x509|[a-z]*tokens?|[a-z]*secrets?|pwd|auth|authorization|ttl"
    r"|cert(s|ificates?)?|pass(word|wd|phrase|code)?|expir[a-z]*|(issued|created|updated|refreshed)(_at)?)(_|$))"
)
# Google's key files: another account or way to log in writes to the same project.
_KEY_FILES = {
    "service_account",
    "gdch_service_account",
    "impersonated_service_account",
    "authorized_user",
    "external_account",
    "external_account_authorized_user",
}
_OF_KEY_FILE = re.compile(
    r"^(type|client_(id|email)|account|audience|subject_token_type|credential_source|quota_project_id"
    r"|universe_domain|workforce_pool_user_project|source_credentials|delegates|service_account_impersonation(_url)?)$"
)
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
_CONFIG = ("-c", "--config")
_PASSWORD = re.compile(
    r"\b(pwd|\w*password|passwd|accountkey|sharedaccess(key|signature))\s*=\s*('(\\.|[^'])*'|\{[^}]*\}|[^;\s]*)",
    re.IGNORECASE,
)  # of libpq, ODBC and Azure
LONGEST = 420  # seconds; a run looks at its lease between two batches, and may have half of it left (450 s)

# Settings of singer-io's target-csv, which makes a file of its own in each process; that of MeltanoLabs has none of them.
_OF_APPENDING_CSV = {"destination_path", "delimiter", "quotechar"}

# Settings of targets (the Meltano SDK; BigQuery, Redshift) that make a process empty its tables first.
_EMPTIES = {
    "load_method": "overwrite",
    "overwrite": True,
    "truncate_before_load": True,
    "replication_method": "truncate",
}


class SingerSettings(Settings):
    """One Singer target and its configuration.

    Attributes:
        command: the target and its arguments without `--config`, as a list or a shell line; no shell is used. On `PATH`, or
            an absolute path.
        config: the target's own configuration; its relative paths are those of the project. It is never shown; the target gets it in a file that only this user can read.
        identity: a name for the place that the target writes to. Default: the program, its arguments, and a digest of `config`
            and of the places in `env`, without what has the usual name or form of a login.
        env: environment variables for the target. Of ours it gets only PATH, HOME, LANG, LC_ALL, TMPDIR and TZ.
        batch_rows: most rows of a batch; each batch is one process.
        timeout: seconds for a batch; then the target is stopped and the rows are unknown.
        log_file: the target's stderr is appended to it; it may contain row values and secrets.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    command: tuple[str, ...] = Field(min_length=1)
    config: Secret[dict[str, JsonValue]] = Field(default_factory=lambda: Secret[dict[str, JsonValue]]({}))
    identity: str | None = Field(default=None, min_length=1)
    env: Secret[dict[str, str]] = Field(default_factory=lambda: Secret[dict[str, str]]({}))
    batch_rows: int = Field(default=20_000, ge=1, le=1_000_000)
    timeout: float = Field(default=300, ge=1, le=LONGEST)
    log_file: Annotated[Path, AfterValidator(in_project)] | None = None

    @field_validator("command", mode="before")
    @classmethod
    def _is_split(cls, command: object) -> object:
        if not isinstance(command, str):
            return command
        try:
            return shlex.split(command)
        except ValueError:
            raise ValueError("found a quote that is not closed; expected a command; next: write it as a list") from None

    @field_validator("command")
    @classmethod
    def _leaves_config_to_us(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if any(word.partition("=")[0] in _CONFIG for word in command) or any("\0" in word for word in command):
            raise ValueError(
                "found --config or a NUL character; expected program and arguments; next: write the content of the file under config"
            )
        return command

    @field_validator("config")
    @classmethod
    def _keeps_earlier_batches(cls, config: Secret[dict[str, JsonValue]]) -> Secret[dict[str, JsonValue]]:
        given = config.get_secret_value()
        for name, empties in _EMPTIES.items():
            if name in given and (given[name] == empties or (name == "overwrite" and given[name])):
                raise ValueError(
                    f"found {name}, with which each batch empties the table of the one before; expected a target that adds to it, as "
                    "load_method: upsert does; next: take it out, and run the operation resync if earlier pushes used it"
                )
        return config

    @model_validator(mode="after")
    def _keeps_its_file(self) -> SingerSettings:
        given = self.config.get_secret_value()
        is_csv = any(Path(word).name.replace("_", "-") == "target-csv" for word in self.command)
        is_of_others = not given.keys().isdisjoint(_OF_APPENDING_CSV)
        moment = str(given.get("timestamp_format", "%S"))
        is_new = "{timestamp}" in str(given.get("file_naming_scheme", "")) and ("%S" in moment or "%f" in moment)
        if is_csv and not (is_of_others or is_new):
            raise ValueError(
                "found target-csv, which replaces its file in each process, so with each batch; expected a target that keeps what it had; "
                "next: a destination of type files with format: csv"
            )
        return self

    @property
    def name(self) -> str:
        """The name of the program."""
        return Path(self.command[0]).name

    @property
    def place(self) -> str:
        """What names the destination."""
        if self.identity:
            return f"singer:{self.identity}"
        env = {name: value for name, value in self.env.get_secret_value().items() if _PLACE.search(name)}
        told = sorted([*_told(self.config.get_secret_value()), *_told(env, "env")])
        digest = hashlib.sha256(json.dumps([self.name, self.command[1:], told]).encode()).hexdigest()
        return f"singer:{self.name}:{digest[:16]}"

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of the target."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return inherited | self.env.get_secret_value()


class SingerOptions(Options):
    """What one sync may say.

    Attributes:
        deletes: `sdc_deleted_at`: a delete sets the column `_sdc_deleted_at`, a write sets it to NULL; the row stays.
        nan: NaN and Infinity: refuse the row, or write null. In a key the row is refused.
    """

    deletes: Literal["sdc_deleted_at"] | None = None
    nan: Literal["reject", "null"] = "reject"


def _told(value: Any, path: str = "", *, among_logins: bool = False) -> Iterator[tuple[str, str]]:
    """Path and value of each setting, without what is called like a secret and without the login of a URL."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if entries is None:
        yield path, _without_login(value) if isinstance(value, str) else json.dumps(value, default=str)
        return
    is_key_file = bool(path) and isinstance(value, dict) and _is_key_file(value)
    for key, inner in entries:
        name, value, at = folded(str(key)), _unwrapped(inner), f"{path}/{key}"
        if is_key_file and _OF_KEY_FILE.search(name):
            continue
        if _CREDENTIALS.search(name) and _has_names(value):
            yield from _told(value, at, among_logins=True)
        elif not (_is_login(str(key)) or ((among_logins or is_key_file) and _EXPIRES.search(name))):
            yield from _told(value, at, among_logins=among_logins)


def _has_names(value: Any) -> bool:
    """Whether it is a mapping, or a list of them: a text below `credentials` is a login."""
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(item, dict) for item in value))


def _is_key_file(value: dict[Any, Any]) -> bool:
    names = {folded(str(name)) for name in value}
    return str(value.get("type")) in _KEY_FILES or {"client_email", "private_key"} <= names


def _is_login(name: str) -> bool:
    return name.lower() != "dsn" and (names_a_secret(name) or _OF_LOGIN.search(folded(name)) is not None)


def _unwrapped(value: Any) -> Any:
    """A text that is a mapping in JSON with a secret, such as the key file of a service account, as this mapping."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if isinstance(found, dict) and any(map(_is_login, found)) else value


def _without_login(text: str) -> str:
    """A URL, with the parameters that may name the place; or the words of a driver, such as `host=db1 password=x`."""
    try:
        url = urlsplit(text)
    except ValueError:
        return _PASSWORD.sub("", text)
    if not url.netloc and "://" not in text:
        return _PASSWORD.sub("", text)
    named = [(name, _PASSWORD.sub("", value)) for name, value in parse_qsl(url.query) if _PLACE.search(name)]
    query = urlencode(sorted(named))
    if url.netloc:
        return url._replace(netloc=url.netloc.rpartition("@")[2], query=query).geturl()
    return "?".join([_PASSWORD.sub("", text.partition("?")[0]), *([query] if query else [])])
