"""TensorBoard files read back, Weights & Biases, MLflow, and users' own trackers."""

import importlib.machinery
import json
import math
import struct
import subprocess
import sys
import threading
import types

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from largebatch.errors import UserError
from largebatch.tracking import TensorBoardTracker, check_installed, hosted_tracker

CONFIG = {"config": {"run": {"seed": 3}, "batch": {"workers": 8}}, "plan": {"steps": 9}}


class Wandb(types.ModuleType):
    """The interface of wandb that is used."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
        self.started, self.metrics, self.rows, self.finished = [], [], [], []
        self.id = "made-up"

    def init(self, **options):
        self.started.append(options)
        self.id = options["id"] or "fresh"
        return self

    @staticmethod
    def Settings(**options):
        return options

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, row):
        self.rows.append(row)

    def finish(self, exit_code):
        self.finished.append(exit_code)


@pytest.fixture
def wandb(monkeypatch):
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return module


def opened(name, workdir, resumes=False, warn=pytest.fail):
    return hosted_tracker(name, workdir, resumes=resumes, config=CONFIG, warn=warn)


def test_wandb_gets_numbers_with_their_step(wandb, tmp_path):
    tracker = opened("wandb", tmp_path)
    tracker.scalars(3, {"loss": 2.5, "validation/top1": 0.5, "fingerprint": "ab"})
    tracker.event("checkpoint", 4, 400)
    tracker.event("train_stop", 4, 400)
    tracker.close()
    assert wandb.rows == [{"step": 3, "loss": 2.5, "validation/top1": 0.5}]
    assert wandb.finished == [0]
    assert ("*", "step") in wandb.metrics
    (options,) = wandb.started
    assert options["config"] == CONFIG


def test_a_resumed_run_continues_the_same_and_a_new_one_does_not(wandb, tmp_path):
    opened("wandb", tmp_path).close()
    assert wandb.finished == [1]  # it has failed: without train_stop
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "fresh"}
    opened("wandb", tmp_path, resumes=True).close()
    opened("wandb", tmp_path).close()
    assert [options["id"] for options in wandb.started] == [None, "fresh", None]


def test_a_server_that_does_not_answer_delays_nothing(wandb, tmp_path, monkeypatch):
    warnings, answers = [], threading.Event()
    monkeypatch.setattr(wandb, "log", lambda row: answers.wait(60))
    monkeypatch.setattr("largebatch.tracking.trackers.CLOSE_S", 0.05)
    tracker = opened("wandb", tmp_path, warn=warnings.append)
    tracker.scalars(1, {"loss": 1.0})
    tracker.close()
    assert len(warnings) == 1
    answers.set()


def test_a_refused_new_run_ends_and_a_resumed_one_continues(wandb, tmp_path, monkeypatch):
    def refuse(**_):
        raise RuntimeError("api_key not configured\nlong story")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError) as caught:
        opened("wandb", tmp_path)
    warnings = []
    assert opened("wandb", tmp_path, resumes=True, warn=warnings.append) is None
    for text in (*warnings, str(caught.value)):
        assert text.startswith("run.trackers=wandb: api_key not configured; ")
    assert len(warnings) == 1


@pytest.mark.filterwarnings("ignore")  # its own, in great number
def test_mlflow_itself(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    tracker = opened("mlflow", tmp_path)
    tracker.scalars(3, {"loss": 2.5, "validation/top1": 0.5, "fingerprint": "ab"})
    tracker.close()
    again = opened("mlflow", tmp_path, resumes=True)
    again.scalars(4, {"loss": math.nan})
    again.event("train_stop", 4, 400)
    again.close()
    identity = json.loads((tmp_path / "trackers.json").read_text())["mlflow"]
    client = MlflowClient()
    history = client.get_metric_history(identity, "loss")
    assert [(m.step, m.value) for m in history[:1]] == [(3, 2.5)]
    assert history[1].step == 4
    assert math.isnan(history[1].value)
    run = client.get_run(identity)
    assert run.data.params == {"run.seed": "3", "batch.workers": "8"}
    assert run.info.status == "FINISHED"


@pytest.mark.filterwarnings("ignore")
def test_wandb_itself_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = opened("wandb", tmp_path)
    tracker.scalars(3, {"loss": 2.5})
    tracker.close()
    (kept,) = (tmp_path / "wandb").glob("offline-run-*")
    identity = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    assert kept.name.endswith(identity)


class Own:
    """A user's own tracker."""

    opened, calls = [], []

    def __init__(self, workdir, identity, config, warn):
        self.opened.append((workdir, identity, config))
        self.identity = identity or "own-1"

    def scalars(self, step, values):
        if values.get("loss") == -1:
            raise ConnectionError("no route\nto host")
        self.calls.append((step, dict(values)))

    def event(self, name, step, samples, **values):
        self.calls.append((name, step, samples, values))

    def close(self):
        self.calls.append("close")


def test_a_users_own_tracker(tmp_path):
    Own.opened.clear()
    Own.calls.clear()
    name, warnings = f"{__name__}:Own", []
    check_installed(name)
    tracker = opened(name, tmp_path)
    tracker.scalars(1, {"loss": 2.0})
    tracker.event("step", 1, 8, top1=0.5)
    tracker.close()
    assert Own.calls == [
        (1, {"loss": 2.0}),
        ("step", 1, 8, {"top1": 0.5}),
        "close",
    ]
    tracker = opened(name, tmp_path, resumes=True, warn=warnings.append)
    assert Own.opened == [(tmp_path, None, CONFIG), (tmp_path, "own-1", CONFIG)]
    for _ in range(2):
        tracker.scalars(2, {"loss": -1})
    tracker.close()
    assert len(Own.calls) == 3  # nothing after its first failure
    (line,) = warnings
    assert name in line
    assert "\n" not in line


def half(workdir, identity, config, warn):
    return Own.scalars


def test_a_users_own_tracker_that_cannot_be_used(tmp_path):
    with pytest.raises(UserError, match=r"run\.trackers=.*half: .*scalars, event and close"):
        opened(f"{__name__}:half", tmp_path)
    with pytest.raises(UserError, match=r"run\.trackers='nowhere_at_all:x'"):
        check_installed("nowhere_at_all:x")


# ---- TensorBoard


def read_events(path):
    """Parses the TFRecord framing: length, its checksum, payload, its checksum."""
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        events.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return events


def files(workdir):
    return sorted((workdir / "tensorboard").iterdir())


def shown(workdir):
    """Applies TensorBoard's rule: files in the order of their names; the first START is a
    beginning, every later one purges the events of its step and after."""
    points, started = {}, False
    for path in files(workdir):
        for event in read_events(path):
            if event.session_log.status == SessionLog.START:
                if started:
                    for steps in points.values():
                        for step in [step for step in steps if step >= event.step]:
                            del steps[step]
                started = True
            for value in event.summary.value:
                points.setdefault(value.tag, {})[event.step] = value.simple_value
    return points


def test_tags_steps_and_values(tmp_path):
    tracker = TensorBoardTracker(tmp_path, resume_step=0)
    tracker.scalars(3, {"loss": 2.5, "samples": 96, "phase": "warm-up", "validation/top1": 0.25})
    tracker.scalars(4, {"loss": math.nan})
    tracker.scalars(2**40, {"größe/top1": -1e300, "top1": 0})
    tracker.close()
    (path,) = files(tmp_path)
    events = read_events(path)
    assert events[0].file_version == "brain.Event:2"
    points = shown(tmp_path)
    assert math.isnan(points["train/loss"].pop(4))
    assert points.pop("größe/top1") == {2**40: -math.inf}
    assert points == {
        "train/loss": {3: 2.5},
        "train/top1": {2**40: 0.0},
        "validation/top1": {3: 0.25},
    }


def run(workdir, steps, *, resume_step, scale=1.0):
    tracker = TensorBoardTracker(workdir, resume_step=resume_step)
    for step in steps:
        tracker.scalars(step, {"loss": scale * step})
    tracker.close()


def test_resume_purges_later_steps_and_keeps_the_rest(tmp_path):
    # All within one second, where file names made of the time alone would collide.
    run(tmp_path, range(1, 7), resume_step=0)
    run(tmp_path, range(5, 8), resume_step=4, scale=10.0)
    run(tmp_path, range(7, 9), resume_step=6, scale=100.0)
    assert len(files(tmp_path)) == 3
    assert shown(tmp_path) == {
        "train/loss": {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 50.0, 6: 60.0, 7: 700.0, 8: 800.0}
    }


def test_tensorflow_torch_and_jax_are_not_imported(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudnn')")
    code = (
        "import pathlib, sys\n"
        "import largebatch.tracking as tracking\n"
        "assert 'tensorboardX' not in sys.modules\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "tracking.TensorBoardTracker(pathlib.Path(sys.argv[1]), resume_step=0).close()\n"
        "assert not {'tensorflow', 'torch', 'jax', 'flax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], check=True)
