"""Object storages: how long each may take, which of their errors end a sync, and how Azure replaces a manifest."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.files.bucket import Bucket, BucketStore
from dbt_reverse_etl.sinks.files.run import FilesRun
from dbt_reverse_etl.sinks.files.settings import FilesSettings, StorageSettings
from dbt_reverse_etl.sinks.files.sink import FilesSink
from dbt_reverse_etl.testing import outcomes
from tests.support.sinks.blob_service import BlobService, blob_service
from tests.support.sinks.files import inserted, task_of


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("path", ["gs://bucket", "gcs://bucket/exports/crm/"])
def test_google_gives_up_within_a_minute_below_the_same_prefix(path: str) -> None:
    filesystem, prefix = Bucket(path, StorageSettings())._filesystem
    _, (options, *_) = filesystem.__reduce__()  # which has what it has no attribute for
    assert options["retry_time_limit"] == timedelta(seconds=60)
    assert prefix == path.partition("://")[2].rstrip("/")


def test_azure_and_s3_keep_their_address() -> None:
    for path, expected in (
        ("abfs://box@acme.dfs.core.windows.net/exports", "box/exports"),
        ("s3://bucket/exports", "bucket/exports"),
    ):
        assert Bucket(path, StorageSettings(region="eu-central-1"))._filesystem[1] == expected


@pytest.mark.guarantee("Files")
def test_a_change_of_the_manifest_fits_in_half_a_lease() -> None:
    assert StorageSettings(timeout=35)
    with pytest.raises(ValidationError):
        StorageSettings(timeout=36)
    requests, attempts, half_a_lease = 4, 3, 450
    assert requests * attempts * 35 < half_a_lease


_AZURE = "UploadFrom failed for 'https://acme.blob.core.windows.net/box/a'. Azure Error: [{}] 403 canary"


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (OSError(_AZURE.format("AuthorizationPermissionMismatch")), Outcome.FATAL, "AuthorizationPermissionMismatch"),
        (OSError(_AZURE.format("AuthorizationFailure")), Outcome.FATAL, "AuthorizationFailure"),
        (OSError(_AZURE.format("ContainerNotFound")), Outcome.FATAL, "ContainerNotFound"),
        (OSError(_AZURE.format("ServerBusy")), Outcome.RETRYABLE, "ServerBusy"),
        (OSError(_AZURE.format("")), Outcome.RETRYABLE, "OSError"),
        (OSError(errno.EACCES, "google::cloud::Status(PERMISSION_DENIED: canary)"), Outcome.FATAL, "EACCES"),
        (OSError("google::cloud::Status(UNAVAILABLE: canary)"), Outcome.RETRYABLE, "OSError"),
    ],
)
def test_a_storage_that_denies_access_ends_the_sync_and_one_that_is_busy_does_not(
    error: OSError, outcome: Outcome, reason: str
) -> None:
    class Refusing:
        type_name = "s3"

        def open_output_stream(self, *_: Any, **__: Any) -> Any:
            raise error

        def open_input_stream(self, *_: Any, **__: Any) -> Any:
            raise FileNotFoundError

    task, sink = task_of(), FilesSink(FilesSettings(path="s3://box"))
    sink._run = FilesRun(BucketStore(Refusing(), "box/people"), task)
    delivery = sink.deliver(inserted(task, 1))
    assert outcomes(delivery, 1) == [outcome]
    assert reason in delivery.results[0].reason
    assert "canary" not in delivery.results[0].reason


@pytest.fixture
def azure() -> Iterator[BlobService]:
    with blob_service() as service:
        yield service


@pytest.mark.guarantee("Files")
def test_a_reader_on_azure_never_sees_an_empty_manifest(azure: BlobService) -> None:
    task = task_of()
    for fence in (1, 2):
        run = FilesRun(BucketStore(azure.filesystem(), "box/people"), replace(task, fence=fence))
        run.begin()
        run.change(lambda manifest: manifest.model_copy(update={"whole_from": manifest.fence}))
    assert [orjson.loads(one)["fence"] for one in azure.contents["people/manifest.json"]] == [1, 1, 2, 2]
    assert len([name for name in azure.blobs if "/.tmp-" in name]) == 1  # the next run removes it


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize(
    ("denied", "outcome"), [("comp=block .tmp-", Outcome.FATAL), ("PUT people/manifest.json", Outcome.UNKNOWN)]
)
def test_a_change_that_azure_refuses_leaves_the_manifest_before(
    denied: str, outcome: Outcome, azure: BlobService
) -> None:
    task, sink = task_of(), FilesSink(FilesSettings(path="s3://box"))
    sink._run = FilesRun(BucketStore(azure.filesystem(), "box/people"), task)
    sink._run.begin()
    before = azure.blobs["people/manifest.json"]
    azure.denied = (denied,)
    assert outcomes(sink.deliver(inserted(task, 1)), 1) == [outcome]
    assert azure.blobs["people/manifest.json"] == before
    azure.denied = ()
    assert outcomes(sink.deliver(inserted(task, 1)), 1) == [Outcome.DELIVERED]
