"""What profiles.yml and a sync may say about files."""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from dbt_reverse_etl.sinks.base import Options, Settings
from dbt_reverse_etl.sinks.hosts import leaves_unencrypted, parts_of
from dbt_reverse_etl.sinks.paths import in_project
from dbt_reverse_etl.values.encoding import Nan

_REMOTE = re.compile(r"((s3|gs|gcs)://[^/@:\s]+|abfss?://[^/@:\s]+@[^/@:\s]+\.dfs\.core\.windows\.net)(/[^?#\s]*)?")
_COMPRESSIONS = {"jsonl": ("none", "gzip"), "csv": ("none", "gzip"), "parquet": ("zstd", "snappy", "gzip", "none")}

# A change of the manifest is four requests of three attempts each: 420 s fit in half a lease (450 s).
_LONGEST = 35


class StorageSettings(Settings):
    """How to reach `s3://`. What is not set comes from the usual environment of S3.

    Attributes:
        endpoint: URL of a server that speaks S3; https, except on this machine.
        region, access_key, secret_key, session_token: as S3 names them.
        timeout: seconds to connect, and for each request.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: SecretStr | None = None
    session_token: SecretStr | None = None
    timeout: float = Field(default=30, ge=1, le=_LONGEST)

    @field_validator("endpoint")
    @classmethod
    def _is_safe(cls, endpoint: str | None) -> str | None:
        if not endpoint:
            return endpoint
        url = parts_of(endpoint)
        if url is None or "@" in endpoint or "?" in endpoint or "#" in endpoint:
            raise ValueError(
                "found a login, a query, no host or no https; expected https://host[:port]; next: correct it, and put a login into access_key and secret_key"
            )
        if url.path not in ("", "/"):
            raise ValueError(
                "found a path, which would be ignored; expected https://host[:port]; next: put a bucket, as at the end of the URL of Cloudflare R2, into path"
            )
        if leaves_unencrypted(url):
            raise ValueError("found no TLS; expected https:// away from this machine; next: correct endpoint")
        return endpoint

    @model_validator(mode="after")
    def _is_a_pair(self) -> StorageSettings:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("found one of access_key and secret_key; expected both; next: name the other")
        return self

    def s3(self) -> dict[str, Any]:
        """What pyarrow's S3 client is told; holds the secrets."""
        url = urlsplit(self.endpoint or "")
        told = {
            "region": self.region,
            "endpoint_override": url.netloc or None,
            "scheme": url.scheme or None,
            "access_key": self.access_key,
            "secret_key": self.secret_key.get_secret_value() if self.secret_key else None,
            "session_token": self.session_token.get_secret_value() if self.session_token else None,
            "connect_timeout": self.timeout,
            "request_timeout": self.timeout,
        }
        return {name: value for name, value in told.items() if value is not None}


def is_remote(path: str) -> bool:
    """Whether a path of the settings names an object storage."""
    return "://" in path


class FilesSettings(Settings):
    """One directory, or prefix of an object storage, that objects live in.

    Attributes:
        path: folder of the objects, or a prefix: `s3://bucket/exports`, `gs://bucket/exports`, `abfs://container@account.dfs.core.windows.net/exports`.
        storage: how to reach `s3://`; `gs://` and `abfs://` use the usual environment of their cloud.
        format: of the parts.
        compression: default `zstd` for parquet, `none` for the others. jsonl and csv take `none` and `gzip`.
        keep_days: when a run ends, older parts leave the manifest; the next run deletes their files, so that readers can end
            first. With `owns_object`, parts leave only when a full load or a resync replaces them, at once. Files of replaced parts
            stay as long; without `keep_days`, until the next run.
    """

    path: str = Field(pattern=r"\S")
    storage: StorageSettings = Field(default_factory=StorageSettings)
    format: Literal["jsonl", "csv", "parquet"] = "jsonl"
    compression: Literal["none", "gzip", "snappy", "zstd"] | None = None
    keep_days: float | None = Field(default=None, gt=0, le=36_500)

    @field_validator("path")
    @classmethod
    def _is_known(cls, path: str, info: ValidationInfo) -> str:
        if not is_remote(path):
            return in_project(path, info)
        if not _REMOTE.fullmatch(path):
            raise ValueError(
                "found a URL of another kind; expected a directory, or s3://, gs:// or abfs:// with a bucket; next: correct path"
            )
        if {"", ".", ".."} & set(path.partition("://")[2].rstrip("/").split("/")[1:]):  # below its bucket
            raise ValueError(
                "found an empty part, . or .. in a URL; expected names between slashes; next: correct path"
            )
        return path

    @model_validator(mode="after")
    def _fits(self) -> FilesSettings:
        if self.storage != StorageSettings() and not self.path.startswith("s3://"):
            raise ValueError("found storage without an s3:// path; expected it there only; next: remove storage")
        allowed = _COMPRESSIONS[self.format]
        if self.compression is not None and self.compression not in allowed:
            raise ValueError(
                f"found compression {self.compression} with {self.format}; expected one of {', '.join(allowed)}; next: change compression or format"
            )
        return self

    @property
    def codec(self) -> str:
        """The compression that is used."""
        return self.compression or _COMPRESSIONS[self.format][0]

    @property
    def extension(self) -> str:
        """That of a part."""
        return f"{self.format}.gz" if self.format != "parquet" and self.codec == "gzip" else self.format


class FilesOptions(Options):
    """What one sync may say.

    Attributes:
        nan: NaN and Infinity in JSON Lines and CSV: refuse the row, or write null. In a key the row is refused. Parquet keeps them.
        partition_by: fields whose values become folders, in this order; the files do not contain them.
    """

    nan: Nan = "reject"
    partition_by: tuple[str, ...] = ()
