"""Checkpoints against everything that happens to them, on small trees."""

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

from largebatch import parallel
from largebatch.checkpoint import arrays as stored_arrays
from largebatch.checkpoint import directories as checkpoint_directories
from largebatch.checkpoint import manifest
from largebatch.checkpoint import run_directory as workdir
from largebatch.checkpoint.manager import Checkpoints
from largebatch.checkpoint.manifest import Progress, Rejected
from largebatch.config import Facts, freeze, override, resolve
from largebatch.errors import CheckpointError

ROOT = Path(__file__).parents[2]
CONFIG = freeze({"batch": {"workers": 8, "images_per_worker": 3}, "schedule": {"peak": 2.0}})
FACTS = Facts(1000, 100, 7, (16, 16, 2), devices=8)
PLAN = resolve(CONFIG, FACTS)


class State(NamedTuple):
    params: dict
    stats: dict
    optimizer: list


def tree(seed, kernel=(3, 3, 4)):
    """A state of every kind of array, other values for each seed."""
    draw = np.random.default_rng(seed)
    return State(
        params={"stem": {"kernel": draw.normal(size=kernel).astype(np.float32)}},
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
def opened(directory, keep=9, **options):
    """Checkpoints, and the list of their warnings."""
    told = []
    made = Checkpoints(directory, keep=keep, warn=told.append, **options)
    with contextlib.closing(made):
        yield made, told


def newest(directory, **options):
    """What is restored, and the warnings; whatever it is, it is what was saved."""
    with opened(directory, **options) as (checkpoints, told):
        found = checkpoints.newest(PLAN, LIKE)
    assert found is None or same(found.state, tree(found.step))
    return found and found.step, told


def save(directory, *steps, keep=9):
    with opened(directory, keep) as (checkpoints, told):
        for step in steps:
            checkpoints.save(tree(step), Progress(step, 24 * step), PLAN)
        checkpoints.wait()
    assert told == []


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def files(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def reseal(directory, **fields):
    """Give a checkpoint's manifest other fields, and the digest that belongs to them."""
    path = directory / manifest.NAME
    body = json.loads(path.read_bytes()) | fields
    del body["digest"]
    path.write_bytes(manifest.sealed(body))


def described_files(directory):
    return {
        path.relative_to(directory).as_posix(): {
            "bytes": path.stat().st_size,
            "digest": manifest.digest_of([path.read_bytes()]),
        }
        for path in files(directory / "arrays")
    }


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Two checkpoints, not to be touched."""
    directory = tmp_path_factory.mktemp("pristine") / "checkpoints"
    save(directory, 4, 8)
    return directory


@pytest.fixture
def copied(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "checkpoints")


def test_what_is_restored_is_what_was_saved(tmp_path):
    progress = Progress(7, 168, 1.5, 0.25, 1.0, skips=2, rollbacks=1)
    with opened(tmp_path / "a" / "b") as (checkpoints, told):
        assert checkpoints.newest(PLAN, LIKE) is None
        checkpoints.save(tree(7), progress, PLAN)
        checkpoints.wait()
        found = checkpoints.newest(PLAN, LIKE)
        assert same(found.state, tree(7))
        assert (found.progress, found.table, told) == (progress, "", [])
        assert (checkpoints.steps(), checkpoints.latest_step()) == ([7], 7)
        assert names(tmp_path / "a" / "b") == ["7"]
        size = sum(path.stat().st_size for path in files(checkpoints.path(7) / "arrays"))
        assert size <= stored_arrays.bytes_needed(LIKE)


def test_a_saved_state_may_be_donated(tmp_path):
    mesh = parallel.make_mesh(jax.devices(), 1)
    sharding = parallel.replicated(mesh)
    values = np.random.default_rng(0).normal(size=(64, 1024)).astype(np.float32)
    state = {"w": jax.device_put(values, sharding), "n": jax.device_put(np.int32(5), sharding)}
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)
    overwrite = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 1, s), donate_argnums=0)
    with opened(tmp_path) as (checkpoints, _):
        checkpoints.save(state, Progress(1), PLAN)
        jax.block_until_ready(overwrite(state))
        assert state["w"].is_deleted()
        stored = checkpoints.newest(PLAN, like).state
    np.testing.assert_array_equal(stored["w"], values)
    placed = stored_arrays.on_devices(stored, like)
    assert placed["w"].sharding == placed["n"].sharding == sharding
    for shard in placed["w"].addressable_shards:
        np.testing.assert_array_equal(shard.data, values)
    assert placed["n"].dtype == jnp.int32
    assert int(placed["n"]) == 5


def test_any_flipped_bit_of_any_file_is_found(copied):
    draw = random.Random(0)
    path = copied / "8"
    seen = set()
    for file in files(path):
        whole = file.read_bytes()
        for position in {0, len(whole) * 8 - 1, *(draw.randrange(len(whole) * 8) for _ in "12345")}:
            damaged = bytearray(whole)
            damaged[position // 8] ^= 1 << position % 8
            file.write_bytes(damaged)
            with pytest.raises(Rejected) as caught:
                checkpoint_directories.read(path, PLAN, LIKE)
            seen.add(str(caught.value).split()[0])
            assert "\n" not in str(caught.value)
        file.write_bytes(whole)
    assert len(seen) == len(files(path))  # each by its name
    assert same(checkpoint_directories.read(path, PLAN, LIKE).state, tree(8))


DAMAGES = {
    "flip": lambda path: path.write_bytes(
        bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]
    ),
    "truncate": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "grow": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "remove": lambda path: path.unlink(),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_sends_the_run_to_the_checkpoint_before(pristine, tmp_path, damage):
    for number, file in enumerate(files(pristine / "8")):
        directory = shutil.copytree(pristine, tmp_path / str(number))
        DAMAGES[damage](directory / file.relative_to(pristine))
        left = len(files(directory))
        step, told = newest(directory)
        assert (step, names(directory)) == (4, ["4", "8.corrupt"])
        assert len(files(directory)) == left  # nothing is deleted
        assert len(told) == 1
        assert told[0].startswith(f"checkpoint {directory / '8'} is not used: ")
        assert told[0].endswith(" 8.corrupt")
        assert newest(directory) == (4, [])  # said once


def test_a_link_out_of_a_checkpoint_is_refused(copied, tmp_path):
    target = next(path for path in files(copied / "8") if path.name == "_METADATA")
    target.rename(tmp_path / "outside")
    target.symlink_to(tmp_path / "outside")
    step, told = newest(copied)
    assert step == 4
    assert "'_METADATA' is not a regular file" in told[0]


def test_a_file_too_many_among_the_arrays_is_refused_elsewhere_not(copied):
    (copied / "8" / "notes.txt").write_text("the good one")
    assert newest(copied) == (8, [])
    (copied / "8" / "arrays" / "_sharding").write_text("{}")
    step, told = newest(copied)
    assert step == 4
    assert "'arrays/_sharding' is not in the manifest" in told[0]


def test_other_values_in_files_of_the_right_size_and_digest_are_refused(copied):
    shutil.rmtree(copied / "8" / "arrays")
    shutil.copytree(copied / "4" / "arrays", copied / "8" / "arrays")
    reseal(copied / "8", files=described_files(copied / "8"))
    step, told = newest(copied)
    assert step == 4
    assert "does not have the shape, type or digest of the manifest" in told[0]


def test_what_is_no_checkpoint_is_passed_over(copied, tmp_path):
    (copied / "12").mkdir()  # empty
    shutil.copytree(copied / "8", copied / "16")  # of another step
    shutil.copytree(copied / "8", copied / "20")
    (copied / "20" / manifest.NAME).unlink()
    shutil.copytree(copied / "8", copied / "24" / "24")
    others = ["007", "1e3", "28.tmp", "notes", "²", "-3", "9" * 30]
    for name in others:
        shutil.copytree(copied / "8", copied / name)
    (copied / "36").write_text("a file")
    (copied / ".40.partial" / "arrays").mkdir(parents=True)
    shutil.copytree(copied / "8", copied / ".44.partial")  # complete but for its name
    shutil.copytree(copied / "4", copied / ".2.deleting")
    step, told = newest(copied)
    assert step == 8
    reasons = [text.split("is not used: ")[1] for text in told]
    assert reasons == [
        "it has no manifest.json; renamed to 24.corrupt",
        "it has no manifest.json; renamed to 20.corrupt",
        "the manifest is that of step 8; renamed to 16.corrupt",
        "it has no manifest.json; renamed to 12.corrupt",
    ]
    aside = ["12.corrupt", "16.corrupt", "20.corrupt", "24.corrupt"]
    assert names(copied) == sorted([*others, *aside, "36", "4", "8"])


def test_when_all_are_damaged_no_run_begins_anew(copied, tmp_path):
    for step in ("4", "8"):
        (copied / step / manifest.NAME).write_text("{}")
    with pytest.raises(CheckpointError, match=r"no checkpoint .*\(2 rejected\).*never"):
        newest(copied)
    assert names(copied) == ["4.corrupt", "8.corrupt"]
    # Nor does the next start; and the directory is not put aside as that of a run without one.
    assert workdir.prepare(tmp_path, archive=False) is None
    with pytest.raises(CheckpointError, match=r"marked as corrupt; .*--resume=never"):
        newest(copied)
    assert workdir.prepare(tmp_path, archive=True) == tmp_path / "previous" / "1"
    assert newest(copied) == (None, [])


def test_names_of_damaged_checkpoints_are_counted_up(copied):
    for number in ("", "-2", "-3"):
        shutil.copytree(copied / "4", copied / "12")
        assert newest(copied)[0] == 8
        assert (copied / f"12.corrupt{number}").is_dir()


def test_a_reader_changes_nothing(copied):
    (copied / "8" / manifest.NAME).write_text("{}")
    (copied / ".12.partial").mkdir()
    (copied / ".1.deleting").mkdir()
    before = sorted(copied.rglob("*"))
    step, told = newest(copied, read_only=True)
    assert step == 4
    assert told == [
        f"checkpoint {copied / '8'} is not used: manifest.json does not match its digest"
    ]
    assert sorted(copied.rglob("*")) == before
    assert newest(copied.parent / "nowhere", read_only=True) == (None, [])
    assert not (copied.parent / "nowhere").exists()


def test_the_newest_are_kept(tmp_path):
    for odd in ("1.corrupt", "2"):  # set aside, and without a manifest
        (tmp_path / odd).mkdir()
    save(tmp_path, 3, 5, 7, 9, keep=2)
    assert names(tmp_path) == ["1.corrupt", "2", "7", "9"]
    save(tmp_path, 11, keep=1)
    assert names(tmp_path) == ["1.corrupt", "11", "2"]


def test_the_best_is_kept_too(tmp_path):
    accuracies = {2: 0.5, 4: 0.7, 6: -1.0, 8: 0.7, 10: 0.6, 12: 0.2}
    left = []
    with opened(tmp_path, keep=2, keep_best=True) as (checkpoints, told):
        assert checkpoints.exceeds_best(0.0)
        for step, top1 in accuracies.items():
            checkpoints.save(tree(step), Progress(step, validation_top1=top1), PLAN)
            checkpoints.wait()
            left.append([int(name) for name in sorted(names(tmp_path), key=int)])
        assert [checkpoints.exceeds_best(top1) for top1 in (0.7, 0.71)] == [False, True]
        assert checkpoints.newest(PLAN, LIKE).step == 12
    assert told == []
    assert left == [[2], [2, 4], [4, 6], [4, 6, 8], [4, 8, 10], [4, 10, 12]]
    assert checkpoint_directories.best(tmp_path) == Progress(4, validation_top1=0.7)
    with opened(tmp_path) as (checkpoints, _):
        assert not checkpoints.exceeds_best(1.0)  # not asked for
    # A manifest that cannot be read is no candidate.
    (tmp_path / "4" / manifest.NAME).write_text("{}")
    assert checkpoint_directories.best(tmp_path).step == 10


def test_a_checkpoint_without_the_accuracy_of_an_earlier_version(copied):
    progress = json.loads((copied / "8" / manifest.NAME).read_text())["progress"]
    assert progress.pop("validation_top1") == -1.0
    reseal(copied / "8", progress=progress)
    assert newest(copied) == (8, [])
    assert checkpoint_directories.best(copied) is None


def test_a_checkpoint_without_the_content_of_an_earlier_version(copied):
    body = json.loads((copied / "8" / manifest.NAME).read_text())
    assert body["facts"].pop("content") == 0
    run = {name: body[name] for name in ("config", "facts")}
    text = json.dumps(run, indent=1, sort_keys=True)
    reseal(copied / "8", **run, plan=hashlib.sha256(text.encode()).hexdigest())
    assert newest(copied) == (8, [])


def test_a_checkpoint_that_is_there_is_not_written_again(copied):
    stamp = (copied / "8" / manifest.NAME).stat()
    save(copied, 8)
    assert (copied / "8" / manifest.NAME).stat() == stamp


def test_another_format_is_an_error_and_stays_where_it_is(copied, tmp_path):
    shutil.copytree(copied / "8", copied / "12")
    reseal(copied / "12", format=3)
    with pytest.raises(CheckpointError, match=r"12 .* version: its format is 3, expected"):
        newest(copied)
    shutil.rmtree(copied / "12")
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    with ocp.CheckpointManager(copied, item_names=("state", "run"), options=options) as manager:
        state = {"w": np.ones(3, np.float32)}
        run = ocp.args.JsonSave({"format": 2})
        manager.save(12, args=ocp.args.Composite(state=ocp.args.StandardSave(state), run=run))
    with pytest.raises(CheckpointError, match=r"12 .* version: its format is 2 or old"):
        newest(copied)
    assert names(copied) == ["12", "4", "8"]


def test_other_options_arrays_and_data_are_errors_and_not_corruption(copied):
    def restored(config=CONFIG, like=LIKE, **facts):
        plan = resolve(config, dataclasses.replace(FACTS, **facts))
        with opened(copied) as (checkpoints, told):
            found = checkpoints.newest(plan, like)
        assert told == []
        return found

    assert restored().table == ""
    table = restored(override(CONFIG, "data.threads", "3"), devices=4).table
    assert table.splitlines()[1].split() == ["data.threads", "0", "3", "same"]
    with pytest.raises(CheckpointError, match=r"(?s)mathematics.*schedule\.peak .* changes"):
        restored(override(CONFIG, "schedule.peak", "1.5"))
    with pytest.raises(CheckpointError, match=r"train_examples=1000, got 999"):
        restored(train_examples=999)
    wider = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree(0, (3, 3, 8)))
    expected = r"array params/stem/kernel is \(3, 3, 4\) float32, expected \(3, 3, 8\) float"
    with pytest.raises(CheckpointError, match=expected):
        restored(like=wider)
    with pytest.raises(CheckpointError, match=r"array stats is not there, expected"):
        restored(like=LIKE._replace(stats=jax.ShapeDtypeStruct((), np.float32)))
    assert names(copied) == ["4", "8"]


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return open, (self.marker, "w")


def test_a_pickle_is_refused_and_never_read(pristine, tmp_path):
    marker = tmp_path / "marker"
    payload = pickle.dumps(Payload(marker))
    for number, file in enumerate(files(pristine / "8")):
        for sealed in (False, True):  # as it is; and with a manifest that vouches for it
            directory = shutil.copytree(pristine, tmp_path / f"{number}{sealed}")
            target = directory / file.relative_to(pristine)
            target.write_bytes(payload)
            if sealed and target.name != manifest.NAME:
                reseal(directory / "8", files=described_files(directory / "8"))
            step, told = newest(directory)
            # A digest that vouches for a file which Orbax does not need changes no array.
            assert (step, len(told)) in {(4, 1), (8, 0)}
            assert sealed or step == 4
    assert not marker.exists()
    pickle.loads(payload).close()
    assert marker.exists()  # it would have been made


def test_a_failed_save_is_told_and_a_second_one_ends_the_run(tmp_path):
    save(tmp_path, 1)
    with opened(tmp_path) as (checkpoints, told):
        for step in (2, 3):
            (tmp_path / f".{step}.partial").write_text("")  # where a directory should be made
            checkpoints.save(tree(step), Progress(step), PLAN)
        assert len(told) == 1
        assert told[0].startswith("a checkpoint could not be written: step 2, FileExistsError: ")
        assert f"; the newest is {tmp_path / '1'}; training continues" in told[0]
        with pytest.raises(CheckpointError, match=r"two consecutive .*: step 3, .*; the newest is"):
            checkpoints.save(tree(4), Progress(4), PLAN)
        assert checkpoints.newest(PLAN, LIKE).step == 1
    assert len(told) == 1
    with opened(tmp_path) as (checkpoints, told):
        (tmp_path / ".3.partial").write_text("")
        checkpoints.save(tree(3), Progress(3), PLAN)
        with pytest.raises(CheckpointError, match="step 3"):
            checkpoints.wait()
        assert len(told) == 1
        (tmp_path / ".3.partial").unlink()
        checkpoints.wait()
        assert checkpoints.newest(PLAN, LIKE).step == 3
        # Each failure is followed by a success: never two in a row.
        for step in (4, 6):
            (tmp_path / f".{step}.partial").write_text("")
            checkpoints.save(tree(step), Progress(step), PLAN)
            checkpoints.save(tree(step + 1), Progress(step + 1), PLAN)
        (tmp_path / ".8.partial").write_text("")
        checkpoints.save(tree(8), Progress(8), PLAN)
    assert [text.split(": ")[1].split(",")[0] for text in told[2:]] == [
        "step 4",
        "step 6",
        "step 8",
    ]
    assert newest(tmp_path) == (7, [])


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file"):
        Checkpoints(tmp_path / "file", keep=1, warn=pytest.fail)


def test_space_is_looked_at_before_training(tmp_path, monkeypatch):
    needed = stored_arrays.bytes_needed(LIKE)
    usage = shutil.disk_usage(tmp_path)
    save(tmp_path, 1)
    for free, said in ((needed - 1, "error"), (needed, "warning"), (needed * 3, "")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, f=free: usage._replace(free=f))
        with opened(tmp_path, keep=3) as (checkpoints, told):
            if said == "error":
                with pytest.raises(CheckpointError, match="free"):
                    checkpoints.check_space(LIKE)
                continue
            checkpoints.check_space(LIKE)  # one is there: two more, and one while it is written
        assert len(told) == (said == "warning")
        assert not told or "run.keep_checkpoints=3" in told[0]


FULL = """
import json, os, resource, sys
from pathlib import Path
from largebatch.errors import CheckpointError
from largebatch.checkpoint.manifest import Progress
from tests.checkpoint.test_manager import LARGE, LARGE_LIKE, PLAN, opened, same

directory, fill = Path(sys.argv[1]), sys.argv[2] == "fill"
errors, restored = [], []
with opened(directory / "checkpoints", keep=2) as (checkpoints, told):
    for step in (1, 2):
        checkpoints.save(LARGE(step), Progress(step), PLAN)
        checkpoints.wait()
    if fill:
        with open(directory / "other", "wb") as other:
            free = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
            other.write(bytes(free - 2**19))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, resource.RLIM_INFINITY))
    for step in (3, 4, 5):
        try:
            checkpoints.save(LARGE(step), Progress(step), PLAN)
        except CheckpointError as error:
            errors.append(str(error))
    names = sorted(os.listdir(directory / "checkpoints"))
    found = checkpoints.newest(PLAN, LARGE_LIKE)
    restored.append((found.step, same(found.state, LARGE(found.step))))
    if fill:
        os.unlink(directory / "other")
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    checkpoints.wait()
    found = checkpoints.newest(PLAN, LARGE_LIKE)
    restored.append((found.step, same(found.state, LARGE(found.step))))
print(json.dumps({"told": told, "errors": errors, "names": names, "restored": restored}))
"""


def LARGE(seed):
    """More than a MiB, in as many arrays as make one that fails leave others in flight."""
    draw = np.random.default_rng(seed)
    return {f"w{n}": draw.normal(size=1024).astype(np.float32) for n in range(300)}


LARGE_LIKE = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), LARGE(0))


def test_a_full_disk(tmp_path):
    script, place = tmp_path / "full.py", tmp_path / "mounted"
    script.write_text(FULL)
    place.mkdir()
    run = [sys.executable, str(script), str(place)]
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=6m none "$0" && exec "$@"']
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    can_mount = shutil.which("unshare") and not subprocess.call([*mount, str(place), "true"])
    command = [*mount, str(place), *run, "fill"] if can_mount else [*run, "limit"]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    print(said)
    # The run goes on after the first, and the second stops it; what there was is untouched.
    assert [text.split(", ")[0] for text in said["told"]] == [
        "a checkpoint could not be written: step 3",
        "a checkpoint could not be written: step 4",
    ]
    assert said["told"][0].endswith("; training continues")
    assert said["told"][1].endswith("; trying once more")
    (error,) = said["errors"]
    assert error.startswith("two consecutive checkpoints could not be written: step 4, ")
    for text in (said["told"][0], error):
        assert "1.5 MiB" in text
        assert str(place / "checkpoints" / "2") in text
        assert "No space left on device" in text or not can_mount
        assert "0.5 MiB free in" in text or not can_mount
    assert said["names"] == ["1", "2"]
    # Given room, the last one is written after all.
    assert said["restored"] == [[2, True], [4, True]]


def accuracy(step):
    """Some accuracy, which rises and falls."""
    return random.Random(step).random()


def save_forever(directory, ready, first):
    """In a child: go on from the newest checkpoint, until killed."""
    with opened(directory, keep=2, keep_best=True) as (checkpoints, told):
        found = checkpoints.newest(PLAN, LIKE)
        step = found.step if found else 0
        while not told:
            step += 1
            if first:
                ready.set()
            progress = Progress(step, validation_top1=accuracy(step))
            checkpoints.save(tree(step), progress, PLAN)
            if not first:
                checkpoints.wait()
                ready.set()


def test_killed_at_any_moment_of_saving(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["largebatch.checkpoint.manager"])
    draw, step, partial = random.Random(0), 0, 0
    for trial in range(15):
        ready = context.Event()  # at the first save of all, then after the first of each child
        child = context.Process(target=save_forever, args=(tmp_path, ready, trial < 3))
        child.start()
        assert ready.wait(600)
        time.sleep(draw.uniform(0, 0.1))
        child.kill()
        child.join()
        assert child.exitcode == -9
        partial += any(name.endswith((".partial", ".deleting")) for name in names(tmp_path))
        found, told = newest(tmp_path)
        assert told == []  # complete, or not there
        assert (found or 0) >= step
        step = found or 0
        assert len(names(tmp_path)) <= 4  # the newest two, one more during a save, and the best
        assert all(name.isdigit() for name in names(tmp_path))
        best = checkpoint_directories.best(tmp_path)
        assert best is None or best.step == max(range(1, step + 1), key=accuracy)
    print(step, partial)
    assert step >= 12
    assert partial >= 1


TWO = """
import sys
from pathlib import Path
from largebatch.parallel import processes
processes.initialise()
import jax
from largebatch.errors import CheckpointError
from largebatch.checkpoint import directories as checkpoint_directories
from largebatch.checkpoint.manifest import NAME, Progress, Rejected
from tests.checkpoint.test_manager import LIKE, PLAN, opened, same, tree

directory, first = Path(sys.argv[1]), jax.process_index() == 0
found = []
with opened(directory / "shared") as (checkpoints, told):
    for step in (2, 4, 6):
        checkpoints.save(tree(step), Progress(step), PLAN)
    checkpoints.wait()

    def restore():
        stored = checkpoints.newest(PLAN, LIKE)
        found.append(stored.step if same(stored.state, tree(stored.step)) else None)

    restore()
    if first:
        (checkpoints.path(6) / NAME).write_text("{}")
    processes.wait_for_all("damaged")
    restore()
    if not first:  # what one process alone cannot read, none takes
        read = checkpoint_directories.read

        def fails_once(*_, **__):
            checkpoint_directories.read = read
            raise Rejected("its disk is broken")

        checkpoint_directories.read = fails_once
    restore()
with opened(directory / f"own_{jax.process_index()}") as (checkpoints, _):
    try:  # the second sees none
        checkpoints.save(tree(2), Progress(2), PLAN)
        checkpoints.wait()
        checkpoints.newest(PLAN, LIKE)
    except CheckpointError as error:
        found.append("processes share" in str(error))
every = processes.agree(hash(tuple(found)) % 2**60)
if first:
    print(every, found)
    print(told)
"""


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_restore_the_same(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(TWO)
    command = [sys.executable, "scripts/launch_local.py", "--processes=2", "--", str(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-2] == "True [6, 4, 2, True]"
    told = done.stdout.splitlines()[-1]
    assert re.findall(r"(\w+) is not used: (.+?); renamed to ([\w.]+)'", told) == [
        ("6", "manifest.json does not match its digest", "6.corrupt"),
        ("4", "a different process cannot read it", "4.corrupt"),
    ]
    assert names(tmp_path / "shared") == ["2", "4.corrupt", "6.corrupt"]


@pytest.mark.parametrize(
    "message",
    [
        "Failed to write 366006 bytes to file 13: No space left on device [os_error_code='28']",
        'Error opening "zarr" driver: {"path":"' + "x/" * 300 + "\"}' [os_error_code='28']",
        "Error [os_error_code='28'] writing {" + '"chunks":[1024],' * 50 + '"open":true}',
    ],
)
def test_the_reason_of_the_system_is_named_wherever_a_library_puts_it(message):
    line = stored_arrays.first_line(ValueError(message + "\nsource: file_key_value_store.cc"))
    assert line == "ValueError: No space left on device"
