"""Training and loading from Python: the example of docs/api/index.md, and what else is accepted."""

import collections
import contextlib
import faulthandler
import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import largebatch
from largebatch.checkpoint import lock
from largebatch.config import default_config, freeze
from largebatch.errors import ConfigError, DataError, UserError
from largebatch.object_store import Bucket
from tests.training import own_models, worlds

ROOT = Path(largebatch.__file__).parents[1]


@pytest.mark.slow
def test_the_example_of_the_page(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/api/index.md").read_text()
    train, callback = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(train, "index.md", "exec"), names)
    *_, summary, share = capsys.readouterr().out.splitlines()
    status, _, top1 = summary.split()
    assert status == "complete"
    assert float(share) == pytest.approx(float(top1), abs=1e-6)
    assert float(top1) > 0.5
    exec(compile(callback, "index.md", "exec"), names)
    ended, best = capsys.readouterr().out.splitlines()  # nothing else: it is quiet
    assert ended.startswith("complete: ")
    found = json.loads(Path("runs/best/summary.json").read_text())
    assert float(best) >= found["top1"] > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda config: config, freeze], ids=["ConfigDict", "Config"])
def test_a_configuration_made_in_python(tmp_path, make, capsys):
    config = default_config()
    config.data.source = "digits"
    config.model.name, config.model.width, config.model.stem = "resnet10", 4, "small"
    config.batch.workers, config.batch.images_per_worker = 8, 16
    config.schedule.length, config.schedule.warmup, config.schedule.peak = "4 steps", "1 steps", 1.0
    given = {"workdir": tmp_path, "overrides": {"run.stop_after": "2 steps", "data.shuffle": False}}
    stopped = largebatch.train(make(config), **given)
    assert (stopped.status, stopped.steps) == ("stopped", 2)
    given["overrides"].pop("run.stop_after")
    assert largebatch.train(make(config), **given).steps == 4
    assert largebatch.train(make(config), **given).status == "complete"
    assert "--config=" not in capsys.readouterr().out  # there is no recipe file to name


def test_only_callbacks_are_taken(tmp_path):
    for wrong in (print, largebatch.Callback):
        with pytest.raises(ConfigError, match="callbacks"):
            largebatch.train("digits", workdir=tmp_path, callbacks=[wrong])
    assert not any(tmp_path.iterdir())


def test_the_import_is_light():
    code = "import sys, largebatch; print({'jax', 'flax', 'rich', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_mistake_names_the_option(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.seed"):
        largebatch.train("digits", workdir=tmp_path, overrides={"run.sede": 1})


SHORT = {
    **{f"model.{key}": value for key, value in worlds.SMALL.items()},
    "schedule.length": "4 steps",
    "schedule.warmup": "1 steps",
    "run.evaluate_every": "4 steps",
    "run.checkpoint_every": "2 steps",
    "run.log_every": "1 steps",
}


def state_of_the_process():
    """What a call must not change."""
    mask = os.umask(0)
    os.umask(mask)
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return {
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "descriptor": descriptor,
        "environment": {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
        "filters": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "path": list(sys.path),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "faulthandler": faulthandler.is_enabled(),
        "root logger": (list(logging.root.handlers), logging.root.level),
        "directory": os.getcwd(),
        "mask": mask,
        "jax": {k: v for k, v in jax.config.values.items() if "cache" in k or "log" in k},
        "streams": (sys.stdout, sys.stderr),
        "bytecode": sys.dont_write_bytecode,
    }


def threads_and_files():
    """The threads of this process and its open files, with their numbers."""
    names = (thread.name for thread in threading.enumerate())
    found = collections.Counter(name for name in names if not name.startswith("jax"))
    for entry in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):  # the directory that is being read
            found[os.readlink(entry)] += 1
    return found


class Raises(largebatch.Callback):
    """Raises in the middle of a run."""

    def __init__(self, error):
        self.error = error

    def on_log(self, step, row):
        raise self.error


@pytest.mark.parametrize(
    ("error", "more"),
    [
        (None, {}),
        (None, {"run.compile_cache": "off"}),
        (DataError, {"data.source": "folder:/absent"}),
        (ConfigError, {"run.sede": 1}),
        (KeyboardInterrupt, {}),
        (UserError, {}),
    ],
)
def test_nothing_of_a_call_outlives_it(error, more, tmp_path):
    callbacks = [Raises(error())] if error and not more else []
    before, opened = state_of_the_process(), threads_and_files()
    given = {"workdir": tmp_path / "run", "overrides": SHORT | more, "quiet": True}
    for _ in range(2):
        with pytest.raises(error) if error else contextlib.nullcontext():
            largebatch.train("digits", **given, callbacks=callbacks)
        gc.collect()
        after = state_of_the_process()
        assert {k: after[k] for k in after if after[k] != before[k]} == {}
        assert threads_and_files() - opened == {}
    if error is None:
        largebatch.load(tmp_path / "run", best=True, trust=[own_models.__name__])
        with pytest.raises(UserError, match="ema"):
            largebatch.load(tmp_path / "run", ema=True, trust=[own_models.__name__])
        assert state_of_the_process()["path"] == before["path"]


class Noise:
    """Images of noise with labels that a network can learn."""

    classes = ("dark", "bright")

    def __init__(self, argument, split, options):
        self.first = {"train": 0, "validation": 64}[split]

    def __len__(self):
        return 64

    def __getitem__(self, index):
        draw = np.random.default_rng(self.first + index)
        return draw.integers(0, 128, (8, 8, 3), np.uint8) + np.uint8(100 * (index % 2)), index % 2


def network(classes, *, rngs, dtype=None):
    return own_models.resnet(classes, rngs=rngs, dtype=dtype, channels=3)


@pytest.mark.slow
def test_objects_are_their_names(tmp_path):
    objects = {"model.name": network, "optimizer.name": optax.lion, "data.source": Noise}
    here = {"model.name": f"{__name__}:network", "optimizer.name": "optax:lion"}
    here |= {"data.source": f"{__name__}:Noise"}
    more = SHORT | {"schedule.peak": 1e-3, "data.shift": 0, "data.image_size": 8}
    found = []
    for name, given in (("objects", objects), ("texts", here)):
        options = more | given | {"batch.images_per_worker": 4, "batch.workers": 8}
        done = largebatch.train("digits", workdir=tmp_path / name, overrides=options)
        assert done.status == "complete"
        found.append(worlds.digests(tmp_path / name, 4))
    assert found[0] == found[1]


@pytest.mark.parametrize("value", [lambda classes, **_: None, object().__init__])
def test_an_object_without_a_name_is_refused(value, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.name: .*top level"):
        largebatch.train("digits", workdir=tmp_path, overrides={"model.name": value})


class Stops(largebatch.Callback):
    """Stops a run after its second row."""

    summary = None

    def on_log(self, step, row):
        return step == 2

    def on_end(self, summary):
        self.summary = summary


def test_a_callback_stops_a_run_that_the_same_call_continues(tmp_path):
    given = {"overrides": SHORT | {"run.log_every": "1 steps", "schedule.length": "8 steps"}}
    callback = Stops()
    stopped = largebatch.train("digits", workdir=tmp_path / "run", callbacks=[callback], **given)
    assert stopped.status == "stopped"
    assert 2 <= stopped.steps < 8
    assert callback.summary == stopped
    for name in ("run", "whole"):
        assert largebatch.train("digits", workdir=tmp_path / name, **given).status == "complete"
    assert worlds.digests(tmp_path / "run", 8) == worlds.digests(tmp_path / "whole", 8)


class TakesTheLock(largebatch.Callback):
    """Another process takes the run directory over, as of a computer that slept for a while."""

    def __init__(self, bucket):
        self.bucket = bucket

    def on_log(self, step, row):
        other = {"holder": "process 7 elsewhere", "token": "7", "beat": 0}
        self.bucket.write(lock.NAME, json.dumps(other).encode())
        self.bucket.write("summary.json", b"theirs")
        time.sleep(1.0)


def test_a_lost_directory_ends_the_call_and_not_the_interpreter(served, monkeypatch):
    monkeypatch.setattr("largebatch.fault_tolerance.watchdog.end_now", pytest.fail)
    monkeypatch.setattr(lock, "BEAT_S", 0.1)
    given = {"workdir": served[1], "overrides": SHORT, "quiet": True}
    bucket = Bucket(served[1])
    with pytest.raises(UserError, match="elsewhere"):
        largebatch.train("digits", **given, callbacks=[TakesTheLock(bucket)])
    assert bucket.read("summary.json")[0] == b"theirs"
    assert b"elsewhere" in bucket.read(lock.NAME)[0]
    assert not bucket.objects("checkpoints")
    bucket.delete(lock.NAME)
    assert largebatch.train("digits", **given).status == "complete"  # another call is not affected
