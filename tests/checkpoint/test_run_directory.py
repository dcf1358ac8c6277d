"""What of a run directory is moved, and what is left alone, on a disk and in an object store."""

import errno
import os

import pytest

from largebatch.checkpoint.place import LocalPlace, is_own
from largebatch.checkpoint.run_directory import note_saved, prepare, reporting_full_disk
from largebatch.errors import CheckpointError, UserError

OWN = {
    "metrics.jsonl": '{"step": 1}\n',
    "config.json": '{"config": {}}',
    "checkpoints/4.safetensors": "ours",
    "checkpoints/2.safetensors.corrupt": "ours",
    "checkpoints/2.safetensors.corrupt-3": "ours",
    "result_1.txt": "ours",
    "report/report.html": "ours",
}
OTHERS = (
    "a/checkpoints/8.safetensors",
    "a/metrics.jsonl",
    "checkpoints/500/_CHECKPOINT_METADATA",
    "checkpoints/500/default/manifest.ocdbt",
    "checkpoints/600/metrics.jsonl",
    "checkpoints/last.ckpt",
    "checkpoints/model.safetensors",
    "checkpoints/007.safetensors",
    "lock.json.backup",
    "notes.txt",
    "previous.txt",
    "previous/notes.txt",
    "result_final.txt",
    "stacks_of_cards.txt",
)


def put(place, *paths, text="theirs"):
    for path in paths:
        if isinstance(place, LocalPlace):
            (place.logs / path).parent.mkdir(parents=True, exist_ok=True)
        place.write(path, text.encode())


def run_in(place):
    for path, text in OWN.items():
        put(place, path, text=text)


def ready(place, *, archive):
    """`prepare`, as a run calls it."""
    if not isinstance(place, LocalPlace):
        place.fetch_logs()
    return prepare(place, archive=archive)


def content(place):
    """The paths of all files of a run directory."""
    if isinstance(place, LocalPlace):
        found = {str(p.relative_to(place.logs)) for p in place.logs.rglob("*") if not p.is_dir()}
    else:
        found = {*place.bucket.objects()}
    return found


def test_an_archive_holds_the_run_alone(place):
    run_in(place)
    put(place, *OTHERS)
    for number in (1, 2):
        assert ready(place, archive=True) == f"{place.url}/previous/{number}"
        archived = {f"previous/{n + 1}/{path}" for n in range(number) for path in OWN}
        assert content(place) == {*OTHERS, *archived}
        assert not list(place.logs.glob("*.jsonl"))
        assert ready(place, archive=True) is None  # there is no run any more
        run_in(place)
    assert all(place.read(path) == b"theirs" for path in OTHERS)


def test_without_a_run_nothing_is_moved(place):
    names = ("report/thesis.tex", "wandb/x", "profile/me.png", "tensorboard/events.out.tfevents.1")
    put(place, *names, *OTHERS)
    for archive in (True, False):
        assert ready(place, archive=archive) is None
        assert content(place) == {*names, *OTHERS}


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("text", ['{"architectures": ["ResNet"]}', "{"])
def test_the_configuration_of_another_program_is_refused(place, archive, text):
    run_in(place)
    put(place, "config.json", text=text)
    with pytest.raises(UserError, match=r"config\.json"):
        ready(place, archive=archive)
    assert content(place) == {*OWN}


def test_checkpoints_of_an_earlier_version_are_named(place):
    put(place, "metrics.jsonl", "checkpoints/4/manifest.json", "checkpoints/4/arrays/d/0")
    before = content(place)
    with pytest.raises(CheckpointError, match=r"checkpoints/4 .*--init_from.*--resume=never"):
        ready(place, archive=False)
    assert content(place) == before
    assert ready(place, archive=True) == f"{place.url}/previous/1"
    assert content(place) == {
        "previous/1/metrics.jsonl",
        "checkpoints/4/manifest.json",
        "checkpoints/4/arrays/d/0",
    }


@pytest.mark.parametrize("left", [None, "checkpoints/notes"])
def test_a_run_without_its_checkpoints_is_refused(place, left):
    put(place, "metrics.jsonl", text='{"step": 9}\n')
    if left:
        put(place, left)
    note_saved(place, 8)
    if not isinstance(place, LocalPlace):
        place.keep_logs()
    before = content(place)
    with pytest.raises(UserError, match=r"checkpoint 8.*mount.*--resume=never"):
        ready(place, archive=False)
    assert content(place) == before
    assert ready(place, archive=True) == f"{place.url}/previous/1"
    assert ready(place, archive=False) is None


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(place):
    put(place, "metrics.jsonl", text='{"step": 9}\n')
    assert ready(place, archive=False) == f"{place.url}/previous/1"


def test_links_are_not_followed(tmp_path):
    elsewhere = LocalPlace(tmp_path / "elsewhere")
    elsewhere.create()
    run_in(elsewhere)
    put(elsewhere, "checkpoints/notes.txt")
    before = content(elsewhere)
    place = LocalPlace(tmp_path / "run")
    place.create()
    put(place, "metrics.jsonl", text='{"step": 1}\n')
    for name in ("report", "wandb", "checkpoints/7.safetensors"):
        (place.logs / name).symlink_to(elsewhere.logs / name.replace("7", "4"))
    assert prepare(place, archive=True)
    assert content(elsewhere) == before
    assert os.readlink(place.logs / "previous/1/report") == str(elsewhere.logs / "report")
    assert (place.logs / "previous/1/checkpoints/7.safetensors").is_symlink()


def test_a_file_in_the_place_of_the_archive_is_one_line(tmp_path):
    place = LocalPlace(tmp_path)
    place.create()
    run_in(place)
    put(place, "previous")
    before = content(place)
    with pytest.raises(UserError, match="--workdir="):
        prepare(place, archive=True)
    assert content(place) == before


def test_a_full_disk_is_the_users_error_and_a_broken_one_is_not(tmp_path):
    for number, expected in ((errno.ENOSPC, UserError), (errno.EIO, OSError)):
        with pytest.raises(expected), reporting_full_disk(tmp_path):
            raise OSError(number, "of the disk")


def test_only_files_of_a_run_are_its_own():
    assert all(map(is_own, OWN))
    assert not any(map(is_own, OTHERS))
    assert is_own("metrics.jsonl.part-000000000000123")
    assert not is_own("notes.txt.part-000000000000123")
