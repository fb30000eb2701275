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

from dbt_reverse_etl.base.redaction import folded, is_login_of_url, names_a_secret
from dbt_reverse_etl.sinks.base import Options, Settings
from dbt_reverse_etl.sinks.paths import in_project
from dbt_reverse_etl.values.encoding import Nan

# What names a place in an environment and in the parameters of a URL, where logins and identifiers of a run stand, too.
_PLACE = re.compile(
    r"(host(addr|name)?|port|dbname|database|server|schema|search_path|warehouse|account|project|dataset|bucket|region"
    r"|service|endpoint|url|uri|dsn|catalog|destination_path|odbc_connect|^options)$",
    re.IGNORECASE,
)
# What is renewed with a login, beside what `names_a_secret`. A setting of any other name, such as `token_url`, may tell the place.
_RENEWED = re.compile(
    r"(^|_)(pass|passcode|otp|pat|jwt|pem|p8|p12|pfx|cert|certificate|assertion|sas|sig|signature|client_id"
    r"|(access|api|private|secret)_key_id|(consumer|master|session|shared|ssh)_key"
    r"|expires?|expires_(in|at|on)|expiry|expiration|(expiry|expiration)_(date|time)|(created|issued|refreshed)_at)$"
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
_OF_ACCOUNT = re.compile(
    r"^(type|client_email|account|audience|subject_token_type|credential_source|source_credentials|delegates"
    r"|(quota|workforce_pool_user)_project(_id)?|universe_domain|service_account_impersonation|\w+_(uri|url))$"
)
_SIGNATURE = re.compile(r"(^|-)sig(nature)?$", re.IGNORECASE)  # Azure's, S3's and Google's
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
_CONFIG = ("-c", "--config")
_QUOTED = r"'(\\.|[^'])*'|\{(\}\}|[^}])*\}"
_NAMED = r"(pwd|\w*password|passwd|accountkey|sharedaccesskey)\s*=\s*"
# Of libpq, ODBC, MySQL, Redis and Azure. What may be a place behind a password stays: rows of a place that is passed over are lost.
_PASSWORD = re.compile(
    r"\bsharedaccesssignature\s*=\s*[^;\s]*"
    rf"|(?<=[(,])\s*{_NAMED}({_QUOTED}|[^;\s,)]*)"  # `(host=h,password=x)/crm`
    rf"|\b{_NAMED}({_QUOTED}|((?![,&?][\w.-]+=[^;\s]*$)[^;\s])*)",
    re.IGNORECASE,
)
# Those before the parameters of an address: such a password may have a `?` itself.
_PASSWORD_AHEAD = re.compile(rf"(?P<parameters>\?.*)|{_PASSWORD.pattern}", re.IGNORECASE | re.DOTALL)
# urlsplit ends the host at each of these characters; what is no number behind the colon is no port.
# Elsewhere they may follow a word that is a place: `kafka://h:topic/x@y`. What begins with a sign of templates may be filled with a port.
_OF_SQL = r"(?:postgres(?:ql)?|cockroachdb|redshift|mysql|mariadb|mssql|oracle|snowflake|clickhouse)(?:\+\w+)?:"
_LOGIN_AHEAD = re.compile(rf"^({_OF_SQL}//)[^/?#\s:@\[]*:(?!\d*[/?#]|[${{%<_])[^/?#\[\]\s:@,;]*[/?#\[\]][^@\s]*@")
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
            and of the places in `env`, without what has the name of a login that is renewed.
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
        counted = sorted([*_counted(self.config.get_secret_value()), *_counted(env, "env")])
        digest = hashlib.sha256(json.dumps([self.name, self.command[1:], counted]).encode()).hexdigest()
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
    nan: Nan = "reject"


def _counted(value: Any, path: str = "", name: str = "") -> Iterator[tuple[str, str]]:
    """Path and value of each setting that counts as the place. The items of a list have the name of the list."""
    value = _unwrapped(value)
    if isinstance(value, dict | list):
        yield path, ""  # the name of a mapping counts although it holds only a login
        is_key_file = bool(path) and isinstance(value, dict) and str(value.get("type")) in _KEY_FILES
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            of_inner = folded(str(key)) if isinstance(value, dict) else name
            if not (is_key_file and _OF_ACCOUNT.search(of_inner)):
                yield from _counted(inner, f"{path}/{key}", of_inner)
    elif name.endswith("dsn") or not _is_renewed(name):
        yield path, _without_login(value) if isinstance(value, str) else json.dumps(value, default=str)


def _unwrapped(value: Any) -> Any:
    """A text that is a mapping or list in JSON, such as a key file, as this mapping or list."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _without_login(text: str) -> str:
    """A URL without its login and without such parameters; or the words of a driver, such as `host=db1 password=x`."""
    text = text.strip() or text  # a blank or line end behind `password=x&db=a` would pass over the database
    try:
        url = urlsplit(_LOGIN_AHEAD.sub(r"\1@", text))
    except ValueError:
        return _PASSWORD.sub("", text)
    if url.netloc:
        return url._replace(netloc=url.netloc.rpartition("@")[2], query=_without_logins(url.query)).geturl()
    ahead, _, after = _PASSWORD_AHEAD.sub(r"\g<parameters>", text).partition("?")
    query = _without_logins(after)
    return f"{ahead}?{query}" if query else ahead


def _without_logins(query: str) -> str:
    pairs = [(name, _PASSWORD.sub("", value)) for name, value in parse_qsl(query, keep_blank_values=True)]
    is_signed = any(_SIGNATURE.search(name) for name, _ in pairs)  # then all else may be of the signature
    named = [pair for pair in pairs if (_PLACE.search(pair[0]) if is_signed else not _is_login(folded(pair[0])))]
    return urlencode(sorted(named))


def _is_login(parameter: str) -> bool:
    # Not `key` and `code`, which may name a sheet or a company, nor `email`, an inbox: rows of a place that is passed over are lost.
    return _is_renewed(parameter) or is_login_of_url(parameter) or parameter in ("user", "username", "uid")


def _is_renewed(name: str) -> bool:
    return names_a_secret(name) or _RENEWED.search(name) is not None
