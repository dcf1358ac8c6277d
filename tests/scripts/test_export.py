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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "--to={tmp}/x.pth"], "unknown suffix '.pth'"),
        (["{tmp}", "--to={tmp}/x.safetensors"], "holds no weights"),
        (["{run}", "--to={tmp}/taken.safetensors"], "exists; use another --to, or --force"),
        (["{run}", "--to=/proc/x.safetensors"], "cannot be written"),
    ],
)
def test_mistakes_are_a_line(arguments, message, run, tmp_path, capsys):
    (tmp_path / "taken.safetensors").write_bytes(b"")
    assert export.main([a.format(run=run, tmp=tmp_path) for a in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert [p.name for p in tmp_path.iterdir()] == ["taken.safetensors"]
