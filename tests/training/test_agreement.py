"""Processes that differ end with one line, before anything is compiled."""

import re
import shutil
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

from largebatch import data
from largebatch.config import Config
from largebatch.config.schema import common, replaced
from largebatch.data.source import SMALL_SAMPLE, sampled
from largebatch.errors import UserError
from largebatch.tracking import Console
from largebatch.training import agreement
from largebatch.training.agreement import Meeting, explain
from largebatch.training.run import Run
from tests.training import worlds

CLASSES = ("a", "b", "d")


def squares(root, train=20, validation=4, side=16):
    """Write class folders of noisy squares of one colour for each class."""
    draw = np.random.default_rng(0)
    for split, count in (("train", train), ("val", validation)):
        for label, name in enumerate(CLASSES):
            folder = root / split / name
            folder.mkdir(parents=True)
            colour = np.array([60 + 60 * label, 200 - 50 * label, 90 + 30 * label])
            for number in range(count):
                pixels = colour + draw.integers(-9, 10, (side, side, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:04}.png")
    return root


def delete_image(root):
    (root / "train/d/0003.png").unlink()


def rename_class(root):
    for split in ("train", "val"):
        (root / split / "d").rename(root / split / "e")


def replace_image(root):
    shutil.copy(root / "train/a/0005.png", root / "train/d/0005.png")


def move_image(root):
    (root / "train/a/0019.png").rename(root / "train/b/0020.png")


class FakeStore:
    """The key-value store of several threads, which stand for processes."""

    def __init__(self):
        self.values, self.changed, self.requests = {}, threading.Condition(), 0

    def key_value_set(self, key, value):
        assert isinstance(value, str)
        with self.changed:
            self.requests += 1
            assert key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def key_value_dir_get(self, key):
        with self.changed:
            return [each for each in self.values.items() if each[0].startswith(key)]

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self.changed:
            self.requests += 1
            if not self.changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: timed out")
            return self.values[key]


def together(*actions):
    """Call each action with its meeting, in a thread of its own; return the results."""
    store, results = FakeStore(), [None] * len(actions)

    def run(process, action):
        results[process] = action(Meeting(store, process, len(actions), "0"))

    threads = [threading.Thread(target=run, args=each) for each in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results, store


def test_equal_processes_exchange_three_short_messages_each():
    facts = {f"option {i}": "x" * 50 for i in range(300)}
    results, store = together(*[lambda meeting: meeting.compare(facts, "fix it")] * 64)
    assert results == [""] * 64
    assert store.requests <= 3 * 64 + 1
    short = [value for key, value in store.values.items() if not key.endswith("facts")]
    assert max(map(len, short)) < 200


def having(**facts):
    return lambda meeting: meeting.compare({"a": "1", "b": "2"} | facts, "fix it")


def test_all_processes_raise_the_same_line():
    results, _ = together(having(), having(b="3"), having(), having(c="4"))
    assert len(set(results)) == 1
    for words in ("b: ", "(process 1) has 3", "(process 0) has 2", "2 of 4 processes", "fix it"):
        assert words in results[0]


@pytest.mark.parametrize("failing", [0, 1])
def test_the_error_of_a_process_that_did_not_get_this_far_reaches_the_others(failing):
    actions = [lambda meeting: meeting.compare({}, "fix it")] * 3
    actions[failing] = lambda meeting: meeting.fail(UserError("data.source: no such folder\nx"))
    results, _ = together(*actions)
    assert results.pop(failing) is None
    assert len(set(results)) == 1
    assert re.search(rf"\(process {failing}\) .*data\.source: no such folder", results[0])
    assert "\n" not in results[0]


def test_a_difference_is_one_short_line():
    first = {f"option {i}": "x" for i in range(300)}
    own = {key: value + 10_000 * "y" for key, value in first.items()}
    line = explain(own, "n7 (process 9)", first, "n0 (process 0)")
    assert line.startswith("option 0: n7 (process 9) has ")
    assert len(line) < 500
    assert explain(first, "n7 (process 9)", first, "n0 (process 0)") == ""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("folder:/a/set", "folder:/b", True),
        ("folder:/a", "arrayrecord:/a", False),
        ("webdataset:/local/{0..7}.tar", "webdataset:s3://bucket/{0..7}.tar", True),
        ("mine:factory:/a", "mine:factory:/b", True),
    ],
)
def test_only_the_path_of_a_source_may_differ(one, other, same):
    found = [common(replaced(Config(), {"data.source": each})) for each in (one, other)]
    assert (found[0] == found[1]) == same
    sets = [
        common(replaced(Config(), {"data.validation_sets": (f"v2={each}",)}))
        for each in (one, other)
    ]
    assert (sets[0] == sets[1]) == same


def test_what_decides_the_programs_is_compared(monkeypatch, tmp_path):
    (tmp_path / "netz.py").write_text("def factory(classes): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = replaced(Config(), {"model.name": "netz:factory"})
    before = agreement.command_facts(config)
    assert {"largebatch", "Python", "jax", "flax", "largebatch/optim/lars.py"} < set(before)
    assert {"run.seed", "comm.xla_options"} < set(before)
    assert not {"data.threads", "data.data_dir", "run.compile_cache"} & set(before)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_foo=false")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    (tmp_path / "netz.py").write_text("def factory(classes, width=2): ...\n")
    with jax.enable_x64(True):
        after = agreement.command_facts(config)
    assert {key for key in after if after[key] != before.get(key) and "xla_cpu" not in key} == {
        *("XLA_FLAGS --xla_gpu_foo", "NVIDIA_TF32_OVERRIDE"),
        *("jax_enable_x64", "module netz of model.name"),
    }


def test_order_of_flags_and_places_on_a_host_are_not_compared(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_b=2 --xla_dump_to=/tmp/host1")
    first = agreement.command_facts(Config())
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/scratch --xla_b=2  --xla_a=1")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    assert sorted(agreement.command_facts(Config()).items()) == sorted(first.items())


def test_the_sample_has_every_image_of_a_small_split_and_depends_on_the_seed():
    source = data.open_source("digits", "validation")
    assert sorted(dict(sampled(source, 3))) == list(range(360))
    large = data.open_source("digits", "train")
    found = sampled(large, 3)
    assert len(dict(found)) == SMALL_SAMPLE
    assert found == sampled(large, 3)
    assert dict(found).keys() != dict(sampled(large, 4)).keys()


def opened(root, **data):
    made = worlds.digits(4, 4, data={"source": f"folder:{root}", "image_size": 16} | data)
    return Run.open(made, Console(quiet=True), jax.devices()[:1])


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return squares(tmp_path_factory.mktemp("original") / "set")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (delete_image, ["examples of the train split", "has 59", "has 60"]),
        (rename_class, ["class 2 of the train split", "has 'e'", "has 'd'"]),
        (replace_image, ["image 45 of the train split", "d/0005.png,"]),
        (move_image, ["files of the train split"]),
    ],
)
def test_a_copy_of_the_dataset_that_differs(tmp_path, original, change, words):
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    same, other = opened(original), opened(copy)
    facts = agreement.data_facts(same)
    assert agreement.data_facts(other) == facts  # the path is no part of it
    change(copy)
    line = explain(agreement.data_facts(opened(copy)), "n1 (process 1)", facts, "n0 (process 0)")
    assert "n1 (process 1)" in line
    assert all(word in line for word in words), line
    assert len(line) < 400


def test_further_validation_sets_and_weights_are_compared(tmp_path, original):
    facts = agreement.data_facts(opened(original, validation_sets=(f"v2=folder:{original}/val",)))
    assert facts["examples of the validation set v2"] == "12"
    weights = SimpleNamespace(params={"a": np.zeros(3)}, stats={})
    other = SimpleNamespace(params={"a": np.ones(3)}, stats={})
    found = [
        agreement.data_facts(opened(original), each)["model.init_from"]
        for each in (weights, other, weights)
    ]
    assert found[0] == found[2] != found[1]
