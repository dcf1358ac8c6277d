"""Chunks of ArrayRecord files are what array_record's own reader finds in them."""

import sys

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from largebatch.data import riegeli
from largebatch.data.storage import LocalStorage
from largebatch.errors import ConfigError, DataError

BLOCK = 65536
# Around the ends of the first two blocks, which chunks and their headers then cross.
SIZES = [0, 1, 100, *range(65_200, 65_420), 110_000, 300_000, 5]
READ = ("group_size:1", "group_size:1,uncompressed", "group_size:1,pad_to_block_boundary:true")
REFUSED = ("group_size:3", "group_size:1,transpose", "group_size:1,brotli", "group_size:1,snappy")


def write(path, options, sizes, compressible=False):
    rng = np.random.default_rng(0)
    writer = ArrayRecordWriter(str(path), options)
    for size in sizes:
        writer.write(rng.integers(0, 4 if compressible else 256, size, np.uint8).tobytes())
    writer.close()
    return str(path)


def records(path):
    """The records, each decoded from the bytes of its own chunk alone."""
    storage = LocalStorage(path.rpartition("/")[0])
    file = storage.open(path)
    rows = riegeli.scan(path, storage).tolist()
    return [riegeli.record(path, file.read(*row), row[0]) for row in rows]


@pytest.mark.parametrize("options", READ)
@pytest.mark.parametrize("compressible", [False, True])
def test_records_are_those_of_the_own_reader(tmp_path, options, compressible):
    for number, sizes in enumerate((SIZES[:3], [7] * 9_000, SIZES[::9], SIZES[1::50], [])):
        if "pad" in options and len(sizes) > 1000:
            continue  # a block for each record
        path = write(tmp_path / f"{number}", options, sizes, compressible)
        reader = ArrayRecordReader(path)
        expected = reader.read_all() if sizes else []
        assert records(path) == expected
        assert list(map(len, expected)) == sizes


@pytest.mark.slow
def test_chunks_cross_blocks_at_every_place(tmp_path):
    for options in READ[:2]:
        for size in SIZES:
            path = write(tmp_path / "file", options, [size, 1_000, 70_000])
            assert records(path) == ArrayRecordReader(path).read_all()


@pytest.mark.parametrize("options", REFUSED)
def test_other_chunks_are_refused_with_the_command_that_copies_them(tmp_path, options):
    path = write(tmp_path / "file", options, [300] * 7)
    with pytest.raises(DataError, match=f"--copy {tmp_path} DIR"):
        records(path)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert len(records(write(tmp_path / "plain", READ[1], [300]))) == 1
    with pytest.raises(ConfigError, match="zstandard"):
        records(write(tmp_path / "file", READ[0], [300]))


def test_damage_gives_no_other_number_of_bytes_and_no_other_error(tmp_path):
    sizes = [400, 80_000, 30]
    path = tmp_path / "file"
    write(path, READ[0], sizes, compressible=True)
    intact = bytearray(path.read_bytes())
    rng = np.random.default_rng(1)
    used = np.flatnonzero(np.frombuffer(bytes(intact), np.uint8))
    last = used[used > len(intact) - 2 * BLOCK][-400:]  # the index and the end of the chunks
    found = set()
    for at in [*rng.choice(used, 200), *last]:
        changed = intact.copy()
        changed[at] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        try:
            assert list(map(len, records(str(path)))) == sizes
            found.add("read")
        except (ValueError, DataError) as error:
            found.add(type(error))
    assert found == {"read", ValueError, DataError}
    for length in (0, 10, BLOCK, len(intact) - 1, len(intact) - BLOCK, len(intact) + BLOCK):
        path.write_bytes((intact + bytes(BLOCK))[:length])
        with pytest.raises(DataError, match=str(path)):
            records(str(path))
