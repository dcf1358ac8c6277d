"""A set to measure with: photographs repeated to a number, in the layout of TFDS.

Two configurations, the files as they are (`full`) and re-encoded with the shorter side at 256
pixels and quality 90 (`side256`), each as ArrayRecord and, where TensorFlow is installed to write
it, the same records as TFRecord: tf.data reads nothing else of TFDS, and we read nothing else.
"""

import io
import itertools
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from PIL import Image

from largebatch.data.prepare.records import serialise, write
from largebatch.errors import DataError

NAME = "photos"
VERSION = "1.0.0"
SHARDS = 4
SIDE, QUALITY = 256, 90
_SUFFIXES = (".jpeg", ".jpg")
_WORDNET = re.compile(r"n[0-9]{8}")

Photo = tuple[str, bytes]
"""Name of the file, within its folder or tar, and its contents."""


def make_set(directory: Path, photos: Path, images: int) -> dict[str, Path]:
    """Write both configurations.

    Args:
        directory: `data_dir` of the set.
        photos: A tar or a folder of JPEG files; the class is the folder or WordNet id in the name.
        images: Number of examples.

    Returns:
        The folder of each specification of `--data`.

    Raises:
        DataError: There are no such photographs, or the set exists.
    """
    found = usable(read_photos(photos))
    if not found:
        raise DataError(f"--photos {photos}: no JPEG files in colour or grey; give a tar or folder")
    small = [(name, reencoded(content, SIDE, QUALITY)) for name, content in found]
    written = {}
    for config, version in (("full", found), ("side256", small)):
        target = directory / NAME / config / VERSION
        if target.exists():
            raise DataError(f"--make_set: {target} exists; remove it or give another folder")
        target.mkdir(parents=True)
        write_config(target, version, images)
        written[f"tfds:{NAME}:{config}"] = target
    return written


def read_photos(place: Path) -> Iterator[Photo]:
    """The JPEG files of a tar or a folder, in order of name."""
    if place.is_dir():
        for path in sorted(place.rglob("*")):
            if path.suffix.lower() in _SUFFIXES and path.is_file():
                yield str(path.relative_to(place)), path.read_bytes()
        return
    try:
        with tarfile.open(place) as tar:
            for member in sorted(tar.getmembers(), key=lambda member: member.name):
                if member.isfile() and member.name.lower().endswith(_SUFFIXES):
                    yield member.name, tar.extractfile(member).read()
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"--photos {place} is neither a folder nor a tar ({error})") from error


def usable(photos: Iterable[Photo]) -> list[Photo]:
    """Those that every peer can decode: JPEG in colour or grey, so no CMYK, no PNG named .JPEG."""
    kept = []
    for name, content in photos:
        try:
            image = Image.open(io.BytesIO(content))
        except OSError:
            continue
        if image.format == "JPEG" and image.mode in ("RGB", "L"):
            kept.append((name, content))
    return kept


def reencoded(content: bytes, side: int, quality: int) -> bytes:
    """The photograph with its shorter side at `side` pixels; a smaller one is not enlarged."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    scale = side / min(image.size)
    if scale < 1:
        size = tuple(max(side, round(scale * length)) for length in image.size)
        image = image.resize(size, Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


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
