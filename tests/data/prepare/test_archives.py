"""Input archives: the index, and members that are not images of the expected name."""

import os
import tarfile

import pytest

from largebatch.data.prepare import archives, names, tar_index
from largebatch.data.prepare.archives import Row
from largebatch.data.prepare.run import Options, prepare
from largebatch.errors import DataError
from tests.data.prepare import fakes

GOOD = "ILSVRC2012_val_00000001.JPEG"
OTHER = "ILSVRC2012_val_00000002.JPEG"
INNER = "n01440764_1.JPEG"
BLOCK = tarfile.BLOCKSIZE


def member(name, data=b"", *, kind=tarfile.REGTYPE, size=None, link="", pax=None, form=None):
    """The bytes of a tar member; `size` is what its header states, None the true size."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.pax_headers = kind, link, pax or {}
    info.size = len(data) if size is None else size
    header = info.tobuf(tarfile.PAX_FORMAT if form is None else form)
    return header + data + b"\0" * (-len(data) % BLOCK)


def raw(name, kind, size):
    """A header with any size: base 256, in which numbers may be negative."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (b"\xff" if size < 0 else b"\x80") + (size % 256**11).to_bytes(11, "big")
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % sum(block)
    return bytes(block)


def extended(text, size=None):
    """A PAX header."""
    return raw("x", tarfile.XHDTYPE, len(text) if size is None else size) + text.ljust(
        -(-len(text) // BLOCK) * BLOCK, b"\0"
    )


def record(key, value):
    """A record of a PAX header; its length includes itself."""
    text = f" {key}={value}\n".encode()
    length = next(n for n in range(len(text), len(text) + 9) if n == len(text) + len(str(n)))
    return str(length).encode() + text


END = bytes(20 * BLOCK)
PHOTO = fakes.photo(1)
OLD = tarfile.GNU_FORMAT
SPARSE = record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0")
# Members that stop the preparation beside a good one.
TARS = {
    "traversal": member("../../escaped.JPEG", PHOTO),
    "absolute": member("/tmp/escaped.JPEG", PHOTO),
    "another name": member("README", b"x"),
    "two lines": member(f"{OTHER}\nescaped", PHOTO),
    "not UTF-8": member("\udcff.JPEG", PHOTO),
    "folder": member(OTHER, kind=tarfile.DIRTYPE),
    "link": member(OTHER, kind=tarfile.SYMTYPE, link="/etc/passwd"),
    "pipe": member(OTHER, kind=tarfile.FIFOTYPE),
    "unknown kind": member(OTHER, PHOTO, kind=b"Z"),
    "twice": member(GOOD, PHOTO),
    "empty": member(OTHER),
    "sparse": raw(OTHER, tarfile.GNUTYPE_SPARSE, 0),
    "sparse by PAX 0.1": member(OTHER, b"x", pax={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1"}),
    "sparse without an end": extended(SPARSE)
    + member(OTHER, b"9999999\n" + b"1\n" * 250, form=OLD),
    "size beyond the end": member(OTHER, PHOTO, size=1 << 33),
    "negative size": raw(OTHER, tarfile.REGTYPE, -BLOCK),
    "size by PAX that is no number": extended(record("size", "many"))
    + member(OTHER, PHOTO, form=OLD),
    "another name by PAX": extended(record("path", "../../escaped"))
    + member(OTHER, PHOTO, form=OLD),
    "name of a million characters": raw("L", tarfile.GNUTYPE_LONGNAME, 1 << 20)
    + b"a" * (1 << 20)
    + member(OTHER, PHOTO),
    "header of a hundred gigabytes": raw("x", tarfile.XHDTYPE, 10**11) + member(OTHER, PHOTO),
    "headers of headers": extended(record("comment", "x")) * 2000 + member(OTHER, PHOTO),
    "not an image": member(OTHER, b"#!/bin/sh\ntouch escaped\n"),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a file that could be overwritten, and the current directory below it."""
    (tmp_path / "tars").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "valuable").write_text("as it was")
    monkeypatch.chdir(tmp_path / "a" / "b")
    return tmp_path


def run(place):
    prepare(Options(out=place / "out", tars=place / "tars", partial=True), lambda line: None)


def refused(place, path):
    """Check that `prepare` names the tar in one printable line and changes nothing else."""
    before = fakes.contents(place)
    with pytest.raises(DataError, match=path.name) as caught:
        run(place)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    after = fakes.contents(place)
    assert {path: data for path, data in after.items() if path in before} == before
    new = after.keys() - before.keys()
    assert all(path.startswith("out/imagenet2012/5.1.0/.prepare/") for path in new)
    assert not [path for path in place.rglob("*") if path.is_symlink() or path.is_fifo()]
    assert not os.path.exists("/tmp/escaped.JPEG")


@pytest.mark.parametrize("case", TARS)
def test_hostile_members_are_refused(place, case):
    good = member(GOOD, PHOTO)
    path = place / "tars" / names.TARS["validation"]
    for content in (TARS[case] + good, good + TARS[case]):
        path.write_bytes(content + END)
        refused(place, path)


CLASS_TARS = {
    "traversal": {"n01440764.tar": fakes.tar({f"../{INNER}": PHOTO})},
    "link": {"n01440764.tar": member(INNER, kind=tarfile.SYMTYPE, link="/etc/passwd") + END},
    "size beyond its own tar": {
        "n01440764.tar": member(INNER, PHOTO, size=9000) + END[: 2 * BLOCK],
        "n01443537.tar": END,
    },
    "of another class": {"n01440764.tar": fakes.tar({"n01443537_1.JPEG": PHOTO})},
    "tar twice": [("n01440764.tar", fakes.tar({INNER: PHOTO}))] * 2,
    "unknown class": {"n00000001.tar": fakes.tar({INNER: PHOTO})},
}


@pytest.mark.parametrize("case", CLASS_TARS)
def test_hostile_class_tars_are_refused(place, case):
    path = place / "tars" / names.TARS["train"]
    path.write_bytes(fakes.tar(CLASS_TARS[case]))
    refused(place, path)


def test_a_file_of_holes_is_not_read_into_memory(place, monkeypatch):
    monkeypatch.setattr(archives, "_LARGEST_IMAGE", 1 << 20)
    with (place / "tars" / names.TARS["validation"]).open("wb") as stream:
        stream.write(member(OTHER, size=1 << 30))
        stream.seek(1 << 30, os.SEEK_CUR)
        stream.write(END)
    with pytest.raises(DataError, match="1,073,741,824"):
        run(place)


def test_a_pipe_in_the_place_of_a_tar_is_refused(place):
    os.mkfifo(place / "tars" / names.TARS["train"])
    with pytest.raises(DataError, match=r"img_train\.tar"):
        run(place)


@pytest.mark.parametrize("split", names.SPLITS)
def test_the_index_points_at_the_images(tmp_path, split):
    path = fakes.write_tars(tmp_path) / names.TARS[split]
    expected = fakes.train() if split == "train" else fakes.validation()
    tar, rows = tar_index.index_tar(path, split, processes=1)
    found = dict(zip([row.name for row in rows], tar.read(rows), strict=True))
    assert found == expected
    if split == "train":
        assert [row.label for row in rows] == [fakes.label(row.name) for row in rows]


@pytest.mark.parametrize("split", names.SPLITS)
def test_a_tar_that_ends_early_is_refused(tmp_path, split):
    path = fakes.write_tars(tmp_path) / names.TARS[split]
    whole = path.read_bytes()
    # The last of the zeros that fill a tar are not necessary.
    end = len(whole.rstrip(b"\0"))
    for length in (0, 700, end // 3 // 512 * 512, end // 2, end - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=path.name):
            tar_index.index_tar(path, split, processes=1)


@pytest.mark.parametrize("split", names.SPLITS)
def test_a_damaged_header_does_not_hide_the_rest(tmp_path, split):
    path = fakes.write_tars(tmp_path) / names.TARS[split]
    whole = path.read_bytes()
    last = list(fakes.train() if split == "train" else fakes.validation())[-1]
    # The member's header, and the extended one before it.
    for header in (last.encode(), b"././@PaxHeader"):
        data = bytearray(whole)
        data[whole.rindex(header) + 3] ^= 1
        path.write_bytes(data)
        with pytest.raises(DataError, match=path.name):
            tar_index.index_tar(path, split, processes=1)


def test_a_file_that_shrinks_is_noticed_when_it_is_read(tmp_path):
    path = fakes.write_tars(tmp_path) / names.TARS["validation"]
    tar, rows = tar_index.index_tar(path, "validation", processes=1)
    path.write_bytes(path.read_bytes()[: rows[-1].offset + 5])
    with pytest.raises(DataError, match=rows[-1].name):
        list(tar.read(rows))
    folder, rows = archives.index_folder(fakes.write_folders(tmp_path) / "val", "validation", 1)
    (tmp_path / "val" / rows[0].name).write_bytes(b"x")
    with pytest.raises(DataError, match=rows[0].name):
        list(folder.read(rows))


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ("train/n01440764/notes.txt", "notes.txt"),
        ("train/n01440764/n02105855_1.JPEG", "n02105855_1.JPEG"),
        ("train/notes/n01440764_1.JPEG", "'notes'"),
        ("train/n01440764/n01440764_99.JPEG/x", "n01440764_99.JPEG"),
        ("val/ILSVRC2012_val_1.JPEG", "ILSVRC2012_val_1.JPEG"),
    ],
)
def test_a_folder_with_anything_else_in_it_is_refused(tmp_path, extra, named):
    folders = fakes.write_folders(tmp_path / "folders")
    (folders / extra).parent.mkdir(parents=True, exist_ok=True)
    (folders / extra).write_bytes(fakes.photo(0))
    with pytest.raises(DataError, match=named):
        prepare(Options(out=tmp_path / "out", folders=folders, partial=True), lambda line: None)


def test_missing_empty_and_repeated_images_are_named(tmp_path):
    def check(rows, split="train", partial=True):
        archives.check(rows, split, tmp_path, partial=partial)

    def rows(count):
        return [Row(f"n{i % 1000:08d}_{i}.JPEG", i % 1000, 7 * i, 110_000) for i in range(count)]

    check(rows(100))
    check(rows(50_000), "validation", partial=False)
    for wrong, message in (
        ([], str(tmp_path)),
        ([*rows(4), Row("n1_1.JPEG", 0, 0, 0)], "n1_1.JPEG"),
        ([*rows(4), rows(4)[1]], "n00000001_1.JPEG"),
    ):
        with pytest.raises(DataError, match=message):
            check(wrong)
    with pytest.raises(DataError, match=r"1,281,167 .*100; .*--allow-partial"):
        check(rows(100), partial=False)
    uneven = [row._replace(label=1) if row.label == 0 else row for row in rows(50_000)]
    with pytest.raises(DataError, match="n01440764, got 0"):
        check(uneven, "validation", partial=False)
