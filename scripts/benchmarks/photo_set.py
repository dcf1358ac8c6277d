"""A dataset for measurements: photographs, repeated to a given number, in the layout of TFDS.

Two configurations: the original files (`full`), and files re-encoded with a shorter side of 256
pixels and quality 90 (`side256`). Each is written as ArrayRecord and, if TensorFlow is installed,
also as TFRecord for tf.data.
"""

import io
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from largebatch.data.prepare.records import serialise, shrunk, write
from largebatch.errors import DataError

NAME = "photos"
VERSION = "1.0.0"
SHARDS = 4
SIDE = 256
_SUFFIXES = (".jpeg", ".jpg")
_WORDNET = re.compile(r"n[0-9]{8}")

Photo = tuple[str, bytes]
"""Name of the file, within its folder, and its contents."""


def make_set(directory: Path, photos: Path, images: int) -> dict[str, Path]:
    """Write both configurations.

    Args:
        directory: `data_dir` of the set.
        photos: A folder of JPEG files; the class is the folder, or the WordNet id in the name.
        images: Number of examples.

    Returns:
        The folder of each specification of `--data`.

    Raises:
        DataError: There are no such photographs, or the set exists.
    """
    found = usable(photos)
    if not found:
        raise DataError(f"--photos {photos}: no JPEG files in colour or grey; give their folder")
    small = [(name, shrunk(content, SIDE)) for name, content in found]
    written = {}
    for config, version in (("full", found), ("side256", small)):
        target = directory / NAME / config / VERSION
        if target.exists():
            raise DataError(f"--make_set: {target} exists; remove it or give another folder")
        target.mkdir(parents=True)
        write_config(target, version, images)
        written[f"tfds:{NAME}:{config}"] = target
    return written


def usable(place: Path) -> list[Photo]:
    """Those that every peer can decode: JPEG in colour or grey, so no CMYK, no PNG named .JPEG."""
    kept = []
    for path in sorted(place.rglob("*")):
        if path.suffix.lower() not in _SUFFIXES:
            continue
        content = path.read_bytes()
        try:
            image = Image.open(io.BytesIO(content))
        except UnidentifiedImageError:
            continue
        if image.format == "JPEG" and image.mode in ("RGB", "L"):
            kept.append((str(path.relative_to(place)), content))
    return kept


def write_config(target: Path, photos: Sequence[Photo], images: int) -> None:
    """Write the shards and TFDS' own metadata; example i is photo i modulo their number."""
    import tensorflow_datasets as tfds

    classes = sorted({class_of(name) for name, _ in photos})
    edges = [images * shard // SHARDS for shard in range(SHARDS + 1)]
    shards = [range(first, last) for first, last in itertools.pairwise(edges)]

    def record(example: int) -> bytes:
        name, content = photos[example % len(photos)]
        label = classes.index(class_of(name))
        return serialise(f"{example}_{Path(name).name}", label, content)

    for shard, ids in enumerate(shards):
        path = target / f"{NAME}-train.array_record-{shard:05d}-of-{SHARDS:05d}"
        write(path, map(record, ids))
    split = tfds.core.SplitInfo(
        name="train",
        shard_lengths=[len(ids) for ids in shards],
        num_bytes=sum(path.stat().st_size for path in target.iterdir()),
    )
    tfds.folder_dataset.write_metadata(
        data_dir=target,
        features={
            "file_name": tfds.features.Text(),
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(names=classes),
        },
        split_infos=[split],
        check_data=False,  # which needs TensorFlow
    )


def class_of(name: str) -> str:
    """The class in a file's name: a WordNet id, else its folder."""
    match = _WORDNET.search(name)
    return match[0] if match else Path(name).parent.name or "all"
