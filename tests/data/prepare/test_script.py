import subprocess
import sys
from pathlib import Path

import pytest

from scripts import prepare_imagenet
from tests.data.prepare import fakes

ROOT = Path(__file__).resolve().parents[3]


def test_it_prepares_and_verifies(tmp_path, capsys):
    source = fakes.write_tars(tmp_path / "tars")
    common = ["--out", str(tmp_path / "out"), "--processes", "1"]
    assert prepare_imagenet.main(["--tars", str(source), "--allow-partial", *common]) == 0
    assert prepare_imagenet.main(["--verify", *common]) == 0
    assert "40 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--tars", "nowhere"],
        ["--verify"],
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
