import json

import pytest

from largebatch.data.prepare import metadata, records
from largebatch.data.prepare import verify as verification
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.run import Options, prepare
from largebatch.data.prepare.verify import verify
from largebatch.errors import DataError
from tests.data.prepare import fakes

STORES = [Store(), Store("decoded", size=16)]


def quiet(line):
    pass


def made(tmp_path, store=STORES[0]):
    """A finished set: its `--out`, and the folder of its shards."""
    source = fakes.write_tars(tmp_path / "tars")
    options = Options(out=tmp_path / "out", tars=source, partial=True, store=store, shards=3)
    return tmp_path / "out", prepare(options, quiet), options


def shard_files(folder):
    return sorted(path for path in folder.iterdir() if "-of-" in path.name)


@pytest.mark.parametrize("store", [*STORES, Store(shorter=24, quality=90)])
def test_a_set_as_it_was_written_passes(tmp_path, store):
    out, folder, _ = made(tmp_path, store)
    lines = []
    verify(out, say=lines.append)
    (line,) = lines
    assert line.startswith(f"{folder}: 40 images in 6 shards are as they were written")
    assert ("all decoded" in line) == (store.kind == "jpeg")


@pytest.mark.parametrize("store", STORES)
def test_a_flipped_bit_is_found(tmp_path, store):
    out, folder, _ = made(tmp_path, store)
    for path in shard_files(folder):
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            data = bytearray(whole)
            data[at] ^= 1
            path.write_bytes(data)
            with pytest.raises(DataError, match=f"1 problems: {path.name} has changed"):
                verify(out, say=quiet)
        path.write_bytes(whole)
    verify(out, say=quiet)


@pytest.mark.parametrize("store", STORES)
def test_missing_and_cut_files_are_named_and_written_again(tmp_path, store):
    out, folder, options = made(tmp_path, store)
    whole = fakes.contents(out)
    first, second, *_ = shard_files(folder)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"2 problems: .* is missing; .* bytes instead of"):
        verify(out, say=quiet)
    prepare(options, quiet)
    assert fakes.contents(out) == whole
    verify(out, say=quiet)


def test_a_missing_or_damaged_manifest_is_named(tmp_path):
    out, folder, _ = made(tmp_path)
    manifest = folder / "manifest.json"
    manifest.rename(folder / "aside")
    with pytest.raises(DataError, match=r"manifest.json is missing: the set is unfinished"):
        verify(out, say=quiet)
    whole = (folder / "aside").read_text()
    for text in (
        "{",
        "{}",
        "[]",
        whole.replace('"shards"', '"others"'),
        whole.replace("true", "5"),
    ):
        manifest.write_text(text)
        if text != whole:
            with pytest.raises(DataError, match=r"manifest.json cannot be read"):
                verify(out, say=quiet)


@pytest.mark.parametrize("store", STORES)
def test_files_beside_the_shards_are_checked_and_written_again(tmp_path, store):
    out, folder, options = made(tmp_path, store)
    whole = fakes.contents(out)
    beside = {path for path in folder.iterdir() if path not in shard_files(folder)}
    beside.remove(folder / "manifest.json")
    assert len(beside) == (1 if store.kind == "decoded" else 3)
    for path in beside:
        text = path.read_text()
        for change, message in (
            (path.unlink, "is missing"),
            (lambda path=path, text=text: path.write_text(text[:-1]), "bytes instead of"),
            (lambda path=path, text=text: path.write_text(text.swapcase()), "has changed"),
        ):
            change()
            with pytest.raises(DataError, match=f"1 problems: {path.name} .*{message}"):
                verify(out, say=quiet)
            prepare(options, quiet)
            assert fakes.contents(out) == whole
            verify(out, say=quiet)


@pytest.mark.parametrize("store", STORES)
def test_a_manifest_that_lists_no_metadata_is_completed(tmp_path, store):
    out, folder, options = made(tmp_path, store)
    whole = fakes.contents(out)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["metadata"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"1 problems: manifest.json does not list"):
        verify(out, say=quiet)
    prepare(options, quiet)
    assert fakes.contents(out) == whole


def test_repair_of_the_metadata_keeps_the_record_of_the_md5_check(tmp_path):
    _, folder, options = made(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"md5_of_tars_checked": True}))
    (folder / "features.json").unlink()
    prepare(options, quiet)
    assert json.loads((folder / "manifest.json").read_text())["md5_of_tars_checked"] is True


def test_jpegs_and_pixels_in_one_directory_are_both_checked(tmp_path):
    out, jpegs, _ = made(tmp_path)
    _, pixels, _ = made(tmp_path, Store("decoded", size=16))
    lines = []
    verify(out, say=lines.append)
    assert [line.partition(": ")[0] for line in lines] == [str(jpegs), str(pixels)]
    broken = [shard_files(folder)[0] for folder in (jpegs, pixels)]
    broken[1].unlink()
    with pytest.raises(DataError, match=f"1 problems: {broken[1].name} is missing"):
        verify(out, say=quiet)
    broken[0].unlink()
    with pytest.raises(
        DataError, match=f"2 problems: {broken[0].name} is missing; {broken[1].name} is missing"
    ):
        verify(out, say=quiet)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[::-1], "is not in order"),
        (lambda rows: [*rows[:-1], rows[0]], "is not in order"),
        (lambda rows: rows[:-1], "has 9 images instead of 10"),
        (lambda rows: [(n, label + 1, i) for n, label, i in rows], r"has label \d+ instead of"),
        (lambda rows: [(n, label, i[:-30]) for n, label, i in rows], "image file is truncated"),
    ],
)
def test_wrong_records_are_found_even_with_the_right_checksum(tmp_path, change, message):
    out, folder, _ = made(tmp_path)
    path = shard_files(folder)[1]
    rows = [records.parse(record) for record in read_records(path)]
    records.write(path, (records.serialise(*row) for row in change(rows)))
    manifest = json.loads((folder / "manifest.json").read_text())
    (entry,) = (shard for shard in manifest["shards"] if path.name in shard["files"])
    entry["files"][path.name] = [path.stat().st_size, metadata.files_of([path])[path.name][1]]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=message):
        verify(out, say=quiet)


def test_check_ends_decodes_nothing(tmp_path, monkeypatch):
    out, _, _ = made(tmp_path)
    checks = []
    monkeypatch.setattr(verification, "check_image", lambda data, how: checks.append(how))
    verify(out, check="ends", say=quiet)
    assert checks == ["ends"] * 40


def read_records(path):
    from array_record.python.array_record_module import ArrayRecordReader

    return ArrayRecordReader(str(path)).read_all()
