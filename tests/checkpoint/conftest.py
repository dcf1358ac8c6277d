"""A run directory of each kind."""

import pytest

from largebatch.checkpoint.place import BucketPlace, LocalPlace
from largebatch.object_store import Bucket
from tests.object_servers import Gateway


@pytest.fixture(params=["folder", "store"])
def place(request, tmp_path, monkeypatch):
    if request.param == "folder":
        made = LocalPlace(tmp_path / "run")
        made.create()
        yield made
        return
    gateway = Gateway(request.getfixturevalue("moto"))
    for name, value in gateway.environment("s3").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "logs").mkdir()
    yield BucketPlace(Bucket(f"s3://bucket/{tmp_path.name}"), tmp_path / "logs")
    gateway.shutdown()
    gateway.server_close()
