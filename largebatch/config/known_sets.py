"""Sizes of public data sets, for what is decided before they are opened or without them."""

from pathlib import Path
from typing import NamedTuple


class KnownSet(NamedTuple):
    """What TFDS, or the set's page, says of it."""

    train: int
    validation: int
    classes: int
    side: int
    """Pixels a side at which its pictures are seen unless another size is asked for."""


KNOWN_SETS: dict[str, KnownSet] = {
    "tfds:imagenet2012": KnownSet(1_281_167, 50_000, 1_000, 224),
    "tfds:imagenette/320px-v2": KnownSet(9_469, 3_925, 10, 224),
    "folder:imagenette2-320": KnownSet(9_469, 3_925, 10, 224),
    "digits": KnownSet(1_437, 360, 10, 8),
}

_NAMES = {"imagenet": "tfds:imagenet2012", "imagenette": "tfds:imagenette/320px-v2"}
_SYNTHETIC = "synthetic"
_STORE = "index.json"  # of a store of decoded images


def full_source(text: str) -> str:
    """``data.source`` in full: a public set by its plain name, a bare path as folder or store.

    Args:
      text: as it was written. What has a scheme, or is no path and no public set, stays.
    """
    if ":" in text or text in (*KNOWN_SETS, _SYNTHETIC):
        return text
    is_path = text.startswith((".", "~")) or "/" in text
    if is_path or Path(text).is_dir():
        path = Path(text).expanduser()
        return f"{'decoded' if (path / _STORE).is_file() else 'folder'}:{path}"
    return _NAMES.get(text.lower(), text)
