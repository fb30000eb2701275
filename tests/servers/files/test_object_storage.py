"""The files sink on an object storage: a server that speaks S3, over HTTP, read back with an independent client."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.request import Request, urlopen

import boto3
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from pydantic import ValidationError

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.files.bucket import BucketStore
from dbt_reverse_etl.sinks.files.settings import FilesOptions, FilesSettings
from dbt_reverse_etl.sinks.files.sink import FilesSink
from dbt_reverse_etl.testing import PEOPLE, ReadBack, Row, SinkContract, batch_of, next_run, opened, outcomes
from dbt_reverse_etl.values.encoding import encode_values
from tests.support.effort import scaled
from tests.support.sinks.files import full, inserted, killed, load, loaded, task_of
from tests.support.sinks.files_consumer import listed, state, typed
from tests.support.sinks.json_values import as_json

SECRET = "canary-2236067977"
_numbers = itertools.count()


class Storage:
    """A server that can go away and come back with what it held, and a bucket on it."""

    bucket = ""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self._port = self._server.get_host_and_port()[1]

    def make_bucket(self) -> None:
        self.bucket = f"crm-{next(_numbers)}"
        self.client.create_bucket(Bucket=self.bucket)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="push",
            aws_secret_access_key=SECRET,
        )

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()

    def remove_bucket(self) -> None:
        for name in self.names(markers=True):
            self.client.delete_object(Bucket=self.bucket, Key=name)
        self.client.delete_bucket(Bucket=self.bucket)

    def close_to_everybody(self, *, closed: bool) -> None:
        """From now on the server looks at logins, and knows none."""
        kind = {"Content-Type": "text/plain"}
        requests_before = b"0" if closed else b"inf"
        urlopen(Request(f"{self.endpoint}/moto-api/reset-auth", requests_before, kind, method="POST")).close()

    def settings(self, **more: Any) -> dict[str, Any]:
        storage = {"endpoint": self.endpoint, "region": "us-east-1", "access_key": "push", "secret_key": SECRET}
        return {"path": f"s3://{self.bucket}/exports", "storage": storage | {"timeout": 2}, **more}

    def sink(self, **more: Any) -> FilesSink:
        return FilesSink(FilesSettings.model_validate(self.settings(**more)))

    def read(self, name: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=self.bucket, Key=f"exports/{name}")["Body"].read()
        return body

    def names(self, *, markers: bool = False) -> list[str]:
        """The files, and if asked for the empty ones by which a client marks a folder."""
        found = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return [
            entry["Key"] for entry in found if not entry["Key"].endswith("/")
        ]  # a marker of the client for the folder

    def manifest(self, name: str = "people") -> dict[str, Any]:
        return json.loads(self.read(f"{name}/manifest.json"))  # type: ignore[no-any-return]

    def listed(self, name: str = "people") -> list[Row]:
        """What a consumer reads."""
        return listed(lambda file: self.read(f"{name}/{file}"))


@pytest.fixture(scope="module")
def server() -> Iterator[Storage]:
    storage = Storage()
    yield storage
    storage.stop()


@pytest.fixture
def storage(server: Storage) -> Storage:
    server.make_bucket()
    return server


class TestS3(SinkContract):
    sink_class = FilesSink

    form: ClassVar[dict[str, Any]] = {}
    histories = scaled(3)

    @pytest.fixture
    def settings(self, storage: Storage) -> dict[str, Any]:
        return storage.settings(**self.form)

    @pytest.fixture
    def unreachable(self, storage: Storage) -> dict[str, Any]:
        return storage.settings(path="s3://no-such-bucket/exports", **self.form)

    @pytest.fixture
    def read_back(self, storage: Storage) -> ReadBack:
        return lambda task: state(storage.listed(task.object), task.key)

    def expected(self, field: pa.Field, value: Any) -> Any:
        return json.loads(encode_values(pa.array([value], field.type)).rows[0] or b"")


@pytest.mark.full  # a format is what tests/quick/sinks/files says, wherever its files are
class TestS3Parquet(TestS3):
    form: ClassVar = {"format": "parquet"}

    def expected(self, field: pa.Field, value: Any) -> Any:
        return pa.array([value], field.type)[0].as_py()


@pytest.mark.full  # a format is what tests/quick/sinks/files says, wherever its files are
class TestS3CsvGzip(TestS3):
    form: ClassVar = {"format": "csv", "compression": "gzip"}

    @pytest.fixture
    def read_back(self, storage: Storage) -> ReadBack:
        return lambda task: [typed(row, task.schema) for row in state(storage.listed(task.object), task.key)]

    def expected(self, field: pa.Field, value: Any) -> Any:
        return as_json(field, value)


@pytest.mark.guarantee("Files")
def test_a_crash_in_a_claim_lists_nothing_of_it_and_its_parts_are_swept(storage: Storage) -> None:
    task = task_of()
    crashed = storage.sink()
    crashed.open(task)
    crashed.deliver(inserted(task, 1))
    crashed.deliver(inserted(task, 2, claim="c2", last=False))
    assert [row["id"] for row in storage.listed()] == [1]
    with opened(storage.sink(), next_run(task)) as sink:
        assert sink.settle(["c1", "c2"]) == {"c1": True, "c2": None}
        sink.deliver(inserted(task, 2, claim="c3"))
        sink.finish()
    with opened(storage.sink(), next_run(task, 3)):
        assert [row["id"] for row in storage.listed()] == [1, 2]
        kept = {f"exports/people/{part['name']}" for part in storage.manifest()["parts"]}
        assert set(storage.names()) == {"exports/people/manifest.json", *kept}


@pytest.mark.guarantee("Files")
def test_a_storage_that_is_down_gets_no_row_and_the_batch_is_listed_once_when_it_is_back(storage: Storage) -> None:
    task = task_of()
    with opened(storage.sink(), task) as sink:
        sink.deliver(inserted(task, 1))
        storage.stop()
        delivery = sink.deliver(inserted(task, 2, claim="c2"))
        assert outcomes(delivery, 1) == [Outcome.RETRYABLE]
        assert "object storage" in delivery.results[0].reason
        storage.start()
        for _ in range(2):
            assert sink.deliver(inserted(task, 2, claim="c2")).results == ()
    assert [row["id"] for row in storage.listed()] == [1, 2]


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("stored", [True, False])
def test_a_lost_answer_for_the_manifest_is_unknown_and_a_repeat_lists_the_rows_once(
    stored: bool, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, replace = task_of(), BucketStore.replace

    def cut(store: BucketStore, name: str, content: bytes) -> None:
        if name == "manifest.json":
            if stored:
                replace(store, name, content)
            storage.stop()
        replace(store, name, content)

    with opened(storage.sink(), task) as sink:
        with monkeypatch.context() as patch:
            patch.setattr(BucketStore, "replace", cut)
            assert outcomes(sink.deliver(inserted(task, 1)), 1) == [Outcome.UNKNOWN]
        storage.start()
        assert sink.deliver(inserted(task, 1)).results == ()
    assert [row["id"] for row in storage.listed()] == [1]


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("stored", [True, False])
def test_a_lost_answer_for_the_swap_ends_the_run_and_the_next_one_asks_what_became_of_it(
    stored: bool, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = BucketStore.replace

    def cut(store: BucketStore, name: str, content: bytes) -> None:
        if name == "manifest.json":
            if stored:
                write(store, name, content)
            storage.stop()
        write(store, name, content)

    loaded(storage.sink(), full(1), 1)
    with opened(storage.sink(), full(2)) as sink:
        sink.deliver(inserted(full(2), 2, claim="whole", last=False))
        with monkeypatch.context() as patch:
            patch.setattr(BucketStore, "replace", cut)
            with pytest.raises(DestinationError, match="object storage"):
                sink.swap("whole")
    storage.start()
    assert [row["id"] for row in storage.listed()] == ([2] if stored else [1])
    with opened(storage.sink(), full(3)) as sink:
        assert sink.settle(["whole"]) == {"whole": True if stored else None}


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("stored", [True, False])
def test_in_object_storage_a_kill_around_the_swap_shows_the_object_before_or_the_new_one(
    stored: bool, storage: Storage
) -> None:
    loaded(storage.sink(), full(1), 1)
    program = f"""
    import os, signal
    from dbt_reverse_etl.sinks.files.sink import FilesSink
    from dbt_reverse_etl.sinks.files.bucket import BucketStore
    from dbt_reverse_etl.sinks.files.settings import FilesSettings
    from dataclasses import replace
    from tests.support.sinks.files import inserted, task_of
    sink = FilesSink(FilesSettings.model_validate({storage.settings()!r}))
    task = replace(task_of(), fence=2, first=False, full_load=True)
    sink.open(task)
    for number in (2, 3):
        sink.deliver(inserted(task, number, claim="whole", last=False))
    write = BucketStore.replace
    def kill(*written):
        if {stored}:
            write(*written)
        os.kill(os.getpid(), signal.SIGKILL)
    BucketStore.replace = kill
    sink.swap("whole")
    """
    killed(program)
    assert [row["id"] for row in storage.listed()] == ([2, 3] if stored else [1])
    with opened(storage.sink(), full(3)) as sink:
        assert sink.settle(["whole"]) == {"whole": True if stored else None}
        load(sink, full(3), 4, claim="again")
        sink.finish()
    with opened(storage.sink(), full(4)):
        kept = {f"exports/people/{part['name']}" for part in storage.manifest()["parts"]}
        assert set(storage.names()) == {"exports/people/manifest.json", *kept}
    assert state(storage.listed(), ["id"]) == [{"id": 4, "name": "Ada", "score": 1.5}]


@pytest.mark.guarantee("Files")
def test_partitions_of_any_name_are_listed_read_and_swept(storage: Storage) -> None:
    texts = ["DE", "a/b", "%41", "é", "日本", " a b ", "x\n", "a+b", "c&d", "<e>", None]
    rows = [{"id": number, "name": text, "score": 0.5} for number, text in enumerate(texts)]
    task = task_of(options=FilesOptions(partition_by=("name",)))
    with opened(storage.sink(), task) as sink:
        assert sink.deliver(batch_of(task, [("insert", row) for row in rows])).results == ()
        sink.finish()
    before = storage.names()
    assert sorted(storage.listed(), key=lambda row: row["id"])[1]["name"] == "a/b"
    storage.client.put_object(Bucket=storage.bucket, Key="exports/people/name=X/0000000001-c1-0123456789ab.jsonl")
    storage.client.put_object(Bucket=storage.bucket, Key="exports/people/old/0000000001-c1-0123456789ab.jsonl")
    with opened(storage.sink(), next_run(task)):
        assert set(storage.names()) - set(before) == {"exports/people/old/0000000001-c1-0123456789ab.jsonl"}
    found = [row for table in storage.sink().read(task) for row in table.select(PEOPLE.names).to_pylist()]
    assert sorted(found, key=lambda row: row["id"]) == rows


@pytest.mark.guarantee("Files")
def test_a_storage_that_cannot_be_reached_is_said_without_secrets(storage: Storage) -> None:
    storage.stop()
    with pytest.raises(DestinationError, match="object storage: ") as caught:
        storage.sink().check()
    assert SECRET not in str(caught.value)
    storage.start()


@pytest.mark.guarantee("Files")
def test_a_bucket_that_is_gone_or_closed_to_us_stops_the_sync(storage: Storage) -> None:
    task = task_of()
    with opened(storage.sink(), task) as sink:
        sink.deliver(inserted(task, 1))
        storage.close_to_everybody(closed=True)
        try:
            delivery = sink.deliver(inserted(task, 2, claim="c2"))
        finally:
            storage.close_to_everybody(closed=False)
        assert outcomes(delivery, 1) == [Outcome.FATAL]
        assert delivery.results[0].reason == "object storage: ACCESS_DENIED"
        storage.remove_bucket()
        delivery = sink.deliver(inserted(task, 2, claim="c2"))
        assert outcomes(delivery, 1) == [Outcome.FATAL]
        assert delivery.results[0].reason == "object storage: NO_SUCH_BUCKET"


@pytest.mark.guarantee("Files")
def test_the_identity_is_the_place_and_no_login(storage: Storage) -> None:
    one, other = storage.settings(), storage.settings()
    other["storage"] = other["storage"] | {"access_key": "other", "secret_key": "other"}
    names = {FilesSink(FilesSettings.model_validate(settings)).identity for settings in (one, other)}
    assert names == {f"s3://{storage.bucket}/exports at {storage.endpoint.removeprefix('http://')}"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "ftp://host/exports"},
        {"path": "s3://"},
        {"path": "s3://key:secret@bucket/x"},
        {"path": "s3://bucket", "storage": {"endpoint": "http://minio.example.com"}},
        {"path": "s3://bucket", "storage": {"access_key": "push"}},
        {"path": "/exports", "storage": {"region": "eu"}},
        {"path": "gs://bucket", "storage": {"region": "eu"}},
    ],
)
def test_a_place_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FilesSettings.model_validate(wrong)
