import json

import pytest

from largebatch.data.prepare import metadata, records
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.run import Options, prepare
from largebatch.data.prepare.verify import verify
from largebatch.errors import DataError
from tests.data.prepare import fakes

STORES = [Store(), Store(shorter=16, quality=90)]


def quiet(line):
    pass


def made(tmp_path, store=STORES[0]):
    """Return `--out` of a finished dataset, the folder of its shards and the options."""
    source = fakes.write_tars(tmp_path / "tars")
    options = Options(out=tmp_path / "out", tars=source, partial=True, store=store, shards=3)
    return tmp_path / "out", prepare(options, quiet), options


def shard_files(folder):
    return sorted(path for path in folder.iterdir() if "-of-" in path.name)


@pytest.mark.parametrize("store", STORES)
def test_a_flipped_bit_is_found(tmp_path, store):
    out, folder, _ = made(tmp_path, store)
    for path in shard_files(folder):
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            data = bytearray(whole)
            data[at] ^= 1
            path.write_bytes(data)
            with pytest.raises(DataError, match=f"1 problems: {path.name}"):
                verify(out, report=quiet)
        path.write_bytes(whole)
    verify(out, report=quiet)


@pytest.mark.parametrize("store", STORES)
def test_missing_and_changed_files_are_named_and_written_again(tmp_path, store):
    out, folder, options = made(tmp_path, store)
    whole = fakes.contents(out)
    shards = shard_files(folder)
    beside = [path for path in folder.iterdir() if path not in shards]
    for path in (shards[0], shards[-1], *beside):
        if path.name == "manifest.json":
            continue
        data = path.read_bytes()
        for changed in (None, data[:-1], data[:-1] + b"x"):
            path.unlink()
            if changed:
                path.write_bytes(changed)
            with pytest.raises(DataError, match=f"1 problems: {path.name}"):
                verify(out, report=quiet)
            if path in shards and changed and len(changed) == len(data):
                path.unlink()  # as the message says
            prepare(options, quiet)
            assert fakes.contents(out) == whole


def test_a_missing_or_damaged_manifest_is_named(tmp_path):
    out, folder, _ = made(tmp_path)
    manifest = folder / "manifest.json"
    whole = manifest.read_text()
    manifest.unlink()
    for text in (None, "{", "{}", "[]", whole.replace('"shards"', '"others"')):
        if text:
            manifest.write_text(text)
        with pytest.raises(DataError, match=r"manifest\.json"):
            verify(out, report=quiet)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[::-1],
        lambda rows: [*rows[:-1], rows[0]],
        lambda rows: rows[:-1],
        lambda rows: [(n, label + 1, i) for n, label, i in rows],
        lambda rows: [(n, label, i[:-30]) for n, label, i in rows],
    ],
    ids=["reversed", "repeated", "missing", "other labels", "truncated"],
)
def test_wrong_records_are_found_even_with_the_right_checksum(tmp_path, change):
    out, folder, _ = made(tmp_path)
    path = shard_files(folder)[1]
    rows = [records.parse(record) for record in read_records(path)]
    records.write(path, (records.serialise(*row) for row in change(rows)))
    manifest = json.loads((folder / "manifest.json").read_text())
    (entry,) = (shard for shard in manifest["shards"] if path.name in shard["files"])
    entry["files"][path.name] = [path.stat().st_size, metadata.files_of([path])[path.name][1]]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=path.name):
        verify(out, report=quiet)


def read_records(path):
    from array_record.python.array_record_module import ArrayRecordReader

    return ArrayRecordReader(str(path)).read_all()
