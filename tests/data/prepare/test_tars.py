import tarfile

import pytest

from largebatch.data.prepare import names, tars
from largebatch.errors import DataError
from tests.data.prepare import fakes

NAMES = {
    "train": ("n01440764_1.JPEG", "n01440764_2.JPEG"),
    "validation": ("ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000002.JPEG"),
}


def index(path, split, cache):
    return tars.index(path, split, cache, processes=1, report=lambda done, total: None)


def written(folder, split, tar):
    """A tar of a split; of training images, the tar of class n01440764 within."""
    path = folder / names.TARS[split]
    path.write_bytes(tar if split == "validation" else fakes.tar({"n01440764.tar": tar}))
    return path


@pytest.mark.parametrize("split", names.SPLITS)
def test_what_the_index_points_at_is_what_the_tar_holds(tmp_path, split):
    fakes.write_tars(tmp_path)
    path = tmp_path / names.TARS[split]
    expected = fakes.train() if split == "train" else fakes.validation()
    found = index(path, split, tmp_path / "cache.npz")
    tar = tars.Tar(path)
    tar.expect(found.rows())
    assert {row[0]: tar.read(row) for row in found.rows()} == expected
    if split == "train":
        assert [row[1] for row in found.rows()] == [fakes.label(row[0]) for row in found.rows()]


@pytest.mark.parametrize("split", names.SPLITS)
@pytest.mark.parametrize(
    "member",
    [
        "README",
        "../{}",
        "/tmp/{}",
        "./{}",
        "folder/{}",
        "n02105855_1.JPEG",
        "ILSVRC2012_val_1.JPEG",
    ],
)
def test_a_foreign_name_stops_and_is_named(tmp_path, split, member):
    first, second = NAMES[split]
    name = member.format(second)
    path = written(tmp_path, split, fakes.tar({first: b"x", name: b"y"}))
    with pytest.raises(DataError, match=f"{names.TARS[split]}.*{name}"):
        index(path, split, tmp_path / "cache.npz")


@pytest.mark.parametrize("split", names.SPLITS)
@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE],
)
def test_a_member_that_is_no_plain_file_stops_and_is_named(tmp_path, split, kind):
    first, second = NAMES[split]
    kinds = {second.removesuffix(".JPEG"): kind}
    path = written(tmp_path, split, fakes.tar({first: b"x", second: b""}, **kinds))
    with pytest.raises(DataError, match=f"'{second}' is no plain file"):
        index(path, split, tmp_path / "cache.npz")


def test_class_tars_are_checked_too(tmp_path):
    path = tmp_path / names.TARS["train"]
    inner = fakes.tar({"n01440764_1.JPEG": b"x"})
    for outer, message in (
        ({"n01440764.tar": inner, "notes.txt": b""}, "unexpected member 'notes.txt'"),
        ({"../n01440764.tar": inner}, "unexpected member '../n01440764.tar'"),
        ({"n00000001.tar": inner}, "none of the 1,000 classes"),
        ([("n01440764.tar", inner)] * 2, "n01440764.tar occurs twice"),
        ({"n01443537.tar": inner}, "n01440764_1.JPEG is of class n01440764, not n01443537"),
    ):
        path.write_bytes(fakes.tar(outer))
        with pytest.raises(DataError, match=message):
            index(path, "train", tmp_path / "cache.npz")
    path.write_bytes(fakes.tar({"n01440764.tar": b""}, n01440764=tarfile.SYMTYPE))
    with pytest.raises(DataError, match=r"'n01440764.tar' is no plain file"):
        index(path, "train", tmp_path / "cache.npz")


@pytest.mark.parametrize("split", names.SPLITS)
def test_a_tar_that_ends_early_is_refused_wherever_it_ends(tmp_path, split):
    fakes.write_tars(tmp_path)
    path = tmp_path / names.TARS[split]
    whole = path.read_bytes()
    # Without the last of the zeros with which a tar is filled it would still be a whole one.
    end = len(whole.rstrip(b"\0"))
    for length in (0, 100, 512, 700, end // 3 // 512 * 512, end // 2, end - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=f"{path.name}.*get the tar again"):
            index(path, split, tmp_path / "cache.npz")


@pytest.mark.parametrize("split", names.SPLITS)
def test_a_damaged_header_does_not_hide_the_rest(tmp_path, split):
    fakes.write_tars(tmp_path)
    path = tmp_path / names.TARS[split]
    whole = path.read_bytes()
    last = list(fakes.train() if split == "train" else fakes.validation())[-1]
    # The member's header, and the extended one that stands before it.
    for header in (last.encode(), b"././@PaxHeader"):
        data = bytearray(whole)
        data[whole.rindex(header) + 3] ^= 1
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"no complete tar|damaged or ends early at byte"):
            index(path, split, tmp_path / "cache.npz")


def test_a_tar_is_indexed_once_and_again_when_it_changes(tmp_path, monkeypatch):
    fakes.write_tars(tmp_path)
    path, cache = tmp_path / names.TARS["train"], tmp_path / "cache.npz"
    first = index(path, "train", cache)
    with monkeypatch.context() as patch:
        patch.setattr(tars, "_members", None)
        again = index(path, "train", cache)
    assert again.rows() == first.rows()
    assert again.names.dtype == first.names.dtype
    fakes.write_tars(tmp_path, dict(list(fakes.train().items())[:5]))
    assert len(index(path, "train", cache)) == 5


def test_a_tar_that_shrinks_is_noticed_when_it_is_read(tmp_path):
    path = fakes.write_tars(tmp_path) / names.TARS["validation"]
    row = index(path, "validation", tmp_path / "cache.npz").rows()[-1]
    path.write_bytes(path.read_bytes()[: row[2] + 5])
    with pytest.raises(DataError, match=f"ends within {row[0]}"):
        tars.Tar(path).read(row)
