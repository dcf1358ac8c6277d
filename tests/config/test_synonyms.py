"""Option names of other libraries, and the answer to an unknown option."""

import re
from pathlib import Path

from largebatch.config import Config, load, options, override

ROOT = Path(__file__).parents[2]
KNOWN = {key for key, _, _ in options(Config())}


def test_every_argument_that_is_advised_is_valid():
    from largebatch.config.synonyms import _ARGUMENTS

    for argument in _ARGUMENTS:
        for part in re.findall(r"--config\.([\w.]+)=('[^']*'|\S+)", argument):
            key, text = part
            assert key in KNOWN
            if text not in ("VALUE", "W", "N"):
                override(Config(), key, text.strip("'"))


def digits(*given):
    return load(ROOT / "configs" / "digits.py", given)


def test_a_bare_folder_or_public_name_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets").mkdir()
    for text, source in {
        "pets": "folder:pets",
        str(tmp_path / "pets"): f"folder:{tmp_path / 'pets'}",
        "./nothing": "folder:nothing",
        "imagenet": "tfds:imagenet2012",
        "digits": "digits",
        "folder:pets": "folder:pets",
        "imagnet": "imagnet",
    }.items():
        assert digits(("data.source", text)).data.source == source
