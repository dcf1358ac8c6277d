"""Input archives: the index, and everything in them that is not an image of the expected name."""

import os
import struct
import tarfile

import pytest

from largebatch.data.prepare import archives, names
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
# A member beside a good one, and a part of the message.
TARS = {
    "traversal": (member("../../escaped.JPEG", PHOTO), r"unexpected name '\.\./\.\./escaped"),
    "absolute": (member("/tmp/escaped.JPEG", PHOTO), "unexpected name '/tmp/escaped.JPEG'"),
    "backslashes": (member("..\\escaped.JPEG", PHOTO), "unexpected name"),
    "another name": (member("README", b"x"), "unexpected name 'README'"),
    "two lines": (member(f"{OTHER}\nescaped", PHOTO), r"unexpected name .*\\nescaped"),
    "no text": (member("\udcff.JPEG", PHOTO), r"unexpected name '\\udcff.JPEG'"),
    "folder": (member(OTHER, kind=tarfile.DIRTYPE), "is not a plain file"),
    "link": (member(OTHER, kind=tarfile.SYMTYPE, link="/etc/passwd"), "is not a plain file"),
    "hard link": (member(OTHER, kind=tarfile.LNKTYPE, link=GOOD), "is not a plain file"),
    "pipe": (member(OTHER, kind=tarfile.FIFOTYPE), "is not a plain file"),
    "character device": (member(OTHER, kind=tarfile.CHRTYPE), "is not a plain file"),
    "block device": (member(OTHER, kind=tarfile.BLKTYPE), "is not a plain file"),
    "contiguous": (member(OTHER, PHOTO, kind=tarfile.CONTTYPE), "is not a plain file"),
    "unknown kind": (member(OTHER, PHOTO, kind=b"Z"), "is not a plain file"),
    "twice": (member(GOOD, PHOTO), f"{GOOD} occurs 2 times"),
    "empty": (member(OTHER), f"{OTHER} has 0 bytes"),
    "sparse": (raw(OTHER, tarfile.GNUTYPE_SPARSE, 0), "is not a plain file"),
    "sparse by PAX 0.1": (
        member(OTHER, b"x", pax={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1"}),
        r"is not a plain file \(sparse\)",
    ),
    "sparse by PAX 1.0": (
        extended(record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0"))
        + member(OTHER, b"1\n0\n9\n", form=OLD),
        r"is not a plain file \(sparse\)",
    ),
    "sparse without an end": (
        extended(record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0"))
        + member(OTHER, b"9999999\n" + b"1\n" * 250, form=OLD),
        "not a complete tar|ends within|not a plain file",
    ),
    "size beyond the end": (member(OTHER, PHOTO, size=1 << 33), f"ends within '{OTHER}'"),
    "negative size": (raw(OTHER, tarfile.REGTYPE, -BLOCK), f"ends within '{OTHER}'"),
    "negative size by PAX": (
        extended(record("size", "-1024")) + member(OTHER, PHOTO, form=OLD),
        f"ends within '{OTHER}'",
    ),
    "size by PAX beyond the end": (
        extended(record("size", str(1 << 60))) + member(OTHER, PHOTO, form=OLD),
        f"ends within '{OTHER}'",
    ),
    "size by PAX that is no number": (
        extended(record("size", "many")) + member(OTHER, PHOTO, form=OLD),
        "ends within|occurs|0 bytes|not a complete tar|damaged",
    ),
    "another name by PAX": (
        extended(record("path", "../../escaped")) + member(OTHER, PHOTO, form=OLD),
        r"unexpected name '\.\./\.\./escaped'",
    ),
    "another name for all that follow": (
        raw("g", tarfile.XGLTYPE, len(record("path", "../escaped")))
        + record("path", "../escaped").ljust(BLOCK, b"\0")
        + member(OTHER, PHOTO),
        r"unexpected name '\.\./escaped'|is not a plain file",
    ),
    "name of a million characters": (
        raw("L", tarfile.GNUTYPE_LONGNAME, 1 << 20) + b"a" * (1 << 20) + member(OTHER, PHOTO),
        r"not a complete tar \(a header of 1,048,576 bytes\)",
    ),
    "name of ten thousand characters": (
        member("a" * 10_000, PHOTO),
        "a name of 10,000 characters, 'aaaaaaaaaaaaaaaaaaaa'…",
    ),
    "header of a hundred gigabytes": (
        raw("x", tarfile.XHDTYPE, 10**11) + member(OTHER, PHOTO),
        "not a complete tar .a header of 100,000,000,000 bytes",
    ),
    "header of a negative length": (
        raw("x", tarfile.XHDTYPE, -(1 << 20)) + member(OTHER, PHOTO),
        "not a complete tar .a header of -1,048,576 bytes",
    ),
    "headers of headers": (
        extended(record("comment", "x")) * 2000 + member(OTHER, PHOTO),
        "not a complete tar .maximum recursion depth",
    ),
    "another tar": (member("more.tar", fakes.tar({OTHER: PHOTO})), "unexpected name 'more.tar'"),
    "huge image": (
        member(
            OTHER,
            PHOTO.replace(
                b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 40, 56),
                b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 60_000, 60_000),
            ),
        ),
        f"1 corrupt images: {OTHER} in .*60000×60000 pixels",
    ),
    "not an image": (
        member(OTHER, b"#!/bin/sh\ntouch escaped\n"),
        f"1 corrupt images: {OTHER} in ",
    ),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a file that could be overwritten, and the current directory below it."""
    (tmp_path / "tars").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "valuable").write_text("as it was")
    monkeypatch.chdir(tmp_path / "a" / "b")
    return tmp_path


def refused(place, message):
    """Check that `prepare` raises one printable line and changes nothing but its work folder."""
    before = fakes.contents(place)
    with pytest.raises(DataError, match=message) as caught:
        prepare(Options(out=place / "out", tars=place / "tars", partial=True), lambda line: None)
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
    odd, message = TARS[case]
    good = member(GOOD, PHOTO)
    path = place / "tars" / names.TARS["validation"]
    for content in (odd + good, good + odd):
        path.write_bytes(content + END)
        refused(place, message)


def test_a_good_name_in_an_extended_header_is_accepted(place):
    path = place / "tars" / names.TARS["validation"]
    odd = extended(record("path", OTHER)) + member("../escaped", PHOTO, form=OLD)
    path.write_bytes(member(GOOD, PHOTO) + odd + END)
    before = fakes.contents(place)
    prepare(Options(out=place / "out", tars=place / "tars", partial=True), lambda line: None)
    new = fakes.contents(place).keys() - before.keys()
    assert all(name.startswith("out/imagenet2012/5.1.0/") for name in new)
    assert not (place / "escaped").exists()


CLASS_TARS = {
    "traversal": ({"n01440764.tar": fakes.tar({f"../{INNER}": PHOTO})}, "unexpected name"),
    "a tar within": ({"n01440764.tar": fakes.tar({"n01440764.tar": PHOTO})}, "unexpected name"),
    "link": (
        {"n01440764.tar": member(INNER, kind=tarfile.SYMTYPE, link="/etc/passwd") + END},
        "is not a plain file",
    ),
    "size beyond its own tar": (
        {"n01440764.tar": member(INNER, PHOTO, size=9000) + END[: 2 * BLOCK], "n01443537.tar": END},
        f"ends within '{INNER}'",
    ),
    "of another class": (
        {"n01440764.tar": fakes.tar({"n01443537_1.JPEG": PHOTO})},
        "is of class n01443537, not n01440764",
    ),
    "twice": ({"n01440764.tar": fakes.tar([(INNER, PHOTO)] * 2)}, f"{INNER} occurs 2 times"),
    "tar twice": ([("n01440764.tar", fakes.tar({INNER: PHOTO}))] * 2, "n01440764.tar occurs twice"),
    "no tar": ({"n01440764.tar": b"MZ" * 4000}, "damaged or ends early"),
    "compressed": ({"n01440764.tar": b"\x1f\x8b\x08" + bytes(4000)}, "damaged or ends early"),
    "outside": ({"../n01440764.tar": fakes.tar({INNER: PHOTO})}, "unexpected member"),
    "text": ({"notes.txt": b""}, "unexpected member 'notes.txt'"),
    "unknown class": ({"n00000001.tar": fakes.tar({INNER: PHOTO})}, "one of the 1,000 classes"),
}


@pytest.mark.parametrize("case", CLASS_TARS)
def test_hostile_class_tars_are_refused(place, case):
    outer, message = CLASS_TARS[case]
    (place / "tars" / names.TARS["train"]).write_bytes(fakes.tar(outer))
    refused(place, message)


def test_a_file_of_holes_is_not_read_into_memory(place, monkeypatch):
    monkeypatch.setattr(archives, "_LARGEST_IMAGE", 1 << 20)
    path = place / "tars" / names.TARS["validation"]
    with path.open("wb") as stream:
        stream.write(member(OTHER, size=1 << 30))
        stream.seek(1 << 30, os.SEEK_CUR)
        stream.write(END)
    monkeypatch.setattr(fakes, "contents", lambda folder: {})  # which would read it
    refused(place, r"2\.JPEG has 1,073,741,824 bytes")


def test_a_pipe_in_the_place_of_a_tar_is_refused(place):
    os.mkfifo(place / "tars" / names.TARS["train"])
    with pytest.raises(DataError, match=r"img_train\.tar is not a file"):
        prepare(Options(out=place / "out", tars=place / "tars", partial=True), lambda line: None)


@pytest.mark.parametrize("split", names.SPLITS)
def test_the_index_points_at_the_images(tmp_path, split):
    path = fakes.write_tars(tmp_path) / names.TARS[split]
    expected = fakes.train() if split == "train" else fakes.validation()
    tar, rows = archives.index_tar(path, split, processes=1)
    found = dict(zip([row.name for row in rows], tar.read(rows), strict=True))
    assert found == expected
    if split == "train":
        assert [row.label for row in rows] == [fakes.label(row.name) for row in rows]


@pytest.mark.parametrize("split", names.SPLITS)
def test_a_tar_that_ends_early_is_refused_wherever_it_ends(tmp_path, split):
    path = fakes.write_tars(tmp_path) / names.TARS[split]
    whole = path.read_bytes()
    # The last of the zeros that fill a tar are not necessary.
    end = len(whole.rstrip(b"\0"))
    for length in (0, 100, 512, 700, end // 3 // 512 * 512, end // 2, end - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=f"{path.name}.*get the tar again"):
            archives.index_tar(path, split, processes=1)


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
        with pytest.raises(DataError, match=r"not a complete tar|damaged or ends early at byte"):
            archives.index_tar(path, split, processes=1)


def test_a_file_that_shrinks_is_noticed_when_it_is_read(tmp_path):
    path = fakes.write_tars(tmp_path) / names.TARS["validation"]
    tar, rows = archives.index_tar(path, "validation", processes=1)
    path.write_bytes(path.read_bytes()[: rows[-1].offset + 5])
    with pytest.raises(DataError, match=f"ends within {rows[-1].name}"):
        list(tar.read(rows))
    folder, rows = archives.index_folder(fakes.write_folders(tmp_path) / "val", "validation", 1)
    (tmp_path / "val" / rows[0].name).write_bytes(b"x")
    with pytest.raises(DataError, match=f"{rows[0].name} has 1 bytes"):
        list(folder.read(rows))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("train/n01440764/notes.txt", "unexpected name 'notes.txt'"),
        ("train/n01440764/n02105855_1.JPEG", "is of class n02105855, not n01440764"),
        ("train/notes/n01440764_1.JPEG", "1,000 classes of ImageNet .* got 'notes'"),
        ("train/n01440764/n01440764_99.JPEG/x", "is not a file"),
        ("val/ILSVRC2012_val_1.JPEG", "unexpected name 'ILSVRC2012_val_1.JPEG'"),
    ],
)
def test_a_folder_with_anything_else_in_it_is_refused(tmp_path, extra, message):
    folders = fakes.write_folders(tmp_path / "folders")
    (folders / extra).parent.mkdir(parents=True, exist_ok=True)
    (folders / extra).write_bytes(fakes.photo(0))
    with pytest.raises(DataError, match=message):
        prepare(Options(out=tmp_path / "out", folders=folders, partial=True), lambda line: None)


def rows(count, size=110_000, labels=1000):
    return [Row(f"n{i % labels:08d}_{i}.JPEG", i % labels, 7 * i, size) for i in range(count)]


def test_missing_empty_large_and_repeated_images_are_named(tmp_path):
    def check(rows, split="train", partial=True):
        archives.check(rows, split, tmp_path, partial=partial)

    check(rows(100))
    check(rows(50_000), "validation", partial=False)
    for wrong, message in (
        ([], "no images"),
        ([*rows(4), Row("n1_1.JPEG", 0, 0, 0)], "n1_1.JPEG has 0 bytes"),
        ([*rows(4), Row("n1_1.JPEG", 0, 0, 1 << 29)], "n1_1.JPEG has 536,870,912 bytes"),
        ([*rows(4), rows(4)[1]], "n00000001_1.JPEG occurs 2 times"),
    ):
        with pytest.raises(DataError, match=message):
            check(wrong)
    with pytest.raises(DataError, match=r"1,281,167 train images, got 100; .*--allow-partial"):
        check(rows(100), partial=False)
    uneven = [row._replace(label=1) if row.label == 0 else row for row in rows(50_000)]
    with pytest.raises(DataError, match="50 to 50 images of class n01440764, got 0;"):
        check(uneven, "validation", partial=False)
