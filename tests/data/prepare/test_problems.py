"""What the operating system refuses, told in a line wherever it happens."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from largebatch.data.prepare import problems
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.run import Options, prepare
from largebatch.data.prepare.verify import verify
from largebatch.errors import DataError
from tests.data.prepare import fakes

ROOT = Path(__file__).resolve().parents[3]
MENDED = "; give the same command again once that is mended"


def test_the_first_twenty_are_listed_and_the_rest_counted():
    lines = [f"line {i}" for i in range(21)]
    first = "; ".join(lines[:20])
    assert problems.counted("things", lines[:20]) == f"20 things: {first}"
    assert problems.counted("things", lines) == f"21 things: {first}; and 1 more"


def test_an_error_is_told_with_its_file_or_else_with_what_was_being_done():
    for error, message in (
        (OSError(errno.ENOSPC, "No space left", "there"), f"there: No space left{MENDED}"),
        (OSError(errno.ENOSPC, "No space left"), f"here: No space left{MENDED}"),
        (OSError("two\nlines"), f"here: two lines{MENDED}"),
    ):
        with pytest.raises(DataError) as caught, problems.system_errors(Path("here")):
            raise error
        assert str(caught.value) == message


class Faults:
    """Calls of the operating system, the n-th of which is refused."""

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
    """Calls a function until none of its calls is refused; the number of refusals."""
    told = []
    for number in range(1, 1000):
        with monkeypatch.context() as patch:
            faults = Faults(patch, number)
            try:
                function(number)
            except DataError as error:
                told.append(str(error))
        if faults.left > 0:
            assert all("Input/output error" in line and "\n" not in line for line in told)
            return number - 1
    raise AssertionError("no end")


@pytest.mark.parametrize("store", [Store(), Store("decoded", size=16)])
def test_a_refusal_anywhere_is_told_and_the_same_command_goes_on(tmp_path, monkeypatch, store):
    source = fakes.write_tars(tmp_path / "tars", dict(list(fakes.train().items())[:3]))
    whole = tmp_path / "whole"

    def preparing(out):
        prepare(Options(out=out, tars=source, partial=True, store=store), lambda line: None)

    preparing(whole)
    count = refused(lambda number: preparing(tmp_path / f"{number}"), monkeypatch)
    # At least: the folder, two locks, two indices, the plan, two shards and lines, the metadata.
    assert count > 25
    for number in range(1, count + 1, 9):
        preparing(tmp_path / f"{number}")
        assert fakes.contents(tmp_path / f"{number}") == fakes.contents(whole)
    assert refused(lambda number: verify(whole, say=lambda line: None), monkeypatch) >= 4


@pytest.mark.multiprocess
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("limit", [600, 30_000])  # bytes: of the tars' index, of a shard
def test_a_disk_that_takes_no_more_is_told(tmp_path, limit, processes):
    source = fakes.write_tars(tmp_path / "tars")

    command = ["scripts/prepare_imagenet.py", "--tars", source, "--out", tmp_path / "out"]
    # Replaced by the command once limited. Python ignores SIGXFSZ: writing fails as on a full disk.
    limited = (
        "import os, resource, sys;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    command = [*command, "--allow-partial", "--processes", str(processes)]
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
    assert run.stderr.endswith(f"{MENDED}\n")
    assert "File too large" in run.stderr
    assert run.stderr.count("\n") == 1
