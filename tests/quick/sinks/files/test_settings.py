"""Settings of the files sink that are refused before anything is sent."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from dbt_reverse_etl.sinks.files.settings import FilesSettings, StorageSettings


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize("place", ["s3://bucket", "gs://bucket", "abfs://c@account.dfs.core.windows.net"])
def test_a_prefix_that_no_object_storage_can_name_is_refused_before_anything_is_sent(place: str) -> None:
    for wrong in ("//exports", "/a//b", "/./exports", "/../exports", "/exports/..", "/a/./b/"):
        with pytest.raises(ValidationError, match="found an empty part"):
            FilesSettings(path=place + wrong)
    for right in ("", "/", "/exports", "/a/b/", "/a/.b/c..d", "/exports//"):
        assert FilesSettings(path=place + right)
    assert FilesSettings(path="/srv//exports/../x")


@pytest.mark.guarantee("Files")
@pytest.mark.parametrize(
    "endpoint",
    [
        "https://AKIA:s3cr3tvalue@minio.example.com",
        "https://s3cr3tvalue@minio.example.com",
        "https://AKIA:s3cr3tvalue/@minio.example.com",
        "https://minio.example.com?key=s3cr3tvalue",
        "https://minio.example.com#s3cr3tvalue",
        "https://minio.example.com:s3cr3tvalue",
        "https://[s3cr3tvalue",
        "http://s3cr3tvalue.example.com",
        "https:///s3cr3tvalue",
        "s3cr3tvalue",
    ],
)
def test_an_endpoint_with_a_login_a_query_or_no_host_is_refused_without_showing_it(endpoint: str) -> None:
    storage = {"endpoint": endpoint}
    for model, values in ((FilesSettings, {"path": "s3://bucket", "storage": storage}), (StorageSettings, storage)):
        with pytest.raises(ValidationError) as refused:
            model.model_validate(values)
        assert "s3cr3tvalue" not in str(refused.value)
    for right in (None, "", "https://minio.example.com", "https://minio.example.com:9000/", "http://127.0.0.1:9000"):
        assert FilesSettings.model_validate({"path": "s3://bucket", "storage": {"endpoint": right}})


@pytest.mark.parametrize("endpoint", ["https://ref.example.com/storage/v1/s3", "https://id.r2.example.com/bucket"])
def test_an_endpoint_with_a_path_which_would_be_ignored_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match=r"found a path, which would be ignored.*into path"):
        FilesSettings.model_validate({"path": "s3://bucket", "storage": {"endpoint": endpoint}})


def test_a_compression_that_the_format_does_not_have_is_refused() -> None:
    with pytest.raises(ValidationError, match="expected one of none, gzip"):
        FilesSettings(path="x", compression="snappy")
