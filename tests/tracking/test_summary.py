"""The summary of a run as a file."""

import json
import math
import os
from dataclasses import asdict, replace

import pytest

from largebatch.tracking import Summary

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
