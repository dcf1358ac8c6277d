"""A run on shards in object storage is the run on a local copy of them."""

import pytest

from largebatch.errors import CheckpointError
from largebatch.object_store import Bucket
from tests.data import forms
from tests.training import worlds
from tests.training.worlds import train

STEPS = 4


def config(source, *, cached=False, **options):
    made = worlds.digits(
        STEPS,
        2,
        model=worlds.SMALL | {"name": "tests.training.own_models:small_colour"},
        batch={"workers": 2, "images_per_worker": 4},
        data={"source": source, "image_size": 16, "cache_gb": float(cached)},
    )
    return worlds.changed(made, **options)


pytestmark = pytest.mark.usefixtures("built_once")


@pytest.mark.slow
def test_a_run_continues_from_a_local_copy_in_object_storage(served, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root, url = tmp_path / "set", f"{served[1]}/set"
    forms.tfds_tfrecord(root)
    for path in root.rglob("*.*"):
        if path.is_file():
            Bucket(url).write(path.relative_to(root).as_posix(), path)
    # The set is recognised by its name in any data.data_dir.
    local = remote = "tfds:pets"
    here, there = {"data__data_dir": str(root)}, {"data__data_dir": url}
    train(config(local, **here), tmp_path / "local")
    half = tmp_path / "half"
    train(config(remote, cached=True, **there), half, dry_run=True)
    train(config(local, run__stop_after="2 steps", **here), half)
    train(config(remote, cached=True, **there), half)
    assert worlds.digests(half, STEPS) == worlds.digests(tmp_path / "local", STEPS)
    last = [worlds.rows(place)[-1] for place in (half, tmp_path / "local")]
    assert last[0]["fingerprint"] == last[1]["fingerprint"]
    assert last[0]["validation/top1"] == last[1]["validation/top1"]
    assert any((tmp_path / "cache/largebatch/records").iterdir())
    other = forms.webdataset(tmp_path / "tars")
    with pytest.raises(CheckpointError):
        train(config(other, **here), half)
