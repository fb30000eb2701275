"""What profiles.yml and `meta.reverse_etl.options` may say to the kafka sink, and what librdkafka is told.

Settings that begin with `security_`, `sasl_` or `ssl_` are librdkafka's properties of that name, with dots. No other
property can be set: some of them load libraries or run commands.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from dbt_reverse_etl.sinks.base import Options, Settings
from dbt_reverse_etl.sinks.hosts import is_loopback, leaves_unencrypted, parts_of
from dbt_reverse_etl.sinks.lines import BasicUser, OneLine, SecretLine
from dbt_reverse_etl.sinks.paths import ProjectCa, ProjectFile
from dbt_reverse_etl.values.encoding import Nan

CLIENT = "dbt-reverse-etl"
DEFAULT_PORT = 9092
SMALLEST_LIMIT, LARGEST_LIMIT = 1000, 10**9  # bytes, of librdkafka's message.max.bytes
# A message is measured with its headers and its frame, but without that of its batch: with this much room it fits what the topic allows.
FRAME = 512
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")
_PASSED_ON = ("sasl_", "ssl_")
_NOWHERE = logging.Logger(CLIENT)
_NOWHERE.addHandler(logging.NullHandler())

Protocol = Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]


class KafkaSettings(Settings):
    """One Kafka cluster.

    Attributes:
        bootstrap_servers: `host:port`, several with commas. Another list is another destination, which gets all rows.
        security_protocol: default `sasl_ssl` with a login, `ssl` without; the two without TLS only on this machine, where they are the default if its brokers are there.
        sasl_mechanism: how the login is checked.
        sasl_username: logs in.
        sasl_password: of the user.
        ssl_ca_location: PEM file of the CA; default: the CAs of the system.
        ssl_certificate_location: PEM file of a client certificate.
        ssl_key_location: PEM file of its key.
        ssl_key_password: of that file.
        compression: of the messages.
        timeout: seconds after which a message without an answer is unknown.
        create_object: create a missing topic: compacted, or in mode `changelog` one that keeps every event.
        replication_factor: of a topic that is created; default: the cluster's.
        schema_registry_url: for Avro; https, on this machine also http.
        schema_registry_user, schema_registry_password: its login.
        schema_registry_ca_location: PEM file of its CA; default: the CAs that come with the client.
    """

    bootstrap_servers: str
    security_protocol: Protocol | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: OneLine | None = Field(default=None, min_length=1)
    sasl_password: SecretLine | None = None
    ssl_ca_location: ProjectCa | None = Field(default=None, min_length=1)
    ssl_certificate_location: ProjectFile | None = Field(default=None, min_length=1)
    ssl_key_location: ProjectFile | None = Field(default=None, min_length=1)
    ssl_key_password: SecretLine | None = None
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    timeout: float = Field(default=60, ge=1, le=300)
    create_object: bool = False
    replication_factor: int | None = Field(default=None, ge=1)
    schema_registry_url: str | None = None
    schema_registry_user: BasicUser | None = Field(default=None, min_length=1)
    schema_registry_password: SecretLine | None = None
    schema_registry_ca_location: ProjectFile | None = Field(default=None, min_length=1)

    @field_validator("bootstrap_servers")
    @classmethod
    def _are_servers(cls, text: str) -> str:
        for server in text.split(","):
            found = _SERVER.fullmatch(server.strip())
            if not found or int(found["port"] or DEFAULT_PORT) not in range(1, 65536):
                raise ValueError("found no server; expected host:port, several with commas; next: correct it")
        return text

    @field_validator("schema_registry_url")
    @classmethod
    def _is_registry(cls, url: str | None) -> str | None:
        parts = parts_of(url or "")
        is_one = parts is not None and not leaves_unencrypted(parts) and "@" not in parts.netloc
        if url is not None and (not is_one or {*",?#"} & {*url}):
            raise ValueError(
                "found something else; expected one URL with https, for this machine also http, without a login, ? or # in it; next: correct it"
            )
        return url

    @model_validator(mode="after")
    def _fits(self) -> KafkaSettings:
        login = (self.sasl_mechanism, self.sasl_username, self.sasl_password)
        if any(part is None for part in login) and any(part is not None for part in login):
            raise ValueError("found a part of a login; expected all three sasl_ settings; next: add the others")
        self._both("ssl_certificate_location", "ssl_key_location")
        if self.ssl_key_password is not None and self.ssl_key_location is None:
            raise ValueError("found ssl_key_password without ssl_key_location; expected the key; next: name its file")
        has_registry = (
            self._both("schema_registry_user", "schema_registry_password") or self.schema_registry_ca_location
        )
        if has_registry and self.schema_registry_url is None:
            raise ValueError("found settings of a schema registry; expected schema_registry_url; next: add it")
        self._check_protocol()
        return self

    def _both(self, one: str, other: str) -> bool:
        """Whether both are set; one alone is refused."""
        has_one, has_other = (getattr(self, name) is not None for name in (one, other))
        if has_one != has_other:
            raise ValueError(f"found one of {one} and {other}; expected both; next: name the other")
        return has_one

    def _check_protocol(self) -> None:
        has_login, protocol = self.sasl_mechanism is not None, self.protocol
        if protocol.startswith("sasl_") != has_login:
            raise ValueError(
                f"found security_protocol {protocol} {'with' if has_login else 'without'} a login; expected sasl_ssl or sasl_plaintext exactly where there is one; next: correct one of them"
            )
        if not protocol.endswith("ssl") and not self.is_local:
            raise ValueError(
                f"found security_protocol {protocol}; expected TLS away from this machine; next: remove it"
            )
        if not protocol.endswith("ssl") and (self.ssl_ca_location or self.ssl_certificate_location):
            raise ValueError(
                f"found files for TLS with {protocol}; expected security_protocol ssl or sasl_ssl; next: set it"
            )

    @property
    def servers(self) -> list[str]:
        """The servers in one spelling, ordered."""
        return sorted({f"{host}:{port}" for host, port in self._hosts()})

    @property
    def is_local(self) -> bool:
        """Whether all of them are this machine."""
        return all(is_loopback(host.strip("[]")) for host, _ in self._hosts())

    @property
    def protocol(self) -> str:
        """The security protocol in effect."""
        login = "sasl_" if self.sasl_mechanism is not None else ""
        return self.security_protocol or login + ("plaintext" if self.is_local else "ssl")

    def connection(self) -> dict[str, Any]:
        """What every client of librdkafka is told; holds the secrets."""
        given = {name: value for name, value in self if name.startswith(_PASSED_ON) and value is not None}
        plain = {
            name.replace("_", "."): value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in given.items()
        }
        return plain | {
            "bootstrap.servers": ",".join(self.servers),
            "security.protocol": self.protocol,
            "client.id": CLIENT,
            "log_level": 0,  # what matters comes as an error
            "logger": _NOWHERE,  # else what is fatal goes to standard error all the same
            "socket.keepalive.enable": True,
        }

    def registry(self) -> dict[str, Any]:
        """What the client of the schema registry is told; holds its secret."""
        given: dict[str, Any] = {"url": self.schema_registry_url}
        if self.schema_registry_password is not None:
            secret = self.schema_registry_password.get_secret_value()
            given["basic.auth.user.info"] = f"{self.schema_registry_user}:{secret}"
        if self.schema_registry_ca_location is not None:
            given["ssl.ca.location"] = self.schema_registry_ca_location
        return given

    def producer(self, limit: int) -> dict[str, Any]:
        """The properties of the producer, for a topic with this max.message.bytes: no batch of messages is larger."""
        return self.connection() | {
            "enable.idempotence": True,
            "acks": "all",
            "allow.auto.create.topics": False,  # librdkafka's producer would make a topic that was deleted anew
            "delivery.report.only.error": True,  # a report that all is well costs a call of Python
            "partitioner": "murmur2_random",  # Java's, for every key
            "compression.type": self.compression,
            "message.timeout.ms": round(self.timeout * 1000),
            "message.max.bytes": min(max(SMALLEST_LIMIT, limit - FRAME), LARGEST_LIMIT),
        }

    def _hosts(self) -> list[tuple[str, int]]:
        found = [_SERVER.fullmatch(server.strip()) for server in self.bootstrap_servers.split(",")]
        return [(match["host"].lower(), int(match["port"] or DEFAULT_PORT)) for match in found if match]


class KafkaOptions(Options):
    """What one sync may say.

    Attributes:
        key: `json`, an object of the key fields; or `raw`, the text of the only key field.
        value_format: `json`; or `avro`, with a schema in the destination's registry.
        nan: NaN and Infinity in JSON: refuse the row, or write null. Not for `avro`, which has both.
        partitions: required: the topic's number of partitions. Another number is refused, because keys would move. A topic
            that is created gets this many. If you change it, the next push sends every row again.
        compacted: refuse a topic that loses old rows. Not in mode `changelog`.
    """

    key: Literal["json", "raw"] = "json"
    value_format: Literal["json", "avro"] = "json"
    nan: Nan = "reject"
    partitions: int | None = Field(default=None, ge=1)
    compacted: bool = True
