"""What the Kafka sink may be told, what librdkafka is told, and what its errors mean. Without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from pydantic import SecretStr, ValidationError

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.kafka.outcome import (
    HOPELESS,
    NOT_WRITTEN,
    REFUSED,
    TOO_LARGE,
    WORDS,
    Reports,
    delivery_of,
    not_taken,
    reported,
    said,
)
from dbt_reverse_etl.sinks.kafka.settings import KafkaSettings
from dbt_reverse_etl.sinks.kafka.sink import KafkaSink
from tests.support.outcomes import FATAL, REJECTED, RETRYABLE, UNKNOWN

SECRET = "canary-password-16180339"
LOGIN = {"sasl_mechanism": "PLAIN", "sasl_username": "crm", "sasl_password": SECRET}
REGISTRY = {
    "schema_registry_url": "https://registry.example.com",
    "schema_registry_user": "crm",
    "schema_registry_password": SECRET,
}
AWAY, HERE = "b2.example.com:9093,b1.example.com:9093", "127.0.0.1:9092"


def told(servers: str = AWAY, **more: Any) -> dict[str, Any]:
    return KafkaSettings.model_validate({"bootstrap_servers": servers, **more}).producer(1_048_588)


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize(
    ("servers", "more", "protocol"),
    [
        (AWAY, {}, "ssl"),
        (AWAY, LOGIN, "sasl_ssl"),
        (HERE, {}, "plaintext"),
        ("localhost,[::1]:9093", LOGIN, "sasl_plaintext"),
        (HERE, {"security_protocol": "ssl"}, "ssl"),
    ],
)
def test_tls_is_the_default_away_from_this_machine(servers: str, more: dict[str, Any], protocol: str) -> None:
    assert told(servers, **more)["security.protocol"] == protocol


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize(
    "wrong",
    [
        {"security_protocol": "plaintext"},
        {"security_protocol": "sasl_plaintext", **LOGIN},
        {"bootstrap_servers": f"{AWAY},{HERE}", "security_protocol": "plaintext"},
        {"security_protocol": "sasl_ssl"},
        {"security_protocol": "ssl", **LOGIN},
        {"sasl_username": "crm", "sasl_password": SECRET},
        {"sasl_mechanism": "GSSAPI", "sasl_username": "crm", "sasl_password": SECRET},
        {"ssl_certificate_location": "cert.pem"},
        {"ssl_key_password": SECRET},
        {"bootstrap_servers": HERE, "ssl_ca_location": "ca.pem"},
        {"bootstrap_servers": ""},
        {"bootstrap_servers": "b1:99999"},
        {"bootstrap_servers": f"PLAINTEXT://crm:{SECRET}@b1:9092"},
        {"timeout": 0},
        {"schema_registry_url": "http://registry.example.com"},
        {"schema_registry_url": f"https://crm:{SECRET}@registry.example.com"},
        {"schema_registry_url": "https://a.example.com,http://b.example.com"},
        {"schema_registry_url": "registry"},
        {"schema_registry_url": "https://registry.example.com/?a=b"},
        {"schema_registry_url": "https://registry.example.com#a"},
        {**REGISTRY, "schema_registry_user": f"crm:{SECRET}"},
        {"schema_registry_url": "https://registry.example.com", "schema_registry_password": SECRET},
        {"schema_registry_user": "crm", "schema_registry_password": SECRET},
        # They load libraries, run commands, or weaken what is promised.
        {"plugin.library.paths": "/tmp/x.so"},
        {"plugin_library_paths": "/tmp/x.so"},
        {"sasl_kerberos_kinit_cmd": "sh"},
        {"ssl_engine_location": "/tmp/x.so"},
        {"ssl_providers": "x"},
        {"enable_ssl_certificate_verification": False},
        {"ssl_endpoint_identification_algorithm": "none"},
        {"acks": 0},
        {"partitioner": "random"},
        {"debug": "all"},
    ],
)
def test_what_is_unsafe_or_would_have_no_effect_is_refused_without_its_secrets(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        KafkaSettings.model_validate({"bootstrap_servers": AWAY, **wrong})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "key", ["sasl_username", "sasl_password", "ssl_key_password", "schema_registry_user", "schema_registry_password"]
)
def test_a_line_break_at_an_end_is_refused_with_where_to_look(key: str) -> None:
    of_key = {f"ssl_{name}_location": f"{name}.pem" for name in ("certificate", "key")}
    given = {"bootstrap_servers": AWAY, **LOGIN, **REGISTRY, **of_key, "ssl_key_password": SECRET}
    KafkaSettings.model_validate(given)
    with pytest.raises(ValidationError, match="look for a line break at the end of the variable") as caught:
        KafkaSettings.model_validate(given | {key: f"{given[key]}\n"})
    assert SECRET not in str(caught.value)


def test_logins_and_files_reach_librdkafka_by_its_own_names_and_delivery_is_always_acknowledged_by_all() -> None:
    files = {f"ssl_{name}_location": f"{name}.pem" for name in ("ca", "certificate", "key")}
    config = told(**LOGIN, **files, ssl_key_password=SECRET, timeout=5)
    expected = {
        "bootstrap.servers": "b1.example.com:9093,b2.example.com:9093",
        "sasl.mechanism": "PLAIN", "sasl.username": "crm", "sasl.password": SECRET,
        "ssl.ca.location": "ca.pem", "ssl.certificate.location": "certificate.pem", "ssl.key.location": "key.pem",
        "ssl.key.password": SECRET, "enable.idempotence": True, "acks": "all", "message.timeout.ms": 5000,
        "partitioner": "murmur2_random", "message.max.bytes": 1_048_588 - 512,
    }  # fmt: skip
    assert expected.items() <= config.items()
    for limit in (1, 1_048_588, 2**31 - 1):  # it knows every name, and takes every limit of a topic
        Producer(KafkaSettings.model_validate({"bootstrap_servers": HERE, **LOGIN}).producer(limit))


def test_one_cluster_has_one_identity_in_whatever_order_its_servers_are_named() -> None:
    spelled = ("B1.example.com, b2.example.com:9092", "b2.example.com:9092,b1.example.com:9092")
    names = {KafkaSink(KafkaSettings(bootstrap_servers=servers)).identity for servers in spelled}
    assert names == {"b1.example.com:9092,b2.example.com:9092"}
    assert isinstance(KafkaSettings.model_validate({"bootstrap_servers": AWAY, **LOGIN}).sasl_password, SecretStr)


# --- what an error means


@pytest.mark.guarantee("Kafka", "No error that leaves a doubt counts as not written")
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("_MSG_TIMED_OUT", UNKNOWN),
        ("REQUEST_TIMED_OUT", UNKNOWN),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", UNKNOWN),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", UNKNOWN),
        ("_PURGE_INFLIGHT", UNKNOWN),
        ("_FATAL", UNKNOWN),
        ("an error of tomorrow", UNKNOWN),
        # That of the last attempt: one before may have been written, and its answer lost.
        ("NOT_ENOUGH_REPLICAS", UNKNOWN),
        ("NOT_LEADER_FOR_PARTITION", UNKNOWN),
        ("_PURGE_QUEUE", UNKNOWN),
        ("TOPIC_AUTHORIZATION_FAILED", UNKNOWN),
        ("UNKNOWN_TOPIC_OR_PART", UNKNOWN),
        ("INVALID_TIMESTAMP", UNKNOWN),
        ("CLUSTER_AUTHORIZATION_FAILED", FATAL),
        ("_INVALID_DIFFERENT_RECORD", RETRYABLE),
        ("INVALID_RECORD", REJECTED),
    ],
)
def test_only_what_was_surely_not_written_is_not_unknown(name: str, outcome: Outcome) -> None:
    assert reported(name)[0] is outcome
    assert delivery_of(1, {}, {0: name}).results[0].outcome is outcome


def test_what_the_producer_did_not_take_was_not_sent() -> None:
    names = (TOO_LARGE, "_FATAL", "_UNKNOWN_TOPIC", "_STATE")
    outcomes = [not_taken(name)[0] for name in names]
    assert outcomes == [REJECTED, FATAL, FATAL, RETRYABLE]


def test_every_name_is_one_of_the_client() -> None:
    names = {name for name in dir(KafkaError) if name.isupper()}
    assert names >= REFUSED | HOPELESS | {NOT_WRITTEN} | set(WORDS)
    assert said("_STATE") == "_STATE"
    assert "set compression" in said("UNSUPPORTED_COMPRESSION_TYPE")


def test_rows_that_were_refused_together_are_bisected_only_if_nothing_else_became_of_the_batch() -> None:
    local = {0: (REJECTED, "NULL in a key field")}
    whole = delivery_of(3, local, {1: TOO_LARGE, 2: TOO_LARGE})
    assert (whole.refused_whole, [result.outcome for result in whole.results]) == (True, [REJECTED] * 3)
    alone = delivery_of(2, local, {1: TOO_LARGE})
    assert (alone.refused_whole, [result.outcome for result in alone.results]) == (False, [REJECTED] * 2)
    part = delivery_of(3, {}, {1: TOO_LARGE, 2: TOO_LARGE})
    assert (part.refused_whole, [result.outcome for result in part.results]) == (False, [RETRYABLE] * 2)
    assert all("to be sent apart" in result.reason for result in part.results)


@pytest.mark.guarantee("Kafka", "One record that the broker refuses does not hold up the rows of its batch")
def test_rows_that_are_refused_because_of_another_one_are_bisected_with_it() -> None:
    together = delivery_of(3, {}, {0: NOT_WRITTEN, 1: "INVALID_RECORD", 2: NOT_WRITTEN})
    assert (together.refused_whole, [result.outcome for result in together.results]) == (True, [REJECTED] * 3)
    others_are_there = delivery_of(4, {}, {0: NOT_WRITTEN, 1: "INVALID_RECORD", 2: NOT_WRITTEN})
    assert not others_are_there.refused_whole
    assert {result.outcome for result in others_are_there.results} == {RETRYABLE}
    nobody_is_at_fault = delivery_of(2, {}, {0: NOT_WRITTEN, 1: NOT_WRITTEN})
    assert {result.outcome for result in nobody_is_at_fault.results} == {RETRYABLE}


class Keyed:
    """A message of the client, which cannot be made by hand."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def key(self) -> bytes:
        return self._key


def of_deletes(*rows: int | tuple[int, ...]) -> dict[int, str]:
    """The errors of deletes with these errors for one, or each, of their two messages."""
    reports = Reports()
    for row, codes in enumerate(rows):
        for code in codes if isinstance(codes, tuple) else (codes,):
            reports(KafkaError(code), Keyed(b"%d" % row))  # type: ignore[arg-type]
    return reports.failed(lambda: [b"%d" % row for row in range(len(rows))], {*range(len(rows))})


@pytest.mark.guarantee("Kafka")
@pytest.mark.parametrize(
    ("code", "alone", "half"),
    [
        (KafkaError._INVALID_DIFFERENT_RECORD, RETRYABLE, UNKNOWN),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, FATAL, UNKNOWN),
        (KafkaError.MSG_SIZE_TOO_LARGE, REJECTED, REJECTED),
    ],
)
def test_an_event_without_its_tombstone_is_never_surely_unwritten(code: int, alone: Outcome, half: Outcome) -> None:
    """A row of which the broker refuses a half is refused, so that it waits, and in doubt."""
    for messages, outcome in ((2, alone), (1, half)):
        reports = Reports()
        for _ in range(messages):
            reports(KafkaError(code), Keyed(b"k"))  # type: ignore[arg-type]
        delivery = delivery_of(1, {}, reports.failed(lambda: [b"k"], {0}))
        assert delivery.results[0].outcome is outcome
        assert delivery.in_part == ((0,) if messages == 1 and outcome is REJECTED else ())


def test_deletes_that_are_refused_by_half_are_bisected_and_stay_in_doubt() -> None:
    delivery = delivery_of(2, {}, of_deletes(KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD))
    assert (delivery.refused_whole, delivery.in_part) == (True, (0, 1))
    assert "a part of it is in the topic" in delivery.results[0].reason


@pytest.mark.guarantee(
    "Kafka", "A delete holds up no other row of its batch if the broker refuses one of its two messages"
)
def test_a_delete_of_which_one_message_is_refused_because_of_the_other_is_refused() -> None:
    refused, beside = KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD
    for pair in ((refused, beside), (beside, refused)):
        alone = delivery_of(1, {}, of_deletes(pair))
        assert [result.outcome for result in alone.results] == [REJECTED]
        together = delivery_of(3, {}, of_deletes((beside, beside), pair, (beside, beside)))
        assert (together.refused_whole, [result.outcome for result in together.results]) == (True, [REJECTED] * 3)
