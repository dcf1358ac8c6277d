"""Preparations killed with SIGKILL, and what the same command makes of what they leave."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from largebatch.data.prepare import ledger
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.run import Options, prepare
from tests.data.prepare import fakes

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "prepare_imagenet.py"

# Kills itself when the n-th file is about to take its name, or has just taken it.
_KILLED = """
import os, runpy, signal, sys
when, number, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]
replace, count = os.replace, 0
def counting(*names):
    global count
    count += 1
    if count == number and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*names)
    if count == number and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = counting
sys.argv = sys.argv[3:]
runpy.run_path(script, run_name="__main__")
"""


def arguments(source, out, *options):
    return [str(SCRIPT), "--tars", str(source), "--out", str(out), "--allow-partial", *options]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_killed_at_any_point_it_ends_with_the_same_files(tmp_path):
    source = fakes.write_tars(tmp_path / "tars")
    out = tmp_path / "killed"
    command = arguments(source, out, "--shards", "3", "--processes", "1")

    def killed(when, number):
        """Of the files that a run names, kills it at one; returns the names that are there."""
        run = subprocess.run([sys.executable, "-c", _KILLED, when, str(number), *command], cwd=ROOT)
        assert run.returncode == -signal.SIGKILL
        return [name.rpartition("/")[2] for name in fakes.contents(out) if "/.prepare/" not in name]

    def shards(found):
        return len([name for name in found if "-of-" in name and not name.startswith(".")])

    # Two indices, the plan, six shards, three files for TFDS, the manifest.
    assert shards(killed("after", 5)) == 2  # the second is not in the journal
    assert shards(killed("before", 3)) == 3  # it was written again
    found = killed("after", 5)
    assert shards(found) == 6
    assert "features.json" in found
    assert "dataset_info.json" not in found
    found = killed("before", 4)
    assert "dataset_info.json" in found
    assert "manifest.json" not in found
    assert subprocess.run([sys.executable, *command], cwd=ROOT).returncode == 0
    whole = Options(out=tmp_path / "whole", tars=source, partial=True, shards=3)
    prepare(whole, lambda line: None)
    assert fakes.contents(out) == fakes.contents(tmp_path / "whole")


@pytest.mark.multiprocess
def test_workers_of_a_killed_preparation_do_no_harm(tmp_path):
    # Large enough squares that the first shard appears long before the last.
    store = Store("decoded", size=768)
    files = {f"n01440764_{i}.JPEG": fakes.photo(i) for i in range(40)}
    source = fakes.write_tars(tmp_path / "tars", files)
    out = tmp_path / "killed"
    options = ["--shards", "10", "--store", "decoded", "--size", "768", "--processes", "2"]
    command = [sys.executable, *arguments(source, out, *options)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    deadline = time.monotonic() + 120
    while not list(out.glob("train-images-*")):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    run.kill()
    assert run.wait() == -signal.SIGKILL
    assert not (out / "index.json").exists()
    for folder in (out, tmp_path / "whole"):
        prepare(
            Options(out=folder, tars=source, partial=True, store=store, shards=10),
            lambda line: None,
        )
    assert fakes.contents(out) == fakes.contents(tmp_path / "whole")


def test_what_a_kill_leaves_in_the_journal_is_read_up_to_there(tmp_path):
    source = fakes.write_tars(tmp_path / "tars")
    options = Options(out=tmp_path / "out", tars=source, partial=True, shards=4)
    folder = prepare(options, lambda line: None)
    whole = fakes.contents(folder)
    manifest = ledger.read_manifest(folder)
    shards = ledger.shards_of(manifest)
    (folder / "manifest.json").unlink()
    (folder / "dataset_info.json").unlink()
    book = ledger.Ledger(folder)
    book.begin(manifest["plan"])
    for shard in shards[:3]:
        book.add(shard)
    journal = book.work / "done.jsonl"
    journal.write_text(journal.read_text()[:-20])
    book.add(shards[3])
    assert sorted(book.shards(manifest["plan"])) == [("train", 0), ("train", 1), ("train", 3)]
    lines = []
    prepare(options, lines.append)
    assert "3 shards are there; 5 to go" in lines
    assert fakes.contents(folder) == whole
