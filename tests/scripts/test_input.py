"""The benchmark of the input pipeline: its arithmetic, its sets and peers, and a tiny run."""

import io
import itertools
import json
import os
import random
import sys
from pathlib import Path

import benchmark
import numpy as np
import pytest
from benchmarks import feeding, input, photo_set
from benchmarks.competitor import Absent, Competitor
from benchmarks.feeding import Workload
from benchmarks.peers import dali, pipelines
from PIL import Image

from largebatch.data import SourceOptions, open_dataset
from largebatch.errors import ConfigError, DataError
from tests.data.forms import write_tfrecord
from tests.scripts import competitors
from tests.scripts.test_benchmark import linux, one_core

ROOT = Path(__file__).parents[2]


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


def test_a_repeat_counts_complete_batches_after_the_stock(monkeypatch):
    monkeypatch.setattr(feeding.time, "perf_counter", itertools.count(step=0.5).__next__)
    monkeypatch.setattr(feeding, "_own_cpu_s", itertools.count(step=2.0).__next__)
    monkeypatch.setattr(feeding, "_other_cpu_s", lambda: 0.0)  # of whatever else runs here
    taken = []
    batches = (taken.append(size) or size for size in itertools.repeat(3))
    found = feeding.timed(batches, Workload("synthetic", batch=3, images=20))()
    assert sum(taken) == 6 + 21  # at least a quarter of 20 first
    assert found["images per CPU-second"] == 21 / 2.0
    long = feeding.timed(itertools.repeat(3), Workload("synthetic", images=3, seconds=2.0))()
    # Looks at the clock: at the begin of the repeat and of its take, after each of four batches
    # until 2 s have passed, at the end.
    assert long["images/s"] == 12 / 3.0


@linux
def test_descendants_count_in_processor_time():
    with Competitor(competitors.with_descendants, one_core()) as competitor:
        found = competitor.repeat()
    assert found["cpu"] >= 0.56  # counted in ticks of 10 ms, user and system apart
    assert found["after"] == 0


def test_bookkeeping_is_what_the_product_takes_beyond_the_raw_work():
    # Stages that are no raw work must not count.
    spent = {"order": 1000.0, "read": 60.0, "header": 5.0, "boxes": 1000.0, "decode": 195.0}
    *single, overhead = input.breakdown("1 core", [276.0, 280.0], [spent, spent])
    assert [result.name.removeprefix("1 core: ") for result in single] == list(spent)
    assert overhead.ours == pytest.approx((16 / 200, 20 / 200), rel=1e-12)


@linux
def test_cores_by_number(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 5})
    assert input.core_sets("1,all") == [(3,), (3, 5, 7)]
    assert input.core_sets("all,3,2") == [(3, 5, 7), (3, 5)]
    for wrong in ("4", "0", "many", ""):
        with pytest.raises(ConfigError, match="1 to 3 cores"):
            input.core_sets(wrong)


@linux
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "synthetic", "--repeats", "0"], "--repeats"),
        (["--data", "synthetic", "--photos", "x"], "--make_set"),
        ([], "--data"),
    ],
)
def test_a_wrong_option_is_one_line_and_code_2(capsys, options, words):
    assert benchmark.main(["input", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


# ---- sets and peers


def test_a_made_set_is_read_back_as_it_was(tmp_path):
    photos, made = tmp_path / "photos", tmp_path / "made"
    photos.mkdir()
    with pytest.raises(DataError, match="no JPEG files"):
        photo_set.make_set(made, photos, 10)
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
        found = work.photographs()
        contents, labels = found.read(np.arange(10))
        assert [found.classes[label] for label in labels] == [list(kept)[i % 3] for i in range(10)]
        if config == "full":
            assert contents == [list(kept.values())[i % 3] for i in range(10)]
        else:
            sizes = [Image.open(io.BytesIO(content)).size for content in contents[:3]]
            assert sizes == [(341, 256), (340, 256), (338, 256)]  # 400·256/height
        with pytest.raises(Absent, match="no TFRecord shards"):
            pipelines.tfrecords(work)
    source = open_dataset("tfds:photos:full", "train", SourceOptions(data_dir=str(made)))
    assert source.read_centres(np.arange(10)).images.shape == (10, 224, 224, 3)
    with pytest.raises(DataError, match="exists"):
        photo_set.make_set(made, photos, 10)


def test_what_a_peer_cannot_read_or_import_makes_it_absent(monkeypatch, folder, tmp_path):
    with pytest.raises(DataError, match="tfds:c"):
        pipelines.tfds_directory(Workload("tfds:c", str(tmp_path)))
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Absent, match="TensorFlow is not installed"):
        pipelines.require_tensorflow()
    with pytest.raises(Absent, match="torch"):
        pipelines.torchvision(Workload(f"folder:{folder}"))
    monkeypatch.setattr(dali, "tfrecords", lambda _: [])
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(Absent, match="DALI"):
        dali.dali(Workload("tfds:c", str(tmp_path)))


def test_dalis_index_has_the_place_and_frame_of_each_record(tmp_path):
    examples = [b"a" * 5, b"b" * 300, b""]
    directory = tmp_path / "index"
    directory.mkdir()
    path = tmp_path / "photos-train.tfrecord-00000-of-00001"
    write_tfrecord(path, examples)
    (written,) = dali.write_index([path], directory)
    lines = [tuple(map(int, line.split())) for line in Path(written).read_text().splitlines()]
    content = path.read_bytes()
    assert [content[at + 12 : at + size - 4] for at, size in lines] == examples
    assert sum(size for _, size in lines) == len(content)


def test_the_flax_example_is_found_in_a_checkout(tmp_path):
    inside = tmp_path / "examples" / "imagenet"
    inside.mkdir(parents=True)
    (inside / "input_pipeline.py").write_text("IMAGE_SIZE = 7\n")
    for place in (tmp_path, tmp_path / "examples", inside):
        assert pipelines.example(str(place)).IMAGE_SIZE == 7
    for wrong in (str(tmp_path / "elsewhere"), ""):
        with pytest.raises(Absent, match="--flax_examples"):
            pipelines.example(wrong)


# ---- a tiny run


@pytest.mark.slow
@linux
def test_the_record_of_a_tiny_run(folder, tmp_path, capsys):
    kept = tmp_path / "records" / "input.json"
    sizes = ["--images=4", "--seconds=0", "--batch=2", "--image_size=32", "--memory_mib=1"]
    sizes += ["--threads=1", "--repeats=1"]
    need = ["--device_images_per_s=1e-3", "--devices_per_host=8"]
    recipe = ["--config", str(ROOT / "configs" / "digits.py")]  # whose source is not used
    arguments = ["--data", f"folder:{folder}", *sizes, *recipe, *need, "--peer=flax"]
    arguments += ["--versus", f"folder:{folder}/."]
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
    assert flax["ours"] is flax["peer"] is flax["ratio"] is None
    assert "TFDS sets only" in flax["absent"]
    peer = found[f"1 core vs folder:{folder}/.", "images/s"]
    assert peer["ratio"]["median"] == peer["ours"]["median"] / peer["peer"]["median"]
    for stage in ("order", "read", "header", "boxes", "decode", "flip"):
        assert found[f"1 core: {stage}", "µs of CPU per image"]["ours"]["median"] >= 0
    assert found["1 core: decode", "µs of CPU per image"]["ours"]["median"] > 0
    assert found["need of this host", "images/s"]["ours"]["median"] == 8e-3
    assert "reads TFDS sets only" in capsys.readouterr().out
