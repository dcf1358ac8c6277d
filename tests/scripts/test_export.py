"""scripts/export.py, from a run on."""

import dataclasses
import importlib.util

import export
import pytest
from safetensors.numpy import load_file

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
    begin = f"from     {run}/checkpoints/4.safetensors: resnet10, width 4, "
    assert f"{begin}10 classes (10 names)" in printed
    assert f"written  {target} ({target.stat().st_size:,} bytes)" in printed
    assert "1 × 8 × 8, (pixel − mean) / std of 0..255: mean 73.2516; std 90.3172" in printed
    assert "note     norm.epsilon=2e-05" in printed
    assert f"safetensors.torch.load_file('{target}')" in printed
    assert "verified by reading it back" in printed
    found, weights = read(target), read(run)
    assert found.params["head"]["kernel"].tobytes() == weights.params["head"]["kernel"].tobytes()
    # A file can be exported again.
    assert export.main([str(target), f"--to={tmp_path / 'y.safetensors'}"]) == 0
    assert same(read(tmp_path / "y.safetensors"), found)


def test_averaged_weights(run, tmp_path, capsys):
    path, target = tmp_path / "run", tmp_path / "x.safetensors"
    plain = checkpoint(path, 4, ema=True, schedule={"ema": "5 epochs"})
    average = read(path, ema=True)
    assert same(read(path), plain)
    assert not same(average, plain)
    assert export.main([str(path), f"--to={target}", "--format=flax", "--ema"]) == 0
    begin = f"from     {path}/checkpoints/4.safetensors, averaged weights:"
    assert begin in capsys.readouterr().out
    assert same(read(target), average)
    assert export.main([str(run), f"--to={tmp_path / 'y.safetensors'}", "--ema"]) == 2
    assert "schedule.ema" in capsys.readouterr().err


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


def test_flax_paths_are_read_back(run, tmp_path, capsys):
    target = tmp_path / "x.safetensors"
    assert export.main([str(run), f"--to={target}", "--format=flax", "--verify"]) == 0
    assert "verified by reading it back" in capsys.readouterr().out
    assert "stages/0/blocks/0/conv1/kernel" in load_file(target)
    assert same(read(target), read(run))


def test_onnx_is_verified(run, tmp_path, capsys):
    for package in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    assert export.main([str(run), f"--to={tmp_path / 'x.onnx'}", "--verify"]) == 0
    printed = capsys.readouterr().out
    assert "verified by reading it back, and in onnxruntime" in printed
    assert same(read(tmp_path / "x.onnx"), read(run))


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
