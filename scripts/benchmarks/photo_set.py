"""A set to measure with: photographs repeated to a number, in the layout of TFDS.

Two configurations, the files as they are (`full`) and re-encoded with the shorter side at 256
pixels and quality 90 (`side256`), each as ArrayRecord and, where TensorFlow is installed to write
it, the same records as TFRecord: tf.data reads nothing else of TFDS, and we read nothing else.
"""

import io
import itertools
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from PIL import Image

from benchmarks.competitor import Competitor
from benchmarks.workload import Absent, Workload
from largebatch.data.prepare.records import serialise
from largebatch.errors import DataError

NAME = "photos"
VERSION = "1.0.0"
SHARDS = 4
SIDE, QUALITY = 256, 90
_SUFFIXES = (".jpeg", ".jpg")
_WORDNET = re.compile(r"n[0-9]{8}")

Photo = tuple[str, bytes]
"""Name of the file, within its folder or tar, and its contents."""


def make_set(directory: Path, photos: Path, images: int) -> list[str]:
    """Writes both configurations.

    Args:
        directory: `data_dir` of the set.
        photos: A tar or a folder of JPEG files; the class is the folder or WordNet id in the name.
        images: How many examples.

    Returns:
        What was written, in words.

    Raises:
        DataError: There are no such photographs, or the set is there already.
    """
    found = usable(read_photos(photos))
    if not found:
        raise DataError(f"--photos {photos}: no JPEG files in colour or grey; give a tar or folder")
    small = [(name, reencoded(content, SIDE, QUALITY)) for name, content in found]
    said = []
    for config, version in (("full", found), ("side256", small)):
        target = directory / NAME / config / VERSION
        if target.exists():
            raise DataError(f"--make_set: {target} exists; remove it or give another folder")
        target.mkdir(parents=True)
        write_array_records(target, version, images)
        write_metadata(target, config, version, images)
        said.append(f"--data tfds:{NAME}:{config} --data_dir {directory}: {images:,} images")
        try:
            Competitor(
                "benchmarks.tfrecords", Workload(f"tfds:{NAME}:{config}", str(directory))
            ).close()
        except Absent as reason:
            said.append(f"no TFRecord copy, so no peers on tf.data: {reason}")
    return said


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
            picture = Image.open(io.BytesIO(content))
        except OSError:
            continue
        if picture.format == "JPEG" and picture.mode in ("RGB", "L"):
            kept.append((name, content))
    return kept


def reencoded(content: bytes, side: int, quality: int) -> bytes:
    """The photograph with its shorter side at `side` pixels; a smaller one is not enlarged."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    scale = side / min(picture.size)
    if scale < 1:
        size = tuple(max(side, round(scale * length)) for length in picture.size)
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality)
    return out.getvalue()


def class_of(name: str) -> str:
    """The class that a file's name tells: a WordNet id, else its folder."""
    match = _WORDNET.search(name)
    return match[0] if match else Path(name).parent.name or "all"


def write_array_records(target: Path, photos: list[Photo], images: int) -> None:
    """Writes the shards of the training split; example i is photo i modulo their number."""
    from array_record.python.array_record_module import ArrayRecordWriter

    classes = _classes(photos)
    for shard, ids in enumerate(_shards(images)):
        path = target / f"{NAME}-train.array_record-{shard:05d}-of-{SHARDS:05d}"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for example in ids:
            name, content = photos[example % len(photos)]
            writer.write(
                serialise(f"{example}_{Path(name).name}", classes[class_of(name)], content)
            )
        writer.close()


def write_metadata(target: Path, config: str, photos: list[Photo], images: int) -> None:
    """Writes TFDS' dataset_info.json, features.json and the names of the labels."""
    classes = _classes(photos)
    lengths = [str(len(ids)) for ids in _shards(images)]
    size = sum(path.stat().st_size for path in target.glob("*.array_record-*"))
    info = {
        "name": NAME,
        "configName": config,
        "version": VERSION,
        "description": "Photographs repeated, to measure input pipelines with.",
        "fileFormat": "array_record",
        "alternativeFileFormats": ["tfrecord"],
        "splits": [
            {
                "name": "train",
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "numBytes": str(size),
                "shardLengths": lengths,
            }
        ],
    }
    features = {
        "file_name": {"pythonClassName": _feature("text_feature.Text"), "text": {}},
        "image": {
            "pythonClassName": _feature("image_feature.Image"),
            "image": {
                "shape": {"dimensions": ["-1", "-1", "3"]},
                "dtype": "uint8",
                "encodingFormat": "jpeg",
            },
        },
        "label": {
            "pythonClassName": _feature("class_label_feature.ClassLabel"),
            "classLabel": {"numClasses": str(len(classes))},
        },
    }
    tree = {
        "pythonClassName": _feature("features_dict.FeaturesDict"),
        "featuresDict": {"features": features},
    }
    (target / "dataset_info.json").write_text(json.dumps(info, indent=2))
    (target / "features.json").write_text(json.dumps(tree, indent=2))
    (target / "label.labels.txt").write_text("".join(f"{name}\n" for name in classes))


def _feature(name: str) -> str:
    return f"tensorflow_datasets.core.features.{name}"


def _classes(photos: list[Photo]) -> dict[str, int]:
    names = sorted({class_of(name) for name, _ in photos})
    return {name: label for label, name in enumerate(names)}


def _shards(images: int) -> list[range]:
    edges = [images * shard // SHARDS for shard in range(SHARDS + 1)]
    return [range(first, last) for first, last in itertools.pairwise(edges)]
