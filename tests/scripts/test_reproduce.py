"""The reproduction script: two seeds from end to end, the record, and what is refused before."""

import contextlib
import functools
import json
import os
import re
import statistics
from pathlib import Path

import jax
import pytest
import reproduce

from largebatch.config import Config, options
from largebatch.config.sections.model import RESNET_OPTIONS
from largebatch.parallel.xla_options import options_for
from largebatch.tools.reproduce import reproduction
from largebatch.tools.reproduce.record import olympic_mean
from largebatch.tracking.mlperf import complaints, read_log
from tests.training import worlds

CONFIGS = Path(__file__).parents[2] / "configs"
# The recipe's 90 epochs of 16 steps become one, with two evaluations.
SHORT = (
    "--config.run.scale_length=0.01",
    "--config.run.evaluate_every=8 steps",
    "--config.run.seed=3",
    f"--config.model.name={worlds.SMALL['name']}",
    *(f"--config.{k}={value}" for k, value, _ in options(Config()) if k in RESNET_OPTIONS),
)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Two seeds of the record's recipe at laptop scale, in a directory of their own."""
    before, directory = Path.cwd(), tmp_path_factory.mktemp("reproduce")
    os.chdir(directory)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # 23 workers are not shared evenly by the eight devices of the tests.
            one = functools.partial(reproduction.reproduce, devices=jax.devices()[:1])
            patch.setattr(reproduction, "reproduce", one)
            given = ["fujitsu2019_81920", "--runs=2", "--scale=laptop", "--cluster=dgx-h100"]
            with (directory / "said.txt").open("w") as said, contextlib.redirect_stdout(said):
                assert reproduce.main([*given, *SHORT]) == 0
    finally:
        os.chdir(before)
    return directory


@pytest.fixture(scope="module")
def record(out):
    (folder,) = (out / "records").iterdir()
    return folder


@pytest.fixture(scope="module")
def kept(record):
    return json.loads((record / "record.json").read_text())


def test_the_folder(out, record):
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_fujitsu2019_81920-laptop_cpu", record.name)
    kinds = ("result_{}.txt", "config_{}.json", "metrics_{}.jsonl", "layers_{}.jsonl")
    files = {kind.format(seed) for kind in kinds for seed in (3, 4)}
    assert {path.name for path in record.iterdir()} == {"README.md", "record.json", *files}
    for seed in (3, 4):
        assert (out / "runs" / record.name / f"seed_{seed}" / "checkpoints").is_dir()
        config = json.loads((record / f"config_{seed}.json").read_text())
        assert config["config"]["run"]["seed"] == seed
    for path in record.iterdir():
        assert str(out) not in path.read_text(), path


def test_the_seeds(record, kept):
    assert [seed["seed"] for seed in kept["seeds"]] == [3, 4]
    for seed in kept["seeds"]:
        log = record / f"result_{seed['seed']}.txt"
        assert not complaints(log)
        assert (seed["accepted"], seed["status"]) == (True, "complete")
        assert seed["reached"] is None  # there is no target
        events = read_log(log)
        times = {event["key"]: event["time_ms"] for event in events}
        assert seed["clock_s"] == (times["run_stop"] - times["run_start"]) / 1000
        assert seed["initialisation_s"] == (times["init_stop"] - times["init_start"]) / 1000
        assert seed["compile_s"] < seed["initialisation_s"]
        (last,) = [e for e in events if e["key"] == "eval_accuracy"][-1:]
        assert seed["top1"] == last["value"]
        assert seed["epochs"] == last["metadata"]["epoch_num"]
    first, second = kept["seeds"]
    assert first["loss"] != second["loss"]


def test_the_figures(kept):
    top1 = [seed["top1"] for seed in kept["seeds"]]
    assert kept["top1"]["mean"] == pytest.approx(statistics.fmean(top1))
    # t of one degree of freedom at 97.5 % is 12.706 (tables).
    half = 12.706 * abs(top1[0] - top1[1]) / 2
    assert kept["top1"]["high"] - kept["top1"]["mean"] == pytest.approx(half, rel=1e-4)
    assert kept["clock_s"]["mean"] == olympic_mean([seed["clock_s"] for seed in kept["seeds"]])
    assert kept["xla_options"] == options_for("cpu", "bucket")


def test_another_task_is_not_set_beside_the_published_run(out, record, kept):
    assert kept["comparable"] is False
    assert any(text.startswith("run.scale_to=laptop") for text in kept["unlike_published"])
    assert kept["published"]["seconds"] == 74.7  # what was shrunk
    assert kept["prediction"] is None
    page = (record / "README.md").read_text()
    # The disk of this machine may have as many GiB as the published run had seconds.
    said = re.sub(r"[\d.,]+ GiB free", "", (out / "said.txt").read_text())
    for text in (page, said):
        assert not any(figure in text for figure in ("74.7", "72.7", "75.08"))
    assert kept["prediction_here"] is None  # the cluster that was named has other devices


def test_a_seed_that_diverges_is_in_the_record(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    one = functools.partial(reproduction.reproduce, devices=jax.devices()[:1])
    monkeypatch.setattr(reproduction, "reproduce", one)
    command = ["fujitsu2019_81920", "--runs=1", "--scale=laptop", *SHORT]
    # Every seed failed, so the command fails too, after it has written the record.
    assert reproduce.main([*command, "--config.schedule.peak=1e30"]) == 2
    assert "schedule.peak=1e+30" in capsys.readouterr().err
    (folder,) = (tmp_path / "records").iterdir()
    kept = json.loads((folder / "record.json").read_text())
    (seed,) = kept["seeds"]
    assert (seed["status"], seed["seed"], seed["epochs"]) == ("failed", 3, None)
    assert kept["clock_s"]["mean"] is None
    assert read_log(folder / "result_3.txt")[-1]["metadata"]["status"] == "aborted"
    assert "did not finish" in (folder / "README.md").read_text()
