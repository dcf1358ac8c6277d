"""Checkpoints against everything that happens to them, in a folder and in an object store."""

import contextlib
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

from largebatch.checkpoint import checkpoints as stored
from largebatch.checkpoint import file
from largebatch.checkpoint.checkpoints import Checkpoints, path_of, steps_in
from largebatch.checkpoint.file import Progress
from largebatch.checkpoint.place import LocalPlace
from largebatch.config import Facts, freeze, override
from largebatch.config.resolution import resolve
from largebatch.errors import CheckpointError

ROOT = Path(__file__).parents[2]
CONFIG = freeze({"batch": {"workers": 8, "images_per_worker": 3}, "schedule": {"peak": 2.0}})
FACTS = Facts(1000, 100, 7, (16, 16, 2), devices=8)
PLAN = resolve(CONFIG, FACTS)


class State(NamedTuple):
    params: dict
    stats: dict
    optimizer: list


def tree(seed):
    """A state of every kind of array, other values for each seed."""
    draw = np.random.default_rng(seed)
    return State(
        params={"stem": {"kernel": draw.normal(size=(3, 3, 4)).astype(np.float32)}},
        stats={"mean": draw.normal(size=5), "empty": np.zeros((0, 3), np.float32)},
        optimizer=[
            {"velocity": draw.normal(size=(2, 3)).astype(ml_dtypes.bfloat16)},
            np.asarray(draw.integers(1 << 40), np.int64),
            np.asarray(draw.normal(), np.float32),
            draw.normal(size=4) > 0,
        ],
    )


LIKE = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree(0))


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()) for a, b in pairs
    )


@contextlib.contextmanager
def opened(place, keep=9, **options):
    """Checkpoints, and the list of their warnings."""
    told = []
    with contextlib.closing(Checkpoints(place, keep=keep, warn=told.append, **options)) as made:
        yield made, told


def newest(place, plan=PLAN, **options):
    """The step that is restored, and the warnings; whatever it is, it is what was saved."""
    with opened(place, **options) as (checkpoints, told):
        found = checkpoints.newest(plan, LIKE)
    assert found is None or same(found.state, tree(found.step))
    return found and found.step, told


def save(place, *steps, keep=9, **progress):
    with opened(place, keep, keep_best=True) as (checkpoints, told):
        for step in steps:
            checkpoints.save(tree(step), Progress(step, 24 * step, **progress), PLAN)
        checkpoints.wait()
    assert told == []


def test_what_is_restored_is_what_was_saved(place):
    progress = Progress(7, 168, 1.5, 0.25, 1.0, skips=2, memory={"row": {"images": 3.0}})
    with opened(place) as (checkpoints, told):
        assert checkpoints.newest(PLAN, LIKE) is None
        checkpoints.save(tree(7), progress, PLAN)
        checkpoints.wait()
        found = checkpoints.newest(PLAN, LIKE)
    assert (found.progress, found.table, told) == (progress, "", [])
    assert same(found.state, tree(7))
    assert place.files("checkpoints") == ["7.safetensors"]


def test_the_newest_the_best_and_those_of_an_uninterrupted_run_are_kept(place):
    accuracies = {1: 0.0, 2: 0.9, 3: -1.0, 4: 0.7, 5: 0.8}
    with opened(place, keep_best=True) as (checkpoints, _):
        assert checkpoints.exceeds_best(0.0)
        for step, top1 in accuracies.items():
            save(place, step, keep=2, validation_top1=top1)
            assert stored.best(place).step == min(step, 2)
        assert not checkpoints.exceeds_best(0.9)
    assert steps_in(place) == [5, 4, 2]
    save(place, 6, keep=2, for_stop=1)
    assert steps_in(place) == [6, 5, 4, 2]
    with opened(place) as (checkpoints, _):
        assert checkpoints.newest_path(9).endswith("/6.safetensors")
        assert checkpoints.rollback_path(5).endswith("/5.safetensors")
        assert checkpoints.newest(PLAN, LIKE, until=5).step == 5
        assert checkpoints.newest(PLAN, LIKE).step == 6
    save(place, 7, keep=2)
    assert steps_in(place) == [7, 5, 2]


def test_what_a_kill_left_is_deleted_at_the_end(place):
    """It came after the last save of a run, before the oldest checkpoint was deleted."""
    for step in range(1, 5):
        save(place, step, keep=4)
    with opened(place, keep=2) as (checkpoints, _):
        assert checkpoints.newest(PLAN, LIKE).step == 4
        assert steps_in(place) == [4, 3, 2, 1]
        checkpoints.wait()
    assert steps_in(place) == [4, 3]


def test_a_checkpoint_is_replaced_only_on_request(place):
    save(place, 3)
    for replace, expected in ((False, 0), (True, 5)):
        with opened(place) as (checkpoints, _):
            progress = Progress(3, 72, skips=5)
            checkpoints.save(tree(3), progress, PLAN, replace=replace)
            checkpoints.wait()
            assert checkpoints.newest(PLAN, LIKE).progress.skips == expected


FOREIGN = ("notes.md", "500.ckpt", "7", "best.safetensors", "07.safetensors")


def test_files_of_others_are_never_touched(place):
    for name in FOREIGN:
        place.write(f"checkpoints/{name}", b"theirs")
    for step in range(1, 6):
        save(place, step, keep=1)
    assert newest(place) == (5, [])
    assert sorted(place.files("checkpoints")) == sorted([*FOREIGN, "5.safetensors"])
    assert all(place.read(f"checkpoints/{name}") == b"theirs" for name in FOREIGN)


def test_damaged_checkpoints_are_set_aside_and_the_next_older_one_is_used(place):
    save(place, 2, 4, 6, 8)
    content = {step: place.read(path_of(step)) for step in (2, 4, 6, 8)}
    place.write(path_of(8), content[8][:-1])
    place.write(path_of(6), content[4])
    place.write(path_of(4), b"")
    found, told = newest(place, read_only=True)
    assert (found, len(told)) == (2, 3)
    assert steps_in(place) == [8, 6, 4, 2]
    found, told = newest(place)
    assert found == 2
    for step, line in zip((8, 6, 4), told, strict=True):
        assert f"{step}.safetensors.corrupt" in line
    assert steps_in(place) == [2]
    assert place.read("checkpoints/6.safetensors.corrupt") == content[4]
    place.delete(path_of(2))
    with pytest.raises(CheckpointError, match="--resume=never"):
        newest(place)


def test_a_file_of_another_program_is_set_aside_before_its_name_is_used(place):
    place.write(path_of(3), b"theirs")
    save(place, 3)
    assert newest(place) == (3, [])
    assert place.read("checkpoints/3.safetensors.corrupt") == b"theirs"


def test_the_options_and_the_data_of_a_run_must_suit(tmp_path):
    place = LocalPlace(tmp_path)
    place.create()
    facts = dataclasses.replace(FACTS, identity=5, content=7, validation_identity=3)
    with opened(place) as (checkpoints, _):
        checkpoints.save(tree(4), Progress(4, 96), resolve(CONFIG, facts))
        checkpoints.wait()

    def other(key, value):
        return resolve(override(CONFIG, key, value), facts)

    for same in (("norm.statistics", "precise"), ("run.log_every", "3 steps")):
        assert newest(place, other(*same))[0] == 4
    with pytest.raises(CheckpointError, match=r"schedule\.peak"):
        newest(place, other("schedule.peak", "1"))
    longer = other("schedule.length", "100 epochs")
    with pytest.raises(CheckpointError, match="--resume=extend"):
        newest(place, longer)
    assert newest(place, longer, extends=True)[0] == 4
    for change in ({"train_examples": 999}, {"content": 8}):
        with pytest.raises(CheckpointError, match="dataset"):
            newest(place, resolve(CONFIG, dataclasses.replace(facts, **change)))


def test_a_failed_save_is_repeated_and_two_end_the_run(tmp_path, monkeypatch):
    place = LocalPlace(tmp_path)
    place.create()
    write, fails = LocalPlace.write, iter([True, False, True, True])

    def failing(self, name, content):
        if next(fails, True):
            raise OSError(28, "No space left on device")
        write(self, name, content)

    monkeypatch.setattr(LocalPlace, "write", failing)
    with opened(place) as (checkpoints, told):
        checkpoints.save(tree(1), Progress(1, 24), PLAN)
        checkpoints.wait()
        assert steps_in(place) == [1]
        assert ["No space left" in line for line in told] == [True]
        checkpoints.save(tree(2), Progress(2, 48), PLAN)
        checkpoints.save(tree(3), Progress(3, 72), PLAN)
        with pytest.raises(CheckpointError, match=r"1\.safetensors.*free disk space"):
            checkpoints.save(tree(4), Progress(4, 96), PLAN)


def test_space_is_checked_before_training(tmp_path, monkeypatch):
    place = LocalPlace(tmp_path)
    place.create()
    needed = file.bytes_needed(LIKE)
    with opened(place, keep=1, keep_best=True) as (checkpoints, told):
        monkeypatch.setattr(place, "free_bytes", lambda: 3 * needed)
        checkpoints.check_space(LIKE)
        assert told == []
        monkeypatch.setattr(place, "free_bytes", lambda: needed)
        checkpoints.check_space(LIKE)
        assert "run.keep_checkpoints" in told[0]
        for step in (1, 2, 3):  # one of them is deleted for each that is written
            place.write(path_of(step), b"")
        checkpoints.check_space(LIKE)
        assert len(told) == 1
        monkeypatch.setattr(place, "free_bytes", lambda: needed - 1)
        with pytest.raises(CheckpointError, match="--workdir"):
            checkpoints.check_space(LIKE)


TWO = """
import sys
from pathlib import Path
from largebatch.parallel import processes
processes.initialise()
import jax
from largebatch.errors import UserError
from largebatch.checkpoint.file import Progress, Rejected
from largebatch.checkpoint.place import LocalPlace
from tests.checkpoint.test_checkpoints import LIKE, PLAN, path_of, opened, same, tree

directory, first = Path(sys.argv[1]), jax.process_index() == 0
found, place = [], LocalPlace(directory / "shared")
place.create()
with opened(place) as (checkpoints, told):
    for step in (2, 4, 6):
        checkpoints.save(tree(step), Progress(step), PLAN)
    checkpoints.wait()
    processes.wait_for_all("saved")

    def restore():
        stored = checkpoints.newest(PLAN, LIKE)
        found.append(stored.step if same(stored.state, tree(stored.step)) else None)

    restore()
    if first:
        place.write(path_of(6), b"{}")
    processes.wait_for_all("damaged")
    restore()
    if not first:  # process 0 has verified it, so it keeps its name
        read = checkpoints.read

        def fails_once(*_, **__):
            checkpoints.read = read
            raise Rejected("its disk is broken")

        checkpoints.read = fails_once
    try:
        restore()
    except UserError:
        found.append(0)
    restore()
every = processes.agree(hash(tuple(found)) % 2**60)
if first:
    print(every, found)
    # Under load there may also be a warning that saving is slow.
    print([("6." in line, "4." in line) for line in told if ".corrupt" in line])
"""


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_restore_the_same(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(TWO)
    command = [sys.executable, "scripts/launch_local.py", "--processes=2", "--", str(script)]
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-2:] == [
        "True [6, 4, 0, 4]",
        "[(True, False)]",
    ]
    names = LocalPlace(tmp_path / "shared").files("checkpoints")
    assert names == ["2.safetensors", "4.safetensors", "6.safetensors.corrupt"]
