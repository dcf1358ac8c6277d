"""What of a run directory is moved, and what is left alone."""

import json
import os

import pytest

from largebatch.checkpoint import directories, manifest
from largebatch.checkpoint.run_directory import prepare
from largebatch.errors import UserError

OTHERS = (
    ".hidden",
    ".writable",
    "a/checkpoints/8/manifest.json",
    "a/metrics.jsonl",
    "checkpoints/.9.partial/state/d/0",
    "checkpoints/.writing/x",
    "checkpoints/last.ckpt",
    "checkpoints/model_500/weights",
    "notes.txt",
    "previous/notes.txt",
    "result_final.txt",
    "stacks_of_cards.txt",
)


def put(directory, *names, text="theirs"):
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def run_in(directory):
    put(directory, "metrics.jsonl", text='{"step": 1}\n')
    put(directory, "config.json", text='{"config": {}}')
    put(directory, "checkpoints/4/manifest.json", "checkpoints/4/arrays/d/0", text="ours")
    put(directory, "checkpoints/.8.partial/arrays/d/0", "checkpoints/2.corrupt/manifest.json")
    put(directory, "result_1.txt", "report/report.html", text="ours")


def content(directory):
    return {str(p.relative_to(directory)) for p in directory.rglob("*") if not p.is_dir()}


def test_an_archive_holds_the_run_alone(tmp_path):
    put(tmp_path, "beside/metrics.jsonl")
    workdir = tmp_path / "run"
    run_in(workdir)
    ours = content(workdir)
    put(workdir, *OTHERS)
    assert prepare(workdir, archive=True) == workdir / "previous" / "1"
    assert content(workdir) == {*OTHERS, *(f"previous/1/{name}" for name in ours)}
    assert prepare(workdir, archive=True) is None  # there is no run any more
    assert (tmp_path / "beside/metrics.jsonl").exists()


def test_without_a_run_nothing_is_moved(tmp_path):
    names = ("report/thesis.tex", "wandb/x", "profile/me.png", "tensorboard/events.out.tfevents.1")
    put(tmp_path, *names, *OTHERS[:4], *OTHERS[8:])
    before = content(tmp_path)
    assert prepare(tmp_path, archive=True) is None
    assert prepare(tmp_path, archive=False) is None
    assert content(tmp_path) == before


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/500/_CHECKPOINT_METADATA",
        "checkpoints/7/state/d/0",
        "checkpoints/0/weights.pth",
        "config.json",
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_directories_of_other_programs_are_refused(name, ours, archive, tmp_path):
    if ours:
        run_in(tmp_path)
    if name == "config.json":
        put(tmp_path, name, text='{"architectures": ["ResNetForImageClassification"]}')
    else:
        put(tmp_path, name)
    before = content(tmp_path)
    with pytest.raises(UserError, match="/".join(name.split("/")[:2])):
        prepare(tmp_path, archive=archive)
    assert content(tmp_path) == before


def test_links_are_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    run_in(elsewhere)
    put(elsewhere, "checkpoints/notes.txt")
    before = content(elsewhere)
    workdir = tmp_path / "run"
    workdir.mkdir()
    put(workdir, "metrics.jsonl", text='{"step": 1}\n')
    for name in ("checkpoints", "report", "wandb"):
        (workdir / name).symlink_to(elsewhere / name)
    prepare(workdir, archive=True)
    assert content(elsewhere) == before
    assert os.readlink(workdir / "previous/1/checkpoints") == str(elsewhere / "checkpoints")
    # A linked run directory, and a link in the place of a checkpoint.
    linked = tmp_path / "linked"
    linked.symlink_to(elsewhere)
    (elsewhere / "checkpoints" / "12").symlink_to(tmp_path)
    with pytest.raises(UserError, match="checkpoints/12"):
        prepare(linked, archive=True)
    (elsewhere / "checkpoints" / "12").unlink()
    assert prepare(linked, archive=True) == linked / "previous" / "1"


def test_saving_replaces_and_deletes_only_own_checkpoints(tmp_path):
    names = (".3.partial/state/x", "5/_CHECKPOINT_METADATA", "6/manifest.json", "6/model.bin")
    put(tmp_path, *names)
    (tmp_path / ".7.replaced").symlink_to(tmp_path.parent)
    (tmp_path / ".8.partial").symlink_to(tmp_path.parent)
    before = content(tmp_path)
    directories.clear(tmp_path)
    for step in (3, 5, 6, 7, 8):
        about = manifest.Manifest(manifest.Progress(step=step), {}, None)
        with pytest.raises(FileExistsError):
            directories.write(tmp_path, about, {})
    directories.prune(tmp_path, 1)
    directories.prune(tmp_path, 0)
    assert content(tmp_path) == before


@pytest.mark.parametrize("left", [None, "checkpoints", "checkpoints/lost+found"])
def test_a_run_without_its_checkpoints_is_refused(left, tmp_path):
    put(tmp_path, "metrics.jsonl", text='{"step": 9}\n')
    put(tmp_path, directories.SAVED, text='{"step": 8}')
    if left:
        (tmp_path / left).mkdir(parents=True)
    before = content(tmp_path)
    with pytest.raises(UserError, match=r"checkpoint 8.*mount.*--resume=never"):
        prepare(tmp_path, archive=False)
    assert content(tmp_path) == before
    assert prepare(tmp_path, archive=True) == tmp_path / "previous" / "1"
    assert prepare(tmp_path, archive=False) is None


@pytest.mark.parametrize("left", [None, "checkpoints", "checkpoints/.8.partial/arrays"])
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(left, tmp_path):
    put(tmp_path, "metrics.jsonl", text='{"step": 9}\n')
    row = {"time": 0, "event": "checkpoint", "step": 8, "samples": 8}
    put(tmp_path, "events.jsonl", text=json.dumps(row))
    if left:
        (tmp_path / left).mkdir(parents=True)
    assert prepare(tmp_path, archive=False) == tmp_path / "previous" / "1"


def test_a_file_in_the_place_of_the_archive_is_one_line(tmp_path):
    run_in(tmp_path)
    put(tmp_path, "previous")
    before = content(tmp_path)
    with pytest.raises(UserError, match="--workdir="):
        prepare(tmp_path, archive=True)
    assert content(tmp_path) == before
