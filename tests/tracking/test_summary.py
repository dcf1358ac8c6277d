"""Summary and JSON files: valid, and replaced whole or not at all."""

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from largebatch.tracking import Summary, write_json

DONE = Summary(
    status="complete",
    top1=0.7508,
    top5=0.92,
    loss=1.1,
    steps=1408,
    samples=115_343_360,
    wall_s=74.7,
    compile_s=12.0,
    images_per_s=1.73e6,
)


def test_summary_round_trip(tmp_path):
    path = DONE.write(tmp_path / "run")
    assert path == tmp_path / "run/summary.json"
    assert json.loads(path.read_text()) == asdict(DONE)
    assert os.listdir(path.parent) == ["summary.json"]


def test_diverged_summary_is_valid_json(tmp_path):
    path = replace(DONE, status="failed", loss=math.nan, top1=None, images_per_s=math.inf).write(
        tmp_path
    )
    assert "NaN" not in path.read_text()
    assert "Infinity" not in path.read_text()
    read = json.loads(path.read_text())
    assert (read["loss"], read["top1"], read["images_per_s"]) == (None, None, None)
    assert read["status"] == "failed"


def test_unknown_status_is_refused():
    with pytest.raises(ValueError, match="'done'"):
        replace(DONE, status="done")


def test_write_json_converts_what_a_config_holds(tmp_path):
    path = tmp_path / "config.json"
    write_json(
        path,
        {
            "seed": np.int32(1),
            "spans": (1, 2),
            "workdir": Path("a/b"),
            "nested": {"rate": np.float64("inf"), "on": True, "none": None},
        },
    )
    assert json.loads(path.read_text()) == {
        "seed": 1,
        "spans": [1, 2],
        "workdir": "a/b",
        "nested": {"rate": None, "on": True, "none": None},
    }
    assert path.read_text().endswith("}\n")


def test_a_value_that_json_cannot_hold_leaves_the_old_file(tmp_path):
    path = tmp_path / "config.json"
    write_json(path, {"a": 1})
    for bad in ({"a": {1, 2}}, {"a": object()}, {1: "a"}):
        with pytest.raises(TypeError):
            write_json(path, bad)
    assert json.loads(path.read_text()) == {"a": 1}


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


def test_reaches_the_disk_before_it_takes_the_name(tmp_path, monkeypatch):
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


def test_colleagues_can_read_the_file(tmp_path):
    before = os.umask(0o022)
    try:
        write_json(tmp_path / "summary.json", {})
    finally:
        os.umask(before)
    assert (tmp_path / "summary.json").stat().st_mode & 0o777 == 0o644
