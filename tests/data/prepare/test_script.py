import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from largebatch.data.prepare import names
from scripts import prepare_imagenet
from tests.data.prepare import fakes

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "../shared/data/imagenet-samples-200.tar"


def test_it_prepares_and_verifies(tmp_path, capsys):
    source = fakes.write_tars(tmp_path / "tars")
    common = ["--out", str(tmp_path / "out"), "--processes", "1"]
    assert prepare_imagenet.main(["--tars", str(source), "--allow-partial", *common]) == 0
    said = capsys.readouterr().out
    assert "train: 30 images, 1 shards" in said
    assert "40/40 images" in said
    assert prepare_imagenet.main(["--verify", *common]) == 0
    assert "40 images in 2 shards" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--tars", "nowhere"],
        ["--verify"],
        ["--tars", "nowhere", "--store", "decoded"],
        ["--tars", "nowhere", "--shorter", "256"],
        ["--folders", "nowhere", "--md5"],
    ],
)
def test_mistakes_are_reported_in_a_line(tmp_path, capsys, options):
    assert prepare_imagenet.main([*options, "--out", str(tmp_path / "out")]) == 2
    streams = capsys.readouterr()
    assert streams.err.startswith("error: ")
    assert streams.err.count("\n") == 1


def test_neither_tensorflow_nor_its_children_are_imported(tmp_path):
    source = fakes.write_tars(tmp_path / "tars")
    flags = ["--out", str(tmp_path / "out"), "--processes", "1"]
    code = (
        "import sys\n"
        "from scripts.prepare_imagenet import main\n"
        f"assert main(['--tars', {str(source)!r}, '--allow-partial', *{flags!r}]) == 0\n"
        f"assert main(['--verify', *{flags!r}]) == 0\n"
        "assert 'tensorflow_datasets' in sys.modules and 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.skipif(not SAMPLES.exists(), reason=f"{SAMPLES.name} is not there")
@pytest.mark.parametrize(
    "store",
    [["jpeg"], ["jpeg", "--shorter", "256", "--quality", "90"], ["decoded", "--size", "64"]],
)
def test_photographs_of_imagenet_are_prepared(tmp_path, store):
    with tarfile.open(SAMPLES) as tar:
        photos = {member.name: tar.extractfile(member).read() for member in tar.getmembers()[::5]}
    known = set(names.classes())
    # Named as in the training tar; each is of a class of its own.
    files = {
        f"{name.partition('_')[0]}_1.JPEG": data
        for name, data in photos.items()
        if name.partition("_")[0] in known
    }
    assert len(files) > 30
    source = fakes.write_tars(tmp_path / "tars", files)
    common = ["--out", str(tmp_path / "out"), "--processes", "1"]
    flags = ["--tars", str(source), "--allow-partial", "--store", *store, "--check", "full"]
    assert prepare_imagenet.main([*flags, *common]) == 0
    assert prepare_imagenet.main(["--verify", *common]) == 0
    if store == ["jpeg"]:
        import tensorflow_datasets as tfds

        skip = {"image": tfds.decode.SkipDecoding()}
        found = tfds.data_source(
            "imagenet2012", data_dir=tmp_path / "out", split="train", decoders=skip
        )
        assert {one["file_name"].decode(): one["image"] for one in found} == files
