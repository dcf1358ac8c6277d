"""Tars that somebody else made: nothing of them lands anywhere but in the set, and nothing runs."""

import io
import os
import struct
import tarfile

import numpy as np
import pytest

from largebatch.data.prepare import members, names, tars
from largebatch.data.prepare.run import Options, prepare
from largebatch.errors import DataError
from tests.data.prepare import fakes

GOOD = "ILSVRC2012_val_00000001.JPEG"
OTHER = "ILSVRC2012_val_00000002.JPEG"
BLOCK = tarfile.BLOCKSIZE


def member(name, data=b"", *, kind=tarfile.REGTYPE, size=None, link="", pax=None, form=None):
    """The bytes of a member as a writer with bad intentions makes them.

    Args:
        name: Whatever it likes.
        data: What follows the header.
        kind: Its type.
        size: What the header says of it; None is the truth.
        link: What it links to.
        pax: Extended headers.
        form: Of tarfile; None is PAX.
    """
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.pax_headers = kind, link, pax or {}
    info.size = len(data) if size is None else size
    header = info.tobuf(tarfile.PAX_FORMAT if form is None else form)
    return header + data + b"\0" * (-len(data) % BLOCK)


def raw(name, kind, size):
    """A header with any number as its size: base 256, in which numbers may be negative."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (b"\xff" if size < 0 else b"\x80") + (size % 256**11).to_bytes(11, "big")
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % sum(block)
    return bytes(block)


def extended(text, size=None):
    """A PAX header by the letter."""
    return raw("x", tarfile.XHDTYPE, len(text) if size is None else size) + text.ljust(
        -(-len(text) // BLOCK) * BLOCK, b"\0"
    )


def record(key, value):
    """A record of a PAX header, whose length counts itself."""
    text = f" {key}={value}\n".encode()
    length = next(n for n in range(len(text), len(text) + 9) if n == len(text) + len(str(n)))
    return str(length).encode() + text


END = bytes(20 * BLOCK)
PHOTO = fakes.photo(1)
OLD = tarfile.GNU_FORMAT
# What a tar holds beside a good member, and what is said of it.
TARS = {
    "traversal": (member("../../escaped.JPEG", PHOTO), r"unexpected name '\.\./\.\./escaped"),
    "absolute": (member("/tmp/escaped.JPEG", PHOTO), "unexpected name '/tmp/escaped.JPEG'"),
    "backslashes": (member("..\\escaped.JPEG", PHOTO), "unexpected name"),
    "another name": (member("README", b"x"), "unexpected name 'README'"),
    "two lines": (member(f"{OTHER}\nescaped", PHOTO), r"unexpected name .*\\nescaped"),
    "no text": (member("\udcff.JPEG", PHOTO), r"unexpected name '\\udcff.JPEG'"),
    "folder": (member(OTHER, kind=tarfile.DIRTYPE), "is no plain file"),
    "link": (member(OTHER, kind=tarfile.SYMTYPE, link="/etc/passwd"), "is no plain file"),
    "hard link": (member(OTHER, kind=tarfile.LNKTYPE, link=GOOD), "is no plain file"),
    "pipe": (member(OTHER, kind=tarfile.FIFOTYPE), "is no plain file"),
    "character device": (member(OTHER, kind=tarfile.CHRTYPE), "is no plain file"),
    "block device": (member(OTHER, kind=tarfile.BLKTYPE), "is no plain file"),
    "contiguous": (member(OTHER, PHOTO, kind=tarfile.CONTTYPE), "is no plain file"),
    "unknown kind": (member(OTHER, PHOTO, kind=b"Z"), "is no plain file"),
    "twice": (member(GOOD, PHOTO), f"{GOOD} occurs 2 times"),
    "empty": (member(OTHER), f"{OTHER} is empty"),
    "sparse": (raw(OTHER, tarfile.GNUTYPE_SPARSE, 0), "is no plain file"),
    "sparse by PAX 0.1": (
        member(OTHER, b"x", pax={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1"}),
        r"is no plain file \(sparse\)",
    ),
    "sparse by PAX 1.0": (
        extended(record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0"))
        + member(OTHER, b"1\n0\n9\n", form=OLD),
        r"is no plain file \(sparse\)",
    ),
    "sparse without an end": (
        extended(record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0"))
        + member(OTHER, b"9999999\n" + b"1\n" * 250, form=OLD),
        "no complete tar|ends within|no plain file",
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
        "ends within|occurs|is empty|no complete tar|damaged",
    ),
    "another name by PAX": (
        extended(record("path", "../../escaped")) + member(OTHER, PHOTO, form=OLD),
        r"unexpected name '\.\./\.\./escaped'",
    ),
    "another name for all that follow": (
        raw("g", tarfile.XGLTYPE, len(record("path", "../escaped")))
        + record("path", "../escaped").ljust(BLOCK, b"\0")
        + member(OTHER, PHOTO),
        r"unexpected name '\.\./escaped'|is no plain file",
    ),
    "name of a million characters": (
        raw("L", tarfile.GNUTYPE_LONGNAME, 1 << 20) + b"a" * (1 << 20) + member(OTHER, PHOTO),
        r"no complete tar \(a header of 1,048,576 bytes\)",
    ),
    "name of ten thousand characters": (
        member("a" * 10_000, PHOTO),
        "unexpected member with a name of 10,000 characters, 'aaaaaaaaaaaaaaaaaaaa'…",
    ),
    "header of a hundred gigabytes": (
        raw("x", tarfile.XHDTYPE, 10**11) + member(OTHER, PHOTO),
        "no complete tar .a header of 100,000,000,000 bytes",
    ),
    "header of a negative length": (
        raw("x", tarfile.XHDTYPE, -(1 << 20)) + member(OTHER, PHOTO),
        "no complete tar .a header of -1,048,576 bytes",
    ),
    "headers of headers": (
        extended(record("comment", "x")) * 2000 + member(OTHER, PHOTO),
        "no complete tar .maximum recursion depth",
    ),
    "another tar": (member("more.tar", fakes.tar({OTHER: PHOTO})), "unexpected name 'more.tar'"),
    "huge picture": (
        member(
            OTHER,
            PHOTO.replace(
                b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 40, 56),
                b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 60_000, 60_000),
            ),
        ),
        f"1 corrupt images: {OTHER} in .*60000×60000 pixels",
    ),
    "no picture": (member(OTHER, b"#!/bin/sh\ntouch escaped\n"), f"1 corrupt images: {OTHER} in "),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where a test works: with what could be overwritten, and as the current directory."""
    (tmp_path / "tars").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "valuable").write_text("as it was")
    monkeypatch.chdir(tmp_path / "a" / "b")
    return tmp_path


def refused(place, message):
    """Prepares; checks that one line says so, and that the disk is as before but for the work."""
    before = fakes.contents(place)
    with pytest.raises(DataError, match=message) as caught:
        prepare(Options(out=place / "out", tars=place / "tars", partial=True), lambda line: None)
    said = str(caught.value)
    assert "\n" not in said
    assert said.isprintable()
    assert len(said) < 600
    after = fakes.contents(place)
    assert {path: data for path, data in after.items() if path in before} == before
    new = after.keys() - before.keys()
    assert all(path.startswith("out/imagenet2012/5.1.0/.prepare/") for path in new)
    assert not [path for path in place.rglob("*") if path.is_symlink() or path.is_fifo()]
    assert not os.path.exists("/tmp/escaped.JPEG")


@pytest.mark.parametrize("case", TARS)
@pytest.mark.parametrize("first", [True, False])
def test_a_tar_is_what_was_expected_or_refused(place, case, first):
    odd, message = TARS[case]
    good = member(GOOD, PHOTO)
    path = place / "tars" / names.TARS["validation"]
    path.write_bytes((odd + good if first else good + odd) + END)
    refused(place, message)


def test_a_good_name_may_come_by_a_header_of_its_own(place):
    """As tars that were written with exact times have it; what the plain header says is nothing."""
    path = place / "tars" / names.TARS["validation"]
    odd = extended(record("path", OTHER)) + member("../escaped", PHOTO, form=OLD)
    path.write_bytes(member(GOOD, PHOTO) + odd + END)
    before = fakes.contents(place)
    prepare(Options(out=place / "out", tars=place / "tars", partial=True), lambda line: None)
    new = fakes.contents(place).keys() - before.keys()
    assert all(name.startswith("out/imagenet2012/5.1.0/") for name in new)
    assert not (place / "escaped").exists()


INNER = "n01440764_1.JPEG"
CLASS_TARS = {
    "traversal": ({"n01440764.tar": fakes.tar({"../n01440764_1.JPEG": PHOTO})}, "unexpected name"),
    "a tar within": ({"n01440764.tar": fakes.tar({"n01440764.tar": PHOTO})}, "unexpected name"),
    "link": (
        {"n01440764.tar": member(INNER, kind=tarfile.SYMTYPE, link="/etc/passwd") + END},
        "is no plain file",
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
    "no tar": ({"n01440764.tar": b"MZ" * 4000}, "damaged or ends early"),
    "compressed": ({"n01440764.tar": b"\x1f\x8b\x08" + bytes(4000)}, "damaged or ends early"),
    "outside": ({"../n01440764.tar": fakes.tar({INNER: PHOTO})}, "unexpected member"),
}


@pytest.mark.parametrize("case", CLASS_TARS)
def test_a_tar_of_a_class_is_what_was_expected_or_refused(place, case):
    outer, message = CLASS_TARS[case]
    (place / "tars" / names.TARS["train"]).write_bytes(fakes.tar(outer))
    refused(place, message)


def test_a_file_of_holes_is_not_read_into_memory(place, monkeypatch):
    """A header may promise what a sparse file then holds."""
    monkeypatch.setattr(members, "_LARGEST", 1 << 20)
    path = place / "tars" / names.TARS["validation"]
    with path.open("wb") as stream:
        stream.write(member(OTHER, size=1 << 30))
        stream.seek(1 << 30, os.SEEK_CUR)
        stream.write(END)
    monkeypatch.setattr(fakes, "contents", lambda folder: {})  # which would read it
    refused(place, r"2\.JPEG has 1,073,741,824 bytes, no picture of ImageNet; get it again")


def test_a_pipe_in_the_place_of_a_tar_is_refused(place):
    os.mkfifo(place / "tars" / names.TARS["train"])
    with pytest.raises(DataError, match=r"img_train\.tar is no file; put one there"):
        prepare(Options(out=place / "out", tars=place / "tars", partial=True), lambda line: None)
    os.mkdir(place / "folders")
    (place / "folders" / "train").write_text("")
    with pytest.raises(DataError, match=r"folders/train is no folder; put one there"):
        prepare(
            Options(out=place / "out", folders=place / "folders", partial=True), lambda line: None
        )


class Payload:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


def pickled(trace):
    """An array with a payload, as a .npy file."""
    stream = io.BytesIO()
    np.save(stream, np.array([Payload(trace)], object), allow_pickle=True)
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_payload_would_run(tmp_path):
    """So that the tests which say that it did not can fail."""
    np.load(io.BytesIO(pickled(tmp_path / "trace")), allow_pickle=True)
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("spoil", ["identity", "names", "everything", "cut off", "no archive"])
def test_a_spoilt_cache_of_the_index_is_made_anew_and_nothing_of_it_runs(tmp_path, spoil):
    fakes.write_tars(tmp_path)
    path, cache = tmp_path / names.TARS["validation"], tmp_path / "cache.npz"

    def index():
        return tars.index(path, "validation", cache, processes=1, report=lambda done, total: None)

    found = index().rows()
    with np.load(cache) as kept:
        columns = dict(kept)
    payload = np.array([Payload(tmp_path / "trace")], object)
    if spoil == "everything":
        cache.write_bytes(pickled(tmp_path / "trace"))
    elif spoil == "cut off":
        cache.write_bytes(cache.read_bytes()[:-100])
    elif spoil == "no archive":
        np.save(cache.with_suffix(".npy"), columns["identity"])
        cache.with_suffix(".npy").rename(cache)
    else:
        np.savez(cache, allow_pickle=True, **columns | {spoil: payload})
    assert index().rows() == found
    assert not (tmp_path / "trace").exists()
    with np.load(cache, allow_pickle=False) as again:
        assert again["names"].tolist() == columns["names"].tolist()
