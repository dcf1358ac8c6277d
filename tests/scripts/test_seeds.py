"""``scripts/seeds.py`` as it is called, with trainings that are made up."""

import json
import subprocess

import pytest
import seeds

from largebatch.tracking.summary import Summary

RECIPE = "--config=configs/digits.py"


@pytest.fixture
def trainings(monkeypatch):
    """The commands of the trainings; seed 3 fails, seed 4 is not evaluated."""
    called = []

    def train(command, check):
        assert not check
        called.append(command[2:])
        options = dict(word.removeprefix("--").split("=", 1) for word in command[2:])
        seed, workdir = int(options["config.run.seed"]), seeds.Path(options["workdir"])
        workdir.mkdir()
        (workdir / "config.json").write_text('{"environment": {"jax": "0.10"}}')
        top1 = None if seed == 4 else 0.5 + seed / 10
        wall_s, images_per_s = 10.0 + seed, None if seed else 100.0
        made = Summary("complete", top1, 1.0, 0.2, 5, 40, wall_s, 1.0, images_per_s)
        made.write(workdir)
        return subprocess.CompletedProcess(command, 2 if seed == 3 else 0)

    monkeypatch.setattr(seeds.subprocess, "run", train)
    return called


def test_seeds_are_trained_and_reported(trainings, tmp_path, capsys):
    out = tmp_path / "records" / "digits.json"
    option = "--config.run.log_every=1 steps"
    assert seeds.main([RECIPE, "--seeds=0, 2,1", f"--json={out}", option]) == 0
    assert [words[2] for words in trainings] == [f"--config.run.seed={n}" for n in (0, 2, 1)]
    assert all(words[3:] == [option] for words in trainings)
    printed = capsys.readouterr().out
    assert "seed 0  top-1 50.00%  10.0 s  100 images/s" in printed
    assert "median top-1 60.00%, from 50.00% to 70.00%" in printed
    assert "median time 11.0 s, longest 12.0 s" in printed
    kept = json.loads(out.read_text())
    assert (kept["median_top1"], kept["median_wall_s"]) == (0.6, 11.0)
    assert [run["seed"] for run in kept["runs"]] == [0, 2, 1]
    assert kept["environment"] == {"jax": "0.10"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0,x", ["--seeds=0,x", "--seeds=0,1,2"]),
        ("", ["--seeds=", "--seeds=0,1,2"]),
        ("-1", ["--seeds=-1"]),
        ("0,3,1", ["seed 3", "exit code 2"]),
        ("4", ["seed 4", "run.evaluate_every"]),
    ],
)
def test_a_mistake_or_a_run_that_fails_is_one_line(trainings, capsys, given, words):
    assert seeds.main([RECIPE, f"--seeds={given}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line
    assert len(trainings) == {"0,3,1": 2, "4": 1}.get(given, 0)  # what follows is not begun
