"""URLs of object stores: what is refused before a request, and what messages show of it."""

import re
from pathlib import Path

import pytest

from largebatch.data import SourceOptions
from largebatch.data.source import open_source
from largebatch.errors import ConfigError, UserError
from largebatch.object_store import Bucket
from largebatch.store_urls import check_local, check_url, parts_of, shown, url_of


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "gs:///run",
        "s3://KEY:WORD@bucket/run",
        "s3://KEY:WO/RD@bucket/run",
        "s3://KEY:W@O?R#D@bucket/run",
        "s3://b?x=WORD",
        "az://bucket/a?Signature=WORD/b",
    ],
)
def test_malformed_urls_are_refused(url):
    for call in (
        Bucket,
        check_url,
        lambda url: open_source(f"folder:{url}", "train", SourceOptions()),
        lambda url: open_source(f"tfrecord:{url}", "train", SourceOptions()),
    ):
        with pytest.raises(UserError) as raised:
            call(url)
        assert not re.search("WO|RD|KEY", str(raised.value))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["s3://bucket/a@b", "gs://my-bucket.x/a b/*-000?.tar", "az://box_1"]
)
def test_a_url_without_credentials_is_shown(url):
    check_url(url)
    assert shown(f"tfrecord:{url}") == f"tfrecord:{url}".replace("?.tar", "?…")


def test_a_url_is_distinguished_from_a_path():
    assert url_of("gs://bucket/run") == url_of(Path("gs://bucket/run")) == "gs://bucket/run"
    assert parts_of("gs://bucket/run/a/") == ("gs", "bucket", "run/a")
    assert Bucket("s3://bucket/").url == "s3://bucket"
    assert url_of("runs/gs:/a") == url_of(Path("/runs")) == ""


def test_a_store_where_a_local_directory_is_expected():
    check_local("--workdir", "runs/a")
    with pytest.raises(ConfigError, match="--workdir=s3://bucket/run"):
        check_local("--workdir", Path("s3://bucket/run"))
