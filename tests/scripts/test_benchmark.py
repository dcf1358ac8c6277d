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
from benchmarks import doctor, input, photo_set, runner, stages, throughput, workload
from benchmarks.competitor import Competitor, FailedError
from benchmarks.measure import Result, interleave, summary
from benchmarks.peers import flax_checkout, tensorflow
from benchmarks.product import records
from benchmarks.recipe import need_of, training_samples
from benchmarks.table import figure, remarks, table
from benchmarks.workload import Absent, Workload
from PIL import Image

from largebatch.config import Facts, load, resolve
from largebatch.data import SourceOptions, open_source
from largebatch.errors import ConfigError, DataError

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


# ---- arithmetic


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


def test_the_ratio_pairs_the_repeats():
    # Ratio of the medians: 10 / 10 = 1. Repeat by repeat ours is twice as fast.
    drifting = Result("x", "images/s", (20.0, 10.0, 2.0), (10.0, 5.0, 1.0), "peer", goal=2.0)
    assert drifting.ratios == (2.0, 2.0, 2.0)
    assert drifting.reached is True
    shuffled = Result("x", "images/s", (20.0, 10.0, 2.0), (10.0, 2.0, 20.0), "peer")
    assert shuffled.as_json()["ratio"]["median"] == 2.0


@pytest.mark.parametrize(
    ("better", "ours", "peer", "ratio", "goal", "reached"),
    [
        ("more", 30.0, 10.0, 3.0, 2.0, True),
        ("more", 10.0, 30.0, 1 / 3, 2.0, False),
        ("less", 10.0, 30.0, 3.0, 2.0, True),
        ("less", 30.0, 10.0, 1 / 3, 2.0, False),
        ("more", 10.0, None, None, 10.0, True),
        ("more", 10.0, None, None, 10.5, False),
        ("less", 10.0, None, None, 10.0, True),
        ("less", 10.0, None, None, 9.5, False),
        ("less", 10.0, None, None, None, None),
    ],
)
def test_above_one_is_better_and_goals_point_that_way(better, ours, peer, ratio, goal, reached):
    peers = () if peer is None else (peer,)
    result = Result("x", "u", (ours,), peers, "p" if peers else "", better=better, goal=goal)
    assert result.ratios == (() if ratio is None else (pytest.approx(ratio, rel=1e-15),))
    assert result.reached is reached


def test_competitors_take_turns():
    turns = itertools.count()
    found = interleave({"a": lambda: ("a", next(turns)), "b": lambda: ("b", next(turns))}, 3)
    assert found == {"a": [("a", 0), ("a", 2), ("a", 4)], "b": [("b", 1), ("b", 3), ("b", 5)]}


def test_a_repeat_counts_whole_batches_after_what_is_in_stock():
    taken = []
    batches = (taken.append(size) or size for size in itertools.repeat(3))
    repeat = runner.timed(batches, Workload("synthetic", batch=3, images=20))
    assert repeat()["images"] == 21
    assert sum(taken) == 6 + 21  # at least a quarter of 20 first
    assert runner.timed(itertools.repeat(50), Workload("synthetic", images=20))()["images"] == 50


def test_a_repeat_of_a_fast_pipeline_lasts_as_long_as_asked(monkeypatch):
    clock = itertools.count(step=0.5)  # half a second at each look
    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(clock))
    found = runner.timed(itertools.repeat(3), Workload("synthetic", images=3, seconds=2.0))()
    # Within the repeat: a look at its begin, then one after each batch until 2 s have passed.
    assert found["images"] == 12
    assert found["wall_s"] > 2.0


def test_bookkeeping_is_what_the_product_takes_beyond_the_raw_work():
    spent = dict.fromkeys(stages.STAGES, 1000.0)  # those that are no raw work must not count
    spent |= {"read": 50.0, "parse": 10.0, "header": 5.0, "decode": 150.0, "resize": 45.0}
    *single, overhead = throughput.breakdown("1 core", [276.0, 280.0], [spent, spent])
    assert {result.name.removeprefix("1 core: ") for result in single} == set(stages.STAGES)
    assert overhead.ours == pytest.approx((16 / 200, 20 / 200), rel=1e-12)
    assert overhead.reached is True


def test_a_stage_within_another_is_taken_out_of_it(monkeypatch):
    clock = itertools.count()  # one second at each look
    monkeypatch.setattr(stages.time, "process_time", lambda: float(next(clock)))
    original = stages.pictures.resize
    watch = stages.Stopwatch()
    with stages._within(watch, "resize", "decode", stages.pictures, "resize"):
        for _ in range(3):
            stages.pictures.resize(np.zeros((4, 4, 3), np.uint8), (2, 2), "linear")
    # Looks: begin of decode, two around each of 3 resizes, end: 7 s in all, 3 s of them resizing.
    assert watch.spent["resize"] == 3.0
    assert watch.spent["decode"] == 4.0
    assert stages.pictures.resize is original


# ---- doctor


def test_the_need_of_a_time_and_of_devices():
    need = doctor.need_in_time(samples=1_200_000, target_s=60, hosts=4)
    assert need.images_per_s == 5000
    assert doctor.need_of_devices(2500.0, 8, hosts=4).images_per_s == 20_000


def test_what_would_meet_the_need():
    need = doctor.need_in_time(1_200_000, 60, hosts=4)  # 5,000 images/s each
    assert doctor.cores_needed(need, given=800, cores=2) == 13  # 12.5
    assert doctor.hosts_needed(need, given=800) == 25
    assert doctor.hosts_needed(need, given=801) == 25
    assert doctor.hosts_needed(need, given=799) == 26


def test_the_rate_with_a_cheaper_stage():
    # 1,000 µs of which 800 are decoding; 200 instead leave 400: 2.5 times as fast.
    assert doctor.rate_with(16_000, 1000, 800, 200) == 40_000
    assert doctor.rate_with(100, 1000, 1000, 50) == 2000
    # Noise can make a stage dearer than the whole; the rate stays that of the new stage.
    assert doctor.rate_with(100, 1000, 1100, 50) == 2000


def test_advice_names_what_suffices_with_numbers():
    need = doctor.need_in_time(1_200_000, 60, hosts=4)
    instead = {"re-encoded": 4000.0, "decoded": 12_500.0}
    words = doctor.advice(need, 800, 2, instead)
    assert "gives 0.16 of what is needed" in words
    assert "decoded (12,500 images/s, 2.50 times)" in words
    assert "re-encoded" not in words  # still too slow
    assert "13 cores per host instead of 2" in words
    assert "25 hosts instead of 4" in words
    assert "change nothing" in doctor.advice(need, 5000, 2, instead)
    assert "hosts instead" not in doctor.advice(doctor.need_of_devices(10, 8, 4), 20, 2, {})


def test_a_diagnosis_marks_what_is_enough():
    need = doctor.need_in_time(1_200_000, 60, hosts=4)
    found = doctor.diagnosis(need, 800, 2, {"decoded": 12_500.0})
    assert [(result.name, result.reached) for result in found] == [
        ("doctor: this host, this data set", False),
        ("doctor: decoded", True),
        ("doctor: cores per host that would do", False),
        ("doctor: hosts that would do", False),
    ]


@pytest.mark.parametrize("length", ["3 epochs", "7 steps", "5000 samples"])
@pytest.mark.parametrize("end", ["continue", "drop", "repeat"])
def test_a_recipes_samples_are_those_of_its_plan(length, end):
    overrides = [("schedule.length", length), ("data.epoch_end", end), ("schedule.warmup", "0 %")]
    config = load(ROOT / "configs" / "digits.py", overrides)
    facts = Facts(1437, 360, 10, (8, 8, 1), devices=1)
    assert training_samples(config, 1437) == resolve(config, facts).samples


def doctor_flags(**given):
    empty = dict.fromkeys(("target_s", "device_images_per_s", "devices_per_host", "examples"))
    config = ROOT / "configs" / "batch81920_tiny.py"
    return argparse.Namespace(**empty | {"config": config, "hosts": 2} | given)


def test_the_recipes_own_source_tells_its_length():
    # 4 steps of 81,920 in 64 s on 2 hosts; the length is in steps, so --examples changes nothing.
    assert need_of(doctor_flags(target_s=64.0)).images_per_s == 4 * 81_920 / 64 / 2
    assert need_of(doctor_flags(target_s=64.0, examples=5)).images_per_s == 4 * 81_920 / 64 / 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "--target_s, or"),
        ({"target_s": 1.0, "device_images_per_s": 2.0, "devices_per_host": 1}, "either"),
        ({"target_s": 1.0, "devices_per_host": 1}, "either"),
        ({"device_images_per_s": 2.0}, "--devices_per_host"),
        ({"target_s": 0.0}, "--target_s is 0.0"),
        ({"devices_per_host": -1, "device_images_per_s": 1.0}, "--devices_per_host is -1"),
    ],
)
def test_needs_that_are_not_said_clearly(given, words):
    with pytest.raises(ConfigError, match=words):
        need_of(doctor_flags(**given))


# ---- command line


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
        (["--peer", "torchvison"], ["torchvison", "did you mean 'torchvision'"]),
        (["--repeats", "0"], ["--repeats is 0"]),
        (["--photos", "x"], ["--make_set", "--photos"]),
        (["--threads", "9999"], ["--threads 9999"]),
    ],
)
def test_a_wrong_option_is_told_in_a_line(capsys, options, words):
    assert benchmark.main(["input", "--data", "synthetic", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for word in ["error: ", *words]:
        assert word in line


@linux
def test_nothing_to_measure(capsys):
    assert benchmark.main(["input"]) == 2
    assert "--data" in capsys.readouterr().err


# ---- processes


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a competitor's module; returns its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(text):
        (tmp_path / "made.py").write_text(text)
        return "made"

    return write


def one_core(**changes):
    core = min(os.sched_getaffinity(0))
    return Workload("synthetic", cores=(core,), **changes)


@linux
def test_a_competitor_is_pinned_and_stands_still_between_its_turns(module):
    name = module(
        "import os\n"
        "print('noise on standard output')\n"
        "def about(work): return f'as it likes, {work.batch} at a time'\n"
        "def prepare(work):\n"
        "    calls = []\n"
        "    def repeat():\n"
        "        calls.append(1)\n"
        "        return {'pid': os.getpid(), 'calls': len(calls),\n"
        "                'cores': sorted(os.sched_getaffinity(0)), 'batch': work.batch}\n"
        "    return repeat\n"
    )
    work = one_core(batch=7)
    with Competitor(name, work) as competitor:
        assert competitor.about == "as it likes, 7 at a time"
        for calls in (1, 2):
            found = competitor.repeat()
            assert found["calls"] == calls
            assert found["batch"] == 7
            assert found["cores"] == list(work.cores)
            stat = Path(f"/proc/{found['pid']}/stat")
            for _ in range(1000):  # the signal may be on its way
                if (state := stat.read_text().rpartition(")")[2].split()[0]) == "T":
                    break
                time.sleep(0.01)
            assert state == "T"
    assert not stat.exists()


@linux
@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("from benchmarks.workload import Absent\nraise Absent('not here')", Absent, "not here"),
        ("from largebatch.errors import DataError\nraise DataError('gone')", DataError, "gone"),
        ("raise KeyError('oops')", FailedError, "KeyError: 'oops'(.|\n)*Traceback"),
        ("import os\nos._exit(3)", FailedError, "it ended"),
    ],
)
def test_how_a_competitor_fails(module, body, error, words):
    name = module("def prepare(work):\n" + "".join(f"    {x}\n" for x in body.split("\n")))
    with pytest.raises(error, match=words):
        Competitor(name, one_core())


@linux
def test_a_competitor_that_says_nothing_is_ended(module):
    name = module("import time\ndef prepare(work):\n    return lambda: time.sleep(600)\n")
    with (
        Competitor(name, one_core(limit_s=3.0)) as competitor,
        pytest.raises(FailedError, match="no answer in 3 s"),
    ):
        competitor.repeat()


@linux
def test_a_competitor_ends_with_its_parent_though_it_stands_still(module, tmp_path):
    name = module("def prepare(work):\n    return dict\n")
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, time\n"
            "from benchmarks.competitor import Competitor\n"
            "from benchmarks.workload import Workload\n"
            f"one = Competitor({name!r}, Workload('synthetic', cores={one_core().cores!r}))\n"
            "print(one._process.pid, flush=True)\n"
            "time.sleep(600)\n",
        ],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'scripts'}{os.pathsep}{tmp_path}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    child = Path(f"/proc/{int(parent.stdout.readline())}")
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
def test_descendants_count_in_time_and_memory(module):
    # The child uses 0.3 s of processor, lets one of its own use as much, and holds 64 MiB.
    name = module(
        "import subprocess, sys\n"
        "from benchmarks.memory import peak_bytes\n"
        "from benchmarks.runner import descendants, descendants_cpu_s\n"
        "WORK = 'import time\\nwhile time.process_time() < 0.3: pass'\n"
        "CHILD = WORK + '''\nimport subprocess, sys\n"
        "held = bytearray(b'x') * (64 << 20)\n"
        "subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()'''\n"
        "def prepare(work):\n"
        "    before = peak_bytes()\n"
        "    child = subprocess.Popen([sys.executable, '-c', CHILD, WORK], stdin=subprocess.PIPE,\n"
        "                             stdout=subprocess.PIPE, text=True)\n"
        "    child.stdout.readline()\n"
        "    found = {'cpu': descendants_cpu_s(), 'grown': peak_bytes() - before,\n"
        "             'living': len(descendants())}\n"
        "    child.communicate()\n"
        "    return lambda: found | {'after': descendants_cpu_s()}\n"
    )
    with Competitor(name, one_core()) as competitor:
        found = competitor.repeat()
    assert found["living"] == 1
    assert found["cpu"] >= 0.56  # counted in ticks of 10 ms, user and system apart
    assert found["grown"] >= 64 << 20
    assert found["after"] == 0


# ---- sets and peers


def test_a_made_set_is_read_back_as_it_was(tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    photos.mkdir()
    kept = {}
    for index, mode in enumerate(("RGB", "L", "CMYK", "RGB")):
        name = f"n0000000{index}_thing.JPEG"
        (photos / name).write_bytes(jpeg(400, 300 + index, index, mode))
        if mode != "CMYK":  # tf.data and Pillow would not agree on it
            kept[f"n0000000{index}"] = (photos / name).read_bytes()
    Image.new("RGB", (9, 9)).save(photos / "png.JPEG", "PNG")
    (photos / "text.jpg").write_text("no picture")

    def no_tensorflow(module, work):
        assert module == "benchmarks.tfrecords"
        raise Absent("TensorFlow is not installed")

    monkeypatch.setattr(photo_set, "Competitor", no_tensorflow)
    said = photo_set.make_set(tmp_path / "made", photos, 10)
    assert sum("TensorFlow is not installed" in line for line in said) == 2

    for config in ("full", "side256"):
        work = Workload(f"tfds:photos:{config}", str(tmp_path / "made"))
        found = records(work)
        contents, labels = found.read(np.arange(10))
        assert [found.classes[label] for label in labels] == [list(kept)[i % 3] for i in range(10)]
        if config == "full":
            assert contents == [list(kept.values())[i % 3] for i in range(10)]
        else:
            sizes = [Image.open(io.BytesIO(content)).size for content in contents[:3]]
            assert sizes == [(341, 256), (340, 256), (338, 256)]  # 400·256/height
        assert len(workload.tfds_directory(work).joinpath("label.labels.txt").read_text()) == 30
        with pytest.raises(Absent, match="no TFRecord shards"):
            workload.tfrecords(work)
    source = open_source(
        "tfds:photos:full", "train", SourceOptions(data_dir=str(tmp_path / "made"))
    )
    assert source.read(np.arange(10))[0].shape == (10, 224, 224, 3)
    with pytest.raises(DataError, match="exists"):
        photo_set.make_set(tmp_path / "made", photos, 10)


def test_a_small_photograph_is_not_enlarged():
    small = Image.open(io.BytesIO(photo_set.reencoded(jpeg(90, 70, 0), 256, 90)))
    assert small.size == (90, 70)


def test_photographs_that_are_none(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no JPEG files"):
        photo_set.make_set(tmp_path / "made", tmp_path / "empty", 10)
    with pytest.raises(DataError, match="neither a folder nor a tar"):
        photo_set.make_set(tmp_path / "made", tmp_path / "absent.tar", 10)


def test_the_newest_version_is_taken_by_number(tmp_path):
    for version in ("1.9.0", "1.10.0"):
        (tmp_path / "a" / "b" / version).mkdir(parents=True)
        (tmp_path / "a" / "b" / version / "dataset_info.json").write_text("{}")
    work = Workload("tfds:a:b", str(tmp_path))
    assert workload.tfds_directory(work).name == "1.10.0"
    assert workload.tfds_directory(Workload("tfds:a/b", str(tmp_path))).name == "1.10.0"
    with pytest.raises(DataError, match=f"tfds:c.*{tmp_path}"):
        workload.tfds_directory(Workload("tfds:c", str(tmp_path)))
    with pytest.raises(Absent, match="TFDS sets only"):
        workload.tfds_directory(Workload("folder:a", str(tmp_path)))


def test_tensorflow_that_is_not_installed_makes_a_peer_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(Absent, match="TensorFlow is not installed"):
        tensorflow.need()


def test_the_flax_example_is_found_in_a_checkout(tmp_path):
    inside = tmp_path / "examples" / "imagenet"
    inside.mkdir(parents=True)
    (inside / "input_pipeline.py").write_text("IMAGE_SIZE = 7\n")
    for place in (tmp_path, tmp_path / "examples", inside):
        assert flax_checkout.example(str(place), "input_pipeline").IMAGE_SIZE == 7
    with pytest.raises(Absent, match="no imagenet/input_pipeline"):
        flax_checkout.example(str(tmp_path / "elsewhere"), "input_pipeline")
    with pytest.raises(Absent, match="--flax_examples"):
        flax_checkout.example("", "input_pipeline")


# ---- a tiny run


@linux
def test_the_record_of_a_tiny_run(folder, tmp_path, capsys):
    kept = tmp_path / "records" / "input.json"
    sizes = [
        "--images",
        "4",
        "--seconds",
        "0",
        "--batch",
        "2",
        "--microbatch",
        "2",
        "--image_size",
        "32",
    ]
    arguments = ["--data", f"folder:{folder}", "--threads", "1", "--repeats", "1", *sizes]
    recipe = ["--config", str(ROOT / "configs" / "digits.py"), "--target_s", "1e9"]
    peers = ["--peer", "flax,torchvision"]
    assert benchmark.main(["input", *arguments, *peers, *recipe, "--json", str(kept)]) == 0

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
    flax = found["1 core vs flax", "images per CPU-second"]
    assert flax["ours"] is flax["peer"] is flax["ratio"] is flax["reached"] is None
    assert "TFDS sets only" in flax["absent"]
    pillow = found["1 core vs torchvision", "images/s"]
    assert pillow["absent"] is None
    assert pillow["ratio"]["median"] == pytest.approx(
        pillow["ours"]["median"] / pillow["peer"]["median"], rel=1e-12
    )
    for stage in stages.STAGES:
        assert found[f"1 core: {stage}", "µs of CPU per image"]["ours"]["median"] >= 0
    assert found["1 core: decode", "µs of CPU per image"]["ours"]["median"] > 0
    assert found["TensorFlow imported", "times"]["ours"]["median"] == 0
    memory = found["loader's peak memory beyond one microbatch", "GiB"]
    assert 0 < memory["ours"]["median"] < 2
    assert found["doctor: this host, this data set", "images/s per host"]["reached"] is True
    assert found["doctor: re-encoded to 256 px, quality 90", "images/s per host"]["ours"]

    shown = capsys.readouterr().out
    assert "absent" in shown
    assert "reads TFDS sets only" in shown


def test_the_table_shows_medians_and_marks_goals():
    assert figure([1.0, 2.0, 3.0]) == "2 ±50%"
    assert figure([1500.4]) == "1,500"
    assert figure([-0.05, 0.01, 0.05]) == "0.01 ±0.05"
    assert figure([]) == "–"
    results = [
        Result("a", "u", (3.0,), (1.0,), "p", goal=2.0),
        Result("b", "u", (3.0,), better="less", goal=2.0, note="why"),
        Result("c", "u", peer_name="p", absent="not here"),
    ]
    columns = {column.header: list(column.cells) for column in table("t", results).columns}
    assert columns["goal"] == ["≥ 2 ✓", "≤ 2 ✗", ""]
    assert columns["ratio"] == ["3", "–", "–"]
    assert columns["peer"] == ["1", "–", "absent"]
    assert remarks(results) == ["b: why", "c: not here"]
