"""The benchmark's arithmetic, its processes and its record; nothing here is timed."""

import argparse
import io
import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import benchmark
import numpy as np
import pytest
from benchmarks import input, input_work, photo_set
from benchmarks.competitor import Absent, Competitor, FailedError, Race
from benchmarks.input_work import Workload
from benchmarks.measure import Result, figure, interleave, summary, table
from benchmarks.peers import flax_step, pipelines
from PIL import Image

from largebatch.config import Facts, load, resolve
from largebatch.data import SourceOptions, open_source
from largebatch.errors import ConfigError, DataError
from largebatch.tools.doctor.need import need_in_time
from tests.scripts import competitors

ROOT = Path(__file__).parents[2]
linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pins to cores: Linux")


def jpeg(width, height, seed, mode="RGB"):
    bands = len(Image.new(mode, (1, 1)).getbands())
    noise = random.Random(seed).randbytes(bands * 12)
    small = Image.frombytes(mode, (4, 3), noise)
    out = io.BytesIO()
    small.resize((width, height)).save(out, "JPEG", quality=95)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Class folders of a train and a validation split, three photographs each."""
    for split in ("train", "validation"):
        for index in range(3):
            path = tmp_path / "set" / split / f"class{index % 2}" / f"{index}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(300 + 20 * index, 280, index))
    return tmp_path / "set"


# ---- results


def test_summary_of_repeats():
    assert summary([3.0, 1.0, 2.0]) == {
        "median": 2.0,
        "min": 1.0,
        "max": 3.0,
        "spread": 1.0,
        "repeats": [3.0, 1.0, 2.0],
    }
    assert summary([1.0, 2.0, 4.0, 8.0])["median"] == 3.0
    assert summary([-3.0, -2.0, -1.0])["spread"] == 1.0
    assert summary([]) is None


def test_the_ratio_is_of_pairs():
    # Ratio of the medians: 10 / 10 = 1. Repeat by repeat ours is twice as fast.
    drifting = Result("x", "images/s", (20.0, 10.0, 2.0), (10.0, 5.0, 1.0), "peer", goal=2.0)
    assert drifting.ratios == (2.0, 2.0, 2.0)
    assert drifting.reached is True
    assert Result.from_json(drifting.as_json()) == drifting
    shuffled = Result("x", "images/s", (20.0, 10.0, 2.0), (10.0, 2.0, 20.0), "peer")
    assert shuffled.as_json()["ratio"]["median"] == 2.0


@pytest.mark.parametrize(
    ("unit", "ours", "peer", "ratio", "goal", "reached"),
    [
        ("images/s", 30.0, 10.0, 3.0, 2.0, True),
        ("images/s", 10.0, 30.0, 1 / 3, 2.0, False),
        ("ms", 10.0, 30.0, 3.0, 2.0, True),
        ("ms", 30.0, 10.0, 1 / 3, 2.0, False),
        ("images/s", 10.0, None, None, 10.0, True),
        ("images/s", 10.0, None, None, 10.5, False),
        ("ms", 10.0, None, None, 10.0, True),
        ("ms", 10.0, None, None, 9.5, False),
        ("ms", 10.0, None, None, None, None),
    ],
)
def test_above_one_is_better_and_goals_point_that_way(unit, ours, peer, ratio, goal, reached):
    peers = () if peer is None else (peer,)
    result = Result("x", unit, (ours,), peers, "p" if peers else "", goal=goal)
    assert result.ratios == (() if ratio is None else (pytest.approx(ratio, rel=1e-15),))
    assert result.reached is reached


def test_competitors_are_interleaved():
    turns = itertools.count()
    found = interleave({"a": lambda: ("a", next(turns)), "b": lambda: ("b", next(turns))}, 3)
    assert found == {"a": [("a", 0), ("a", 2), ("a", 4)], "b": [("b", 1), ("b", 3), ("b", 5)]}


def test_a_race_has_ours_then_what_each_peer_shares():
    figures = {"ours": [{"images/s": 4.0, "s": 1.0}] * 2, "p": [{"images/s": 2.0, "GiB": 3.0}] * 2}
    race = Race(figures, {"q": "no q"}, {"ours": "how"})
    assert race.results("x", {("p", "images/s"): 1.0, ("ours", "s"): 2.0}) == [
        Result("x", "images/s", (4.0, 4.0), note="how"),
        Result("x", "s", (1.0, 1.0), goal=2.0),
        Result("x vs p", "images/s", (4.0, 4.0), (2.0, 2.0), "p", goal=1.0),
        Result("x vs q", "images/s", peer_name="q", absent="no q"),
    ]


def test_the_table_shows_medians_and_marks_goals():
    assert figure([1.0, 2.0, 3.0]) == "2 ±50%"
    assert figure([1500.4]) == "1,500"
    assert figure([-0.05, 0.01, 0.05]) == "0.01 ±0.05"
    assert figure([]) == "–"
    results = [
        Result("a", "images/s", (3.0,), (1.0,), "p", goal=2.0),
        Result("b", "ms", (3.0,), goal=2.0, note="why"),
        Result("c", "ms", peer_name="p", absent="not here"),
    ]
    columns = {column.header: list(column.cells) for column in table("t", results).columns}
    assert columns["goal"] == ["≥ 2 ✓", "≤ 2 ✗", ""]
    assert columns["ratio"] == ["3", "–", "–"]
    assert columns["peer"] == ["1", "–", "absent"]


# ---- processes


def one_core(**changes):
    return Workload("synthetic", cores=(min(os.sched_getaffinity(0)),), **changes)


@linux
def test_a_competitor_is_pinned_and_stopped_between_its_repeats():
    work = one_core(batch=7)
    with Competitor(competitors.counting, work) as competitor:
        assert competitor.about == "7 images a batch"
        for calls in (1, 2):
            found = competitor.repeat()
            assert found["calls"] == calls
            assert found["cores"] == set(work.cores)
            stat = Path(f"/proc/{found['pid']}/stat")
            for _ in range(1000):  # the signal may be on its way
                if (state := stat.read_text().rpartition(")")[2].split()[0]) == "T":
                    break
                time.sleep(0.01)
            assert state == "T"
    assert not stat.exists()


@linux
@pytest.mark.parametrize(
    ("prepare", "error", "words"),
    [
        (competitors.absent, Absent, "not here"),
        (competitors.without_data, DataError, "no such data"),
        (competitors.broken, FailedError, "KeyError: 'oops'"),
        (competitors.ending, FailedError, "ended"),
    ],
)
def test_how_a_competitor_fails(prepare, error, words):
    with pytest.raises(error, match=words):
        Competitor(prepare, one_core())


@linux
def test_a_competitor_without_an_answer_is_ended():
    with Competitor(competitors.silent, one_core()) as competitor:
        competitor._limit_s = 0.1  # its start takes longer
        with pytest.raises(FailedError, match="no answer"):
            competitor.repeat()


@linux
def test_a_competitor_ends_with_its_parent_though_it_is_stopped():
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time\n"
            "from benchmarks.competitor import Competitor\n"
            "from benchmarks.input_work import Workload\n"
            "from tests.scripts.competitors import counting\n"
            f"one = Competitor(counting, Workload('synthetic', cores={one_core().cores!r}))\n"
            "print(one._process.pid, flush=True)\n"
            "time.sleep(600)\n",
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])},
        stdout=subprocess.PIPE,
        text=True,
    )
    line = "noise"
    while line.startswith("noise"):
        line = parent.stdout.readline()
    child = Path(f"/proc/{int(line)}")
    assert child.exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(1000):
        if not child.exists() or child.joinpath("stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.01)
    else:
        pytest.fail("it is still there")


@linux
def test_descendants_count_in_processor_time():
    with Competitor(competitors.with_descendants, one_core()) as competitor:
        found = competitor.repeat()
    assert found["cpu"] >= 0.56  # counted in ticks of 10 ms, user and system apart
    assert found["after"] == 0


# ---- input


def test_a_repeat_counts_complete_batches_after_the_stock(monkeypatch):
    monkeypatch.setattr(input_work.time, "perf_counter", itertools.count(step=0.5).__next__)
    monkeypatch.setattr(input_work, "_own_cpu_s", itertools.count(step=2.0).__next__)
    taken = []
    batches = (taken.append(size) or size for size in itertools.repeat(3))
    found = input_work.timed(batches, Workload("synthetic", batch=3, images=20))()
    assert sum(taken) == 6 + 21  # at least a quarter of 20 first
    assert found["images per CPU-second"] == 21 / 2.0
    long = input_work.timed(itertools.repeat(3), Workload("synthetic", images=3, seconds=2.0))()
    # Looks at the clock: at the begin of the repeat and of its take, after each of four batches
    # until 2 s have passed, at the end.
    assert long["images/s"] == 12 / 3.0


def test_bookkeeping_is_what_the_product_takes_beyond_the_raw_work():
    # Stages that are no raw work must not count.
    spent = {"order": 1000.0, "read": 60.0, "header": 5.0, "boxes": 1000.0, "decode": 195.0}
    *single, overhead = input.breakdown("1 core", [276.0, 280.0], [spent, spent])
    assert [result.name.removeprefix("1 core: ") for result in single] == list(spent)
    assert overhead.ours == pytest.approx((16 / 200, 20 / 200), rel=1e-12)
    assert overhead.reached is True


def test_a_diagnosis_marks_what_is_enough():
    need = need_in_time(1_200_000, 60, hosts=4)
    found = input.diagnosis(need, 800, 2)
    assert [(result.name, result.reached) for result in found] == [
        ("doctor: this host, this data set", False),
        ("doctor: cores per host that would do", False),
        ("doctor: hosts that would do", False),
    ]


@pytest.mark.parametrize("length", ["3 epochs", "7 steps", "5000 samples"])
@pytest.mark.parametrize("end", ["continue", "drop", "repeat"])
def test_a_recipes_samples_are_those_of_its_plan(length, end):
    overrides = [("schedule.length", length), ("data.epoch_end", end), ("schedule.warmup", "0 %")]
    config = load(ROOT / "configs" / "digits.py", overrides)
    facts = Facts(1437, 360, 10, (8, 8, 1), devices=1)
    assert input.training_samples(config, 1437) == resolve(config, facts).samples


def need_flags(**given):
    empty = dict.fromkeys(("target_s", "device_images_per_s", "devices_per_host", "examples"))
    config = ROOT / "configs" / "batch81920_tiny.py"
    return argparse.Namespace(**empty | {"config": config, "hosts": 2} | given)


def test_the_recipes_own_source_has_its_length():
    # 4 steps of 81,920 in 64 s on 2 hosts; the length is in steps, so --examples changes nothing.
    assert input.need_of(need_flags(target_s=64.0)).images_per_s == 4 * 81_920 / 64 / 2
    assert input.need_of(need_flags(target_s=64.0, examples=5)).images_per_s == 4 * 81_920 / 64 / 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "--target_s, or"),
        ({"target_s": 1.0, "device_images_per_s": 2.0, "devices_per_host": 1}, "either"),
        ({"target_s": 1.0, "devices_per_host": 1}, "either"),
        ({"device_images_per_s": 2.0}, "--devices_per_host"),
        ({"target_s": 0.0}, "--target_s"),
        ({"devices_per_host": -1, "device_images_per_s": 1.0}, "--devices_per_host"),
    ],
)
def test_needs_that_are_not_clear(given, words):
    with pytest.raises(ConfigError, match=words):
        input.need_of(need_flags(**given))


@linux
def test_cores_by_number(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 5})
    assert input.core_sets("1,all") == [(3,), (3, 5, 7)]
    assert input.core_sets("all,3,2") == [(3, 5, 7), (3, 5)]
    for wrong in ("4", "0", "-1", "many", ""):
        with pytest.raises(ConfigError, match="1 to 3 cores"):
            input.core_sets(wrong)


@linux
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "synthetic", "--peer", "torchvison"], "did you mean 'torchvision'"),
        (["--data", "synthetic", "--repeats", "0"], "--repeats"),
        (["--data", "synthetic", "--photos", "x"], "--make_set"),
        (["--data", "synthetic", "--threads", "9999"], "--threads 9999"),
        ([], "--data"),
    ],
)
def test_a_wrong_option_is_one_line_and_code_2(capsys, options, words):
    assert benchmark.main(["input", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


# ---- sets and peers


def test_a_made_set_is_read_back_as_it_was(tmp_path):
    photos, made = tmp_path / "photos", tmp_path / "made"
    photos.mkdir()
    kept = {}
    for index, mode in enumerate(("RGB", "L", "CMYK", "RGB")):
        name = f"n0000000{index}_thing.JPEG"
        (photos / name).write_bytes(jpeg(400, 300 + index, index, mode))
        if mode != "CMYK":  # tf.data and Pillow would not agree on it
            kept[f"n0000000{index}"] = (photos / name).read_bytes()
    Image.new("RGB", (9, 9)).save(photos / "png.JPEG", "PNG")
    (photos / "text.jpg").write_text("no image")
    assert list(photo_set.make_set(made, photos, 10)) == ["tfds:photos:full", "tfds:photos:side256"]

    for config in ("full", "side256"):
        work = Workload(f"tfds:photos:{config}", str(made))
        found = work.records()
        contents, labels = found.read(np.arange(10))
        assert [found.classes[label] for label in labels] == [list(kept)[i % 3] for i in range(10)]
        if config == "full":
            assert contents == [list(kept.values())[i % 3] for i in range(10)]
        else:
            sizes = [Image.open(io.BytesIO(content)).size for content in contents[:3]]
            assert sizes == [(341, 256), (340, 256), (338, 256)]  # 400·256/height
        with pytest.raises(Absent, match="no TFRecord shards"):
            pipelines.tfrecords(work)
    source = open_source("tfds:photos:full", "train", SourceOptions(data_dir=str(made)))
    assert source.read(np.arange(10))[0].shape == (10, 224, 224, 3)
    with pytest.raises(DataError, match="exists"):
        photo_set.make_set(made, photos, 10)
    small = Image.open(io.BytesIO(photo_set.reencoded(jpeg(90, 70, 0), 256, 90)))
    assert small.size == (90, 70)  # not enlarged


def test_photographs_that_are_none(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no JPEG files"):
        photo_set.make_set(tmp_path / "made", tmp_path / "empty", 10)
    with pytest.raises(DataError, match="neither a folder nor a tar"):
        photo_set.make_set(tmp_path / "made", tmp_path / "absent.tar", 10)


def test_sets_that_tf_data_cannot_read(tmp_path):
    with pytest.raises(DataError, match="tfds:c"):
        pipelines.tfds_directory(Workload("tfds:c", str(tmp_path)))
    with pytest.raises(Absent, match="TFDS sets only"):
        pipelines.tfds_directory(Workload("folder:a", str(tmp_path)))


def test_a_library_that_is_not_installed_makes_a_peer_absent(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Absent, match="TensorFlow is not installed"):
        pipelines.require_tensorflow()
    with pytest.raises(Absent, match="torchvision"):
        pipelines.torchvision(Workload(f"folder:{folder}"))


def test_the_flax_example_is_found_in_a_checkout(tmp_path):
    inside = tmp_path / "examples" / "imagenet"
    inside.mkdir(parents=True)
    (inside / "input_pipeline.py").write_text("IMAGE_SIZE = 7\n")
    for place in (tmp_path, tmp_path / "examples", inside):
        assert flax_step.example(str(place), "input_pipeline").IMAGE_SIZE == 7
    with pytest.raises(Absent, match="no imagenet/input_pipeline"):
        flax_step.example(str(tmp_path / "elsewhere"), "input_pipeline")
    with pytest.raises(Absent, match="--flax_examples"):
        flax_step.example("", "input_pipeline")


# ---- a tiny run


@linux
def test_the_record_of_a_tiny_run(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(input.PEERS, "torchvision", input_work.ours)  # one that is installed
    kept = tmp_path / "records" / "input.json"
    sizes = ["--images=4", "--seconds=0", "--batch=2", "--image_size=32", "--memory_mib=1"]
    sizes += ["--threads=1", "--repeats=1"]
    recipe = ["--config", str(ROOT / "configs" / "digits.py"), "--target_s", "1e9"]
    arguments = ["--data", f"folder:{folder}", *sizes, "--peer", "flax,torchvision", *recipe]
    assert benchmark.main(["input", *arguments, "--json", str(kept)]) == 0

    record = json.loads(kept.read_text())
    assert record["command"].startswith("python scripts/benchmark.py input --data folder:")
    assert {"device", "cpu", "cores", "commit", "versions"} <= record["environment"].keys()
    assert record["environment"]["versions"]["pillow"]
    found = {(result["name"], result["unit"]): result for result in record["results"]}
    assert len(found) == len(record["results"])  # a name and its unit name one figure

    ours = found["1 core", "images per CPU-second"]
    assert ours["ours"]["median"] > 0
    assert len(ours["ours"]["repeats"]) == 1
    assert ours["peer"] is ours["ratio"] is ours["absent"] is None
    flax = found["1 core vs flax", "images/s"]
    assert flax["ours"] is flax["peer"] is flax["ratio"] is flax["reached"] is None
    assert "TFDS sets only" in flax["absent"]
    peer = found["1 core vs torchvision", "images/s"]
    assert peer["ratio"]["median"] == peer["ours"]["median"] / peer["peer"]["median"]
    for stage in ("order", "read", "header", "boxes", "decode", "flip"):
        assert found[f"1 core: {stage}", "µs of CPU per image"]["ours"]["median"] >= 0
    assert found["1 core: decode", "µs of CPU per image"]["ours"]["median"] > 0
    assert found["doctor: this host, this data set", "images/s per host"]["reached"] is True
    assert "reads TFDS sets only" in capsys.readouterr().out
