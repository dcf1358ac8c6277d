"""Files are read as data: nothing in them is unpickled, imported or run."""

import re
import sys
from pathlib import Path

import largebatch
from largebatch.data import SourceOptions, open_source
from tests.data import stores

PICKLERS = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def test_a_class_that_features_name_is_not_imported(tmp_path, monkeypatch):
    """TFDS would import its module."""
    pairs = {"train": stores.labelled_images(2, 2)}
    stores.prepare(tmp_path, pairs, ["cat", "dog"], shards=1)
    (tmp_path / "modules").mkdir()
    trace = tmp_path / "trace"
    (tmp_path / "modules" / "nobodys_features.py").write_text(f"open({str(trace)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path / "modules")

    def change(features):
        label = features["featuresDict"]["features"]["label"]
        label["pythonClassName"] = "nobodys_features.ClassLabel"

    directory = tmp_path / "pets" / "1.0.0"
    options = SourceOptions(data_dir=str(tmp_path))
    assert len(open_source("tfds:pets", "train", options)) == 2
    stores.edit(directory / "features.json", change)
    said = stores.complaint(open_source, "tfds:pets", "train", options)
    assert "nobodys_features.ClassLabel" in said
    assert not trace.exists()
    assert "nobodys_features" not in sys.modules


def test_no_module_unpickles():
    package = Path(largebatch.__file__).parent
    paths = [*package.rglob("*.py"), *(package.parent / "scripts").rglob("*.py")]
    imports = re.compile(rf"^\s*(import|from) ({'|'.join(PICKLERS)})\b", re.MULTILINE)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert not imports.search(text), path
        for arguments in re.findall(r"\bnp\.load\(([^()]*(?:\([^()]*\)[^()]*)*)\)", text):
            assert "allow_pickle=False" in arguments, path
