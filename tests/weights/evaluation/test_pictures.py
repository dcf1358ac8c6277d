"""Which files are meant, and reading them."""

from pathlib import Path

import numpy as np
import pytest

from largebatch.errors import DataError
from largebatch.weights.evaluation.pictures import FileRecords, found


def test_files_and_folders(tmp_path):
    for name in ("b.PNG", "a/2.jpeg", "a/10.jpg", "c.webp", ".hidden.png", ".x/in.png", "note.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "in" / "a" / "link").symlink_to(tmp_path / "in")
    named = [tmp_path / "in" / "note.txt", Path("absent.jpg")]
    files = found([named[0], tmp_path / "in", named[1]])
    inside = [tmp_path / "in" / name for name in ("a/10.jpg", "a/2.jpeg", "b.PNG", "c.webp")]
    assert files == [named[0], *inside, named[1]]
    (tmp_path / "in" / "none").mkdir()
    with pytest.raises(DataError, match=r"none has no pictures \(suffixes: .*\.jpeg.*\.png"):
        found([tmp_path / "in" / "none"])


def test_a_file_that_cannot_be_read_is_empty_and_explained(tmp_path):
    (tmp_path / "good").write_bytes(b"bytes")
    records = FileRecords([tmp_path / "absent", tmp_path / "good", tmp_path], ("a",))
    contents, labels = records.read(np.array([1, 0, 2]))
    assert contents == [b"bytes", b"", b""]
    assert labels.tolist() == [0, 0, 0]
    assert records.failed[0] == "cannot be read: No such file or directory"
    assert set(records.failed) == {0, 2}
    assert records.where(1) == str(tmp_path / "good")
    assert (len(records), records.describe()) == (3, "3 file(s)")
    assert len(list(records.marks())) == 3
