"""Preparations that are killed or fail, and the same command given again."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.run import Options, prepare
from largebatch.data.prepare.verify import verify
from largebatch.errors import DataError
from tests.data.prepare import fakes

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "prepare_imagenet.py"


def arguments(source, out, *options):
    return [str(SCRIPT), "--tars", str(source), "--out", str(out), "--allow-partial", *options]


@pytest.mark.multiprocess
def test_a_killed_preparation_with_workers_can_be_resumed(tmp_path):
    # Enough images that the first shard appears long before the last.
    store = Store(shorter=48, quality=90)
    files = {f"n01440764_{i}.JPEG": fakes.photo(i) for i in range(400)}
    source = fakes.write_tars(tmp_path / "tars", files)
    out = tmp_path / "killed"
    options = ["--shards", "10", "--shorter", "48", "--quality", "90", "--processes", "2"]
    command = [sys.executable, *arguments(source, out, *options)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    deadline = time.monotonic() + 120
    while not list(out.glob("imagenet2012/*/*train.array_record*")):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    run.kill()
    assert run.wait() == -signal.SIGKILL
    assert not list(out.rglob("dataset_info.json"))
    for folder in (out, tmp_path / "whole"):
        prepare(
            Options(out=folder, tars=source, partial=True, store=store, shards=10),
            lambda line: None,
        )
    assert fakes.contents(out) == fakes.contents(tmp_path / "whole")


class Faults:
    """Calls of the operating system, the n-th of which fails."""

    def __init__(self, patch, number):
        self.left = number
        for owner, name in (
            (os, "fsync"),
            (os, "replace"),
            (os, "open"),
            (os, "pread"),
            (Path, "open"),
            (Path, "mkdir"),
        ):
            patch.setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, function):
        def counting(*args, **options):
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return function(*args, **options)

        return counting


def refused(function, monkeypatch):
    """Let each call of the system in a function fail once; return their number."""
    messages = []
    for number in range(1, 1000):
        with monkeypatch.context() as patch:
            faults = Faults(patch, number)
            try:
                function(number)
            except DataError as error:
                messages.append(str(error))
        if faults.left > 0:
            assert all("Input/output error" in line and "\n" not in line for line in messages)
            return number - 1
    raise AssertionError("it does not end")


@pytest.mark.parametrize("store", [Store(), Store(shorter=16, quality=90)])
def test_after_an_error_of_the_system_the_same_command_continues(tmp_path, monkeypatch, store):
    source = fakes.write_tars(tmp_path / "tars", dict(list(fakes.train().items())[:3]))
    whole = tmp_path / "whole"

    def preparing(out):
        prepare(Options(out=out, tars=source, partial=True, store=store), lambda line: None)

    preparing(whole)
    count = refused(lambda number: preparing(tmp_path / f"{number}"), monkeypatch)
    # At least: the folder, the lock, the plan, two shards and their records, the metadata.
    assert count > 20
    for number in range(1, count + 1, 9):
        preparing(tmp_path / f"{number}")
        assert fakes.contents(tmp_path / f"{number}") == fakes.contents(whole)
    assert refused(lambda number: verify(whole, report=lambda line: None), monkeypatch) >= 4


@pytest.mark.multiprocess
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_full_disk_is_reported(tmp_path, processes):
    source = fakes.write_tars(tmp_path / "tars")
    command = arguments(source, tmp_path / "out", "--processes", str(processes))
    # Python ignores SIGXFSZ: writing more than the limit fails as on a full disk.
    limited = (
        "import os, resource, sys;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000));"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    run = subprocess.run(
        [sys.executable, "-c", limited, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.returncode == 2, run.stderr
    assert run.stderr.startswith(f"error: {tmp_path / 'out'}")
    assert run.stderr.count("\n") == 1
