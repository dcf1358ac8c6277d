"""The benchmark of the input pipeline: its arithmetic, its peers, and a tiny run."""

import itertools
import json
import random
from pathlib import Path

import benchmark
import pytest
from benchmarks import feeding
from benchmarks.competitor import Absent, Competitor
from benchmarks.feeding import Workload
from benchmarks.peers import dali, flax_input
from PIL import Image

from tests.data.forms import write_tfrecord
from tests.scripts import competitors
from tests.scripts.test_benchmark import linux, one_core

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    """Class folders of a train and a validation split, three photographs each."""
    for split in ("train", "validation"):
        for index in range(3):
            path = tmp_path / "set" / split / f"class{index % 2}" / f"{index}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = random.Random(index).randbytes(36)
            image = Image.frombytes("RGB", (4, 3), noise).resize((300 + 20 * index, 280))
            image.save(path, "JPEG", quality=95)
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


# ---- peers


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
    (inside / "benchmarked_example.py").write_text("IMAGE_SIZE = 7\n")
    for place in (tmp_path, tmp_path / "examples", inside):
        (module,) = flax_input.flax_example(str(place), "benchmarked_example")
        assert module.IMAGE_SIZE == 7
    for wrong in (str(tmp_path / "elsewhere"), ""):
        with pytest.raises(Absent, match="--flax_examples"):
            flax_input.flax_example(wrong, "benchmarked_example")


# ---- a tiny run


@pytest.mark.slow
@linux
def test_the_record_of_a_tiny_run(folder, tmp_path):
    kept = tmp_path / "records" / "input.json"
    sizes = ["--images=4", "--seconds=0", "--batch=2", "--image_size=32", "--memory_mib=1"]
    sizes += ["--threads=1", "--repeats=1"]
    need = ["--device_images_per_s=1e-3", "--devices_per_host=8"]
    recipe = ["--config", str(ROOT / "configs" / "digits.py")]  # whose source is not used
    arguments = ["--data", f"folder:{folder}", *sizes, *recipe, *need, "--peer=flax"]
    arguments += ["--versus", f"folder:{folder}/."]
    assert benchmark.main(["input", *arguments, "--json", str(kept)]) == 0

    record = json.loads(kept.read_text())
    assert {"device", "cpu", "cores", "commit", "versions"} <= record["environment"].keys()
    found = {(result["name"], result["unit"]): result for result in record["results"]}
    assert len(found) == len(record["results"])  # a name and its unit name one figure

    ours = found["1 core", "images per CPU-second"]
    assert ours["ours"]["median"] > 0
    assert len(ours["ours"]["repeats"]) == 1
    flax = found["1 core vs flax", "images/s"]
    assert flax["ours"] is flax["peer"] is flax["ratio"] is None
    assert "TFDS" in flax["absent"]
    peer = found[f"1 core vs folder:{folder}/.", "images/s"]
    assert peer["ratio"]["median"] == peer["ours"]["median"] / peer["peer"]["median"]
    assert found["need of this host", "images/s"]["ours"]["median"] == 8e-3
