"""scripts/export.py, from a run on."""

import dataclasses

import export
import pytest

from largebatch.weights import read
from tests.weights.test_runs import checkpoint, same


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    checkpoint(path, 4)
    return path


def test_a_run_becomes_a_file(run, tmp_path, capsys):
    target = tmp_path / "x.safetensors"
    assert export.main([str(run), f"--to={target}", "--verify"]) == 0
    printed = capsys.readouterr().out
    assert f"{run}/checkpoints/4.safetensors" in printed
    assert "mean 73.2516; std 90.3172" in printed
    assert "verified by reading it back" in printed
    found, weights = read(target), read(run)
    assert found.params["head"]["kernel"].tobytes() == weights.params["head"]["kernel"].tobytes()
    # A file can be exported again.
    assert export.main([str(target), f"--to={tmp_path / 'y.safetensors'}"]) == 0
    assert same(read(tmp_path / "y.safetensors"), found)


def test_the_best_checkpoint(tmp_path, capsys):
    path, made = tmp_path / "run", {}
    for step, top1 in ((4, 0.6), (8, 0.7), (12, 0.5)):

        def evaluated(about, top1=top1):
            progress = dataclasses.replace(about.progress, validation_top1=top1)
            return dataclasses.replace(about, progress=progress)

        made[step] = checkpoint(path, step, seed=step, change=evaluated)
    target = tmp_path / "x.safetensors"
    assert export.main([str(path), f"--to={target}", "--format=flax", "--best"]) == 0
    assert f"from     {path}/checkpoints/8.safetensors:" in capsys.readouterr().out
    assert same(read(target), made[8])
    assert same(read(path), made[12])
