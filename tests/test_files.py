"""Files are complete and valid, and replaced completely or not at all."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from largebatch.errors import UserError
from largebatch.files import check_parent, read_json, write_json


def test_a_value_that_json_cannot_hold_leaves_the_old_file(tmp_path):
    path = tmp_path / "config.json"
    write_json(path, {"a": np.int32(1), "at": Path("a/b"), "rate": np.float64("inf")})
    for bad in ({"a": {1, 2}}, {1: "a"}):
        with pytest.raises(TypeError):
            write_json(path, bad)
    assert json.loads(path.read_text()) == {"a": 1, "at": "a/b", "rate": None}


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch, function):
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1})

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, function, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    path, order = tmp_path / "summary.json", []
    fsync, rename = os.fsync, os.replace

    def watched_fsync(descriptor):
        # The bytes must have left Python's buffer by now, or the wrong content would be forced.
        order.append(("fsync", os.fstat(descriptor).st_size > 0))
        fsync(descriptor)

    def watched_replace(source, target):
        order.append(("replace", Path(source).parent == tmp_path))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_json(path, {"a": 1})
    assert order == [("fsync", True), ("replace", True)]


def test_other_users_can_read_the_file(tmp_path):
    before = os.umask(0o022)
    try:
        write_json(tmp_path / "summary.json", {})
    finally:
        os.umask(before)
    assert (tmp_path / "summary.json").stat().st_mode & 0o777 == 0o644


def test_check_parent_finds_what_cannot_be_written(tmp_path):
    check_parent(tmp_path / "new" / "folder" / "record.json")
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "record.json", tmp_path / "new"):
        with pytest.raises(UserError, match=r"cannot be written"):
            check_parent(path)


def test_read_json_is_an_object_or_an_error(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError):
        read_json(path)
    write_json(path, {"name": "ä", "nested": {"rate": 0.1}})
    assert read_json(path) == {"name": "ä", "nested": {"rate": 0.1}}
    damaged = (b'{"a": 1', b"", b"\0\0", b'{"a": "\xff"}', b"[" * 100_000, b"[1]", b"null", b"3")
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"object|nested|char|decode|double quotes"):
            read_json(path)
