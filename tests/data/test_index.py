"""The index of positions: kept, replaced when a shard changes, and never trusted blindly."""

import os

import numpy as np
import pytest

from largebatch.data import index
from largebatch.data.ranges import Disk


class Scan:
    """Positions that depend on the content; counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, storage, name):
        self.calls += 1
        return np.array([[b, 7, 0] for b in storage.text(name)], np.int64).reshape(-1, 3)


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    found = [tmp_path / "set" / name for name in "abc"]
    for path, content in zip(found, (b"12", b"", b"345"), strict=True):
        path.write_bytes(content)
    return list(map(str, found))


def positions(paths, scan, kind="kind"):
    names = list(map(os.path.basename, paths))
    return index.rows_of("pets", kind, Disk(os.path.dirname(paths[0])), names, scan)


def plain(found):
    lengths, rows = found
    return [part[:, 0].tolist() for part in np.split(rows, np.cumsum(lengths)[:-1])]


def test_an_index_is_kept_until_a_shard_changes(paths):
    scan = Scan()
    first = positions(paths, scan)
    assert plain(first) == [[49, 50], [], [51, 52, 53]]
    assert (plain(positions(paths, scan)), scan.calls) == (plain(first), 3)
    positions(paths, scan, "other kind")
    positions(paths[:2], scan)
    assert scan.calls == 8
    # Other content of the same size, written at another time.
    os.utime(paths[0], ns=(1, 1))
    positions(paths, scan)
    with open(paths[2], "ab") as file:
        file.write(b"6")
    assert plain(positions(paths, scan))[2] == [51, 52, 53, 54]
    assert scan.calls == 10  # the changed ones alone


@pytest.mark.parametrize("every", [0.0, 30.0])
def test_an_interrupted_scan_continues(paths, monkeypatch, every):
    monkeypatch.setattr(Disk, "scanners", 1)
    monkeypatch.setattr(index, "_SAVE_EVERY_S", every)
    first, interrupted = Scan(), Scan()

    def until_the_last(storage, name):
        if name == "c":
            raise KeyboardInterrupt
        return interrupted(storage, name)

    with pytest.raises(KeyboardInterrupt):
        positions(paths, until_the_last)
    assert interrupted.calls == 2
    assert plain(positions(paths, first)) == [[49, 50], [], [51, 52, 53]]
    assert first.calls == 1
    assert positions(paths, first)[0] == [2, 0, 3]
    assert first.calls == 1


def test_a_damaged_index_is_replaced(paths, tmp_path):
    scan = Scan()
    first = positions(paths, scan)
    (file,) = (tmp_path / "set").glob(".kind*")
    intact = file.read_bytes()
    unknown = bytearray(intact)
    unknown[intact.index(b"PK\1\2") + 10] = 99  # a compression that zipfile does not know
    for content in (b"", b"x" * 100, intact[:200], intact[:-30], bytes(unknown)):
        file.write_bytes(content)
        assert plain(positions(paths, scan)) == plain(first)
        assert file.read_bytes() == intact
    assert scan.calls == 18


def test_a_set_that_cannot_be_written_has_its_index_in_the_cache(paths, tmp_path, monkeypatch):
    scan, make = Scan(), index.replacing

    def refuse(place, shared):
        if place.parent == tmp_path / "set":
            raise PermissionError
        return make(place, shared=shared)

    monkeypatch.setattr(index, "replacing", refuse)
    for _ in range(2):
        assert plain(positions(paths, scan))[0] == [49, 50]
    assert scan.calls == 3
    assert len(list((tmp_path / "cache" / "largebatch").iterdir())) == 1
    monkeypatch.setattr(index, "replacing", lambda *_, **__: (_ for _ in ()).throw(OSError))
    os.utime(paths[0], ns=(1, 1))
    assert plain(positions(paths, scan))[0] == [49, 50]  # nowhere to keep it
