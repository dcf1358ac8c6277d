"""Objects in S3 and Google Cloud Storage, on local servers that fail now and then."""

import pytest

from largebatch import object_store
from largebatch.object_store import Bucket, StorageError
from tests import object_servers


def sizes(bucket, prefix=""):
    return {name: entry.size for name, entry in bucket.objects(prefix).items()}


def test_objects_are_written_listed_read_copied_and_deleted(served, tmp_path):
    _, url = served
    bucket = Bucket(url)
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * 100_000)  # 25.6 MB: two parts
    bucket.write("a/large", large)
    bucket.write("b.json", b"{}")
    bucket.copy("b.json", "c/b.json")
    assert sizes(bucket) == {"a/large": 25_600_000, "b.json": 2, "c/b.json": 2}
    assert sizes(bucket, "a") == {"a/large": 25_600_000}
    assert bucket.folders() == ["a", "c"]
    assert bucket.entries() == {"b.json": bucket.objects()["b.json"]}
    bucket.download("a/large", tmp_path / "new" / "copy")
    assert (tmp_path / "new" / "copy").read_bytes() == large.read_bytes()
    assert bucket.read("b.json")[0] == b"{}"
    bucket.delete("b.json", "absent")
    assert bucket.read("b.json") is None
    assert sizes(Bucket(f"{url}/c/")) == {"b.json": 2}


def test_of_two_writers_one_succeeds(served):
    _, url = served
    one, other = Bucket(url), Bucket(url)
    first = one.swap("lock", b"1", None)
    assert first is not None
    assert other.swap("lock", b"2", None) is None
    second = other.swap("lock", b"2", first)
    assert second is not None
    assert one.swap("lock", b"3", first) is None
    content, found = one.read("lock")
    assert (content, found) == (b"2", second)
    one.delete("lock")
    assert one.swap("lock", b"3", second) is None


@pytest.mark.parametrize("fault", ["503", "cut", "late"])
def test_failed_requests_are_repeated(served, fault, tmp_path):
    gateway, url = served
    bucket = Bucket(url)
    gateway.fault = lambda method, path, number: fault if number % 2 == 0 else ""
    bucket.write("a", b"content")
    assert sizes(bucket) == {"a": 7}
    bucket.download("a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"content"
    bucket.delete("a")
    assert bucket.objects() == {}
    assert len(gateway.requests) >= 8


def test_a_store_that_stays_down_is_an_error_without_secrets(served, monkeypatch):
    gateway, url = served
    monkeypatch.setattr(object_store, "_RETRY_S", 1)
    bucket = Bucket(url)
    gateway.fault = lambda *_: "503"
    with pytest.raises(StorageError) as raised:
        bucket.write("a", b"content")
    assert f"{url}/a" in str(raised.value)
    assert "503" in str(raised.value)
    assert object_servers.SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
    gateway.fault = None
    other = Bucket(url.replace("//bucket", "//other"))
    for request in (other.objects, lambda: other.swap("lock", b"", None)):
        with pytest.raises(StorageError, match="NoSuchBucket"):
            request()


def test_a_name_that_a_store_refuses_is_one_line(served):
    bucket = Bucket(served[1])
    for call in (bucket.read, lambda name: bucket.write(name, b"")):
        with pytest.raises(StorageError) as raised:
            call("a\nb")
        assert "\n" not in str(raised.value)
