"""Callbacks receive what the log and the disk have, and change nothing of the run."""

import pytest

from largebatch.errors import UserError
from largebatch.tracking import Callback, read_rows
from tests.training.test_session import CONFIG, train
from tests.training.worlds import digests, rows, summary


class Recording(Callback):
    def __init__(self):
        self.rows, self.evaluations, self.checkpoints, self.ends = [], [], [], []

    def on_log(self, step, row):
        self.rows.append({"step": step, **row})
        row.clear()  # what a callback does with its copy is its own affair

    def on_evaluation(self, step, result):
        self.evaluations.append((step, result))

    def on_checkpoint(self, step, path):
        assert path.is_file()
        assert path.name == f"{step}.safetensors"
        self.checkpoints.append(step)

    def on_end(self, found):
        self.ends.append(found)


class Failing(Callback):
    def on_evaluation(self, step, result):
        if step == 12:
            raise KeyError("no such table")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("plain") / "run"
    train(CONFIG, workdir)
    return workdir


def test_callbacks_receive_the_log_and_change_no_bit(plain, tmp_path):
    recording = Recording()
    found = train(CONFIG, tmp_path, callbacks=(recording,))
    assert digests(tmp_path, 20) == digests(plain, 20)
    assert rows(tmp_path) == rows(plain)
    written = read_rows(tmp_path / "metrics.jsonl")
    assert recording.rows == written
    assert recording.evaluations == [
        (row["step"], {key: row[f"validation/{key}"] for key in ("loss", "top1", "top5")})
        for row in written
        if "validation/top1" in row
    ]
    assert [step for step, _ in recording.evaluations] == [4, 8, 12, 16, 20]
    assert recording.checkpoints == [4, 8, 12, 16, 20]
    assert recording.ends == [found]


def test_an_exception_ends_the_run_and_the_same_call_resumes_it(plain, tmp_path):
    with pytest.raises(UserError, match=r"callbacks: Failing\.on_evaluation .*test_callbacks") as e:
        train(CONFIG, tmp_path, callbacks=(Recording(), Failing()))
    assert isinstance(e.value.__cause__, KeyError)
    assert "\n" not in str(e.value)
    assert (summary(tmp_path)["status"], summary(tmp_path)["steps"]) == ("failed", 12)
    resumed = Recording()
    train(CONFIG, tmp_path, callbacks=(resumed,))
    assert digests(tmp_path, 20) == digests(plain, 20)
    assert resumed.rows[0]["step"] == 9  # after the newest checkpoint, that of step 8
    train(CONFIG, tmp_path, callbacks=(Failing(),))  # complete: nothing is called
