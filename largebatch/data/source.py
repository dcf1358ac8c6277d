"""Labelled images as they are stored: the protocol of a source, its options, and how one is opened.

To add a form, write one function that is called as ``open(spec, split, options)`` and returns a
`Source`, and enter it into `SOURCES`. `dataset.Dataset` decodes, crops and resizes its images.
"""

import hashlib
import importlib.util
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np

from largebatch.environment import command_path
from largebatch.errors import ConfigError, DataError, UserError, did_you_mean, one_line
from largebatch.registry import add_directory, imported, is_reference
from largebatch.store_urls import check_url, url_of

Split = Literal["train", "validation"]
SPLITS = {"train": ("train",), "validation": ("validation", "val", "valid", "test")}
"""What a dataset may call each split, in any letter case; `test` where there is no other."""
SPLIT_WORDS = frozenset(word for words in SPLITS.values() for word in words)
# Statistics of ImageNet's training split, commonly rounded; used for any photographs.
MEAN = tuple(255 * x for x in (0.485, 0.456, 0.406))
STD = tuple(255 * x for x in (0.229, 0.224, 0.225))

SOURCES = {
    "digits": "largebatch.data.digits:open_digits",
    "synthetic": "largebatch.data.synthetic:open_synthetic",
    "tfds": "largebatch.data.tfds:open_tfds",
    "folder": "largebatch.data.folder:open_folder",
    "arrayrecord": "largebatch.data.tfds:open_array_record",
    "tfrecord": "largebatch.data.tfds:open_tf_record",
    "webdataset": "largebatch.data.formats:open_webdataset",
    "huggingface": "largebatch.data.huggingface:open_huggingface",
}
"""``package.module:function`` by scheme, the part of ``data.source`` before the colon; imported on
first use, since readers bring heavy libraries. Users' own are ``package.module:factory`` or
``package.module:factory:ARGUMENT``."""
_COMPUTED = ("digits", "synthetic")
WORK, PLAN = ".prepare", "plan.json"
"""The folder of unfinished work within a dataset, and the file in it while one is written."""
SAMPLE, SMALL_SAMPLE = 64, 1024
"""Images that stand for the content of a split, and for that of a split of small images."""
_SMALL_BYTES = 2**22  # of a sample of small images


@dataclass(frozen=True)
class SourceOptions:
    """What a dataset must deliver; a source states which of these options it uses.

    Attributes:
        image_size: Pixels a side; 0 is the dataset's own, or 224 for photographs.
        examples: Number of training examples, for both splits; 0 is the source's own.
        classes: Number of classes; 0 is the source's own.
        data_dir: Directory of TFDS's datasets; empty is TFDS's default.
        crop_area: Least and greatest share of an image's area in a training crop.
        crop_ratio: Least and greatest width / height of that crop.
        evaluation_crop: Share of the shorter side in the central crop of evaluation.
        resampling: `linear` or `antialias`, see `images.resize`.
        validation_split: Share of each class of a folder that is its validation split; 0: none.
        whole: Whether class folders without splits are the validation split.
        cache_bytes: Bytes of object storage kept on the local disk; 0: none.
    """

    image_size: int = 0
    examples: int = 0
    classes: int = 0
    data_dir: str = ""
    crop_area: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    evaluation_crop: float = 0.875
    resampling: str = "linear"
    validation_split: float = 0.0
    whole: bool = False
    cache_bytes: int = 0


class Source(Protocol):
    """One split of labelled images as they are stored, read by example index.

    `read` is called from several threads at once. A subclass must have `name`, `classes`,
    `__len__` and `read`.

    Attributes:
        name: The specification it was opened by.
        classes: Name of each label.
        image_shape: (H, W, C) if all images are arrays of this shape; None if they are image files
            or of any size, which are cropped.
        labels: int32 (n,), the label of each example if they are known without reading.
        mean: Mean of each channel over the training split, in 0..255.
        std: Standard deviation of each channel over the training split, in 0..255.
    """

    name: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int] | None = None
    labels: np.ndarray | None = None
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def read(self, ids: np.ndarray) -> tuple[Sequence[Any], np.ndarray]:
        """Read images as they are stored, and their labels.

        Args:
            ids: int64 (b,), in [0, len).

        Returns:
            images: b images, each the content of an image file (bytes), uint8 (h, w, 3) or an image
                of Pillow; or, with `image_shape`, uint8 (b, H, W, C) that the caller may change.
            labels: int32 (b,).

        Raises:
            DataError: An example cannot be read, which ends the run. An image that cannot be
                decoded is returned as it is: the next one replaces it.
        """
        ...

    def where(self, example: int) -> str:
        """Return the file, or the record of a file, that holds an example, for messages."""
        return f"{self.name}, example {example}"

    def marks(self) -> Iterable[bytes]:
        """Return what distinguishes this split from another one with the same sizes and classes.

        Such as the names and lengths of its files in order, without their directory.
        """
        return ()

    def describe(self) -> str:
        """Return one line about what was found."""
        return f"{self.name}: {len(self):,} examples, {len(self.classes):,} classes"


class _OwnSource(Source):
    """A user's object with `classes`, `__len__` and `read` (see `Source`) or `__getitem__`.

    `__getitem__` returns (image, label) or a mapping with these keys. The image is the content of
    an image file, bytes; uint8 (H, W), (H, W, 1) or (H, W, 3); or an image of Pillow. What else a
    `Source` has is used if it is there.
    """

    def __init__(self, name: str, own: Any) -> None:
        self.name = name
        self.classes = tuple(own.classes)
        self._own = own
        for optional in ("name", "image_shape", "mean", "std", "where", "marks", "describe"):
            if hasattr(own, optional):
                setattr(self, optional, getattr(own, optional))
        labels = np.asarray(getattr(own, "labels", None))
        if labels.dtype.kind in "iu" and labels.shape == (len(own),):  # else it is something else
            self.labels = self._checked_labels(np.arange(len(own)), labels)

    def __len__(self) -> int:
        return len(self._own)

    def read(self, ids: np.ndarray) -> tuple[Sequence[Any], np.ndarray]:
        if hasattr(self._own, "read"):
            images, labels = self._own.read(ids)
        else:
            found = [self._item(int(index)) for index in ids]
            images, labels = [image for image, _ in found], [label for _, label in found]
        if len(images) != len(ids):
            raise DataError(
                f"{self.name}: expected {len(ids)} images from read(ids), got {len(images)}; "
                "return one for each id"
            )
        if self.image_shape is None:
            images = [self._checked(int(i), im) for i, im in zip(ids, images, strict=True)]
        else:
            images = np.asarray(images)
            wanted = (len(ids), *self.image_shape)
            if images.dtype != np.uint8 or images.shape != wanted:
                raise DataError(
                    f"{self.name}: expected uint8 {wanted} from read(ids), got {images.dtype} "
                    f"{images.shape}; convert the images"
                )
        return images, self._checked_labels(ids, np.asarray(labels))

    def _item(self, index: int) -> tuple[Any, Any]:
        try:
            item = self._own[index]
            image, label = (
                (item["image"], item["label"]) if isinstance(item, Mapping) else tuple(item)
            )
        except Exception as error:
            raise DataError(
                f"{self.where(index)}: reading it raised {type(error).__name__}: "
                f"{one_line(error)}; an item is (image, label)"
            ) from error
        return image, label

    def _checked_labels(self, ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return labels as int32 (b,).

        Raises:
            DataError: One is not of a class.
        """
        if labels.shape != ids.shape or (len(ids) and labels.dtype.kind not in "iu"):
            raise DataError(
                f"{self.name}: expected an integer label for each of {len(ids)} examples, got "
                f"{labels.dtype} {labels.shape}; return the indices of their classes"
            )
        return checked_labels(labels, len(self.classes), lambda row: self.where(int(ids[row])))

    def _checked(self, index: int, image: Any) -> Any:
        """Return an image as `Source.read` does."""
        if isinstance(image, bytes) or hasattr(image, "convert"):  # a file, or an image of Pillow
            return image
        pixels = np.asarray(image)
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        good = pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] in (1, 3)
        if not good or not pixels.size:
            raise DataError(
                f"{self.where(index)}: expected bytes of an image file or uint8 (H, W, 3), got "
                f"{type(image).__name__} of {pixels.dtype} {pixels.shape}; convert it"
            )
        return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def open_source(spec: str, split: Split, options: SourceOptions | None = None) -> Source:
    """Open one split of labelled images as they are stored.

    Args:
        spec: `scheme` or `scheme:rest`, e.g. `digits` or `tfds:imagenet2012`; or a user's own
            `package.module:factory:ARGUMENT`, which is called as factory(ARGUMENT, split, options).
        split: `train` or `validation`.
        options: What it must deliver; None is its own sizes.

    Raises:
        ConfigError: An option is out of range, or the source has no use for it.
        DataError: The source or the split is unknown, absent or not of the size asked for.
    """
    options = options or SourceOptions()
    scheme, _, place = spec.partition(":")
    if scheme == "parquet":
        prepare = command_path("scripts/prepare_imagenet.py")
        raise DataError(
            f"data.source={spec}: Parquet files have no random access to an image; convert them "
            f"once (ImageNet: some 20 minutes of one core): python {prepare} --from '{spec}' "
            "--out DIR"
        )
    if not own_reference(spec) or not _is_module(scheme):
        _check_known("data.source", scheme, SOURCES)
    _check_known("split", split, get_args(Split))
    for field in ("image_size", "examples", "classes"):
        if getattr(options, field) < 0:
            raise DataError(
                f"data.{field}: expected 0 or more, got {getattr(options, field)}; use 0 for the "
                "source's own"
            )
    if options.validation_split and scheme != "folder":
        raise ConfigError(
            f"data.validation_split={options.validation_split:g}: expected data.source="
            f"folder:PATH, got {spec}; use data.validation_split=0"
        )
    if scheme not in SOURCES:
        opened = _own(spec, split, options)
    else:
        if scheme not in _COMPUTED and not place:
            raise DataError(f"data.source: {spec!r} has no path; use {scheme}:PATH")
        if url := url_of(place):
            check_url(url)
        if scheme not in (*_COMPUTED, "tfds"):  # TFDS finds its directory by the name
            check_finished(place)
        opened = imported(SOURCES[scheme], "data.source")(spec, split, options)
    check_class_names(f"data.source={spec}", opened.classes)
    if opened.image_shape is None:
        check_sizes(spec, options, classes=len(opened.classes))
        if split == "train":
            check_sizes(spec, options, examples=len(opened))
    return opened


def _own(spec: str, split: Split, options: SourceOptions) -> Source:
    """Call a user's own factory."""
    module, _, rest = spec.partition(":")
    factory, _, argument = rest.partition(":")
    make = imported(f"{module}:{factory}", "data.source")
    try:
        made = make(argument, split, options)
    except UserError:
        raise
    except Exception as error:
        raise DataError(
            f"data.source={spec!r}: the factory raised {type(error).__name__}: {one_line(error)}; "
            "it is called as factory(argument, split, options)"
        ) from error
    reads = "read" if hasattr(made, "read") else "__getitem__"
    if missing := [n for n in ("classes", "__len__", reads) if not hasattr(made, n)]:
        raise DataError(
            f"data.source={spec!r}: the factory returned {type(made).__name__}, which lacks "
            f"{', '.join(missing)} of a Source (largebatch.data); add what is missing"
        )
    return _OwnSource(spec, made)


def own_reference(spec: str) -> str:
    """Return ``package.module:factory`` of a user's own source; '' for the others."""
    reference = ":".join(spec.split(":")[:2])
    return reference if spec.partition(":")[0] not in SOURCES and is_reference(reference) else ""


def is_photographs(spec: str) -> bool:
    """Return whether `data.source` names photographs, which are cropped.

    A user's own source is assumed to be photographs.
    """
    return spec.partition(":")[0] not in _COMPUTED


def check_finished(place: str) -> None:
    """Check that a dataset on a disk is not unfinished, nor a directory above it.

    Args:
        place: A path, or a pattern of files. A URL is not checked: an object is complete or absent.

    Raises:
        DataError: It is being written, or its writer was interrupted.
    """
    if url_of(place):
        return
    path = Path(os.path.abspath(os.path.expanduser(place)))
    for folder in (path, *path.parents):
        if os.path.exists(folder / WORK / PLAN):
            raise DataError(
                f"{folder} is unfinished ({folder / WORK} exists); give the command that writes it "
                "again, then repeat this"
            )


def _is_module(name: str) -> bool:
    """Return whether a module can be imported; only names without a dot are looked up."""
    add_directory(Path.cwd())
    return "." in name or importlib.util.find_spec(name) is not None


def _check_known(what: str, name: str, names: Iterable[str]) -> None:
    """Raise a DataError with the nearest match unless `name` is one of `names`."""
    names = sorted(names)
    if name not in names:
        raise DataError(f"{what}: {name!r} is unknown; {did_you_mean(name, names)}")


def own_name(names: Iterable[str], split: str, where: str) -> str | None:
    """Return which of some names is that of a split; None: there is none.

    Args:
        names: Splits of a dataset, as it calls them.
        split: A key of `SPLITS`.
        where: The directory, for the message.

    Raises:
        DataError: Several could be meant.
    """
    found = [name for name in names if name.lower() in SPLITS[split]]
    # A test split beside a validation split is not used.
    found = [name for name in found if name.lower() != "test"] or found
    if len(found) > 1:
        raise DataError(
            f"{where}: expected one split for {split}, got {', '.join(sorted(found))}; keep one of "
            "them there"
        )
    return found[0] if found else None


def check_class_names(where: str, classes: Sequence[str]) -> None:
    """Raise a DataError for a class name that a line of a labels file cannot hold.

    Args:
        where: The dataset, for the message.
        classes: Name of each label.
    """
    for label, name in enumerate(classes):
        if not isinstance(name, str):
            raise DataError(
                f"{where}: expected class names that are texts, got {name!r} for label {label}; "
                "return str"
            )
        kinds = {unicodedata.category(character) for character in name}
        if "Cs" in kinds:  # of bytes that are not UTF-8
            problem = "not UTF-8"
        elif not name.strip():
            problem = "empty"
        elif name != name.strip():
            problem = "with a space at an end"
        elif kinds & {"Cc", "Zl", "Zp"}:
            problem = "with a line break or a control character"
        else:
            continue
        raise DataError(
            f"{where}: expected class names that are a line of text each, got {name!a} for label "
            f"{label}, {problem}; rename the class"
        )


def unreadable(
    path: str, error: Exception, remedy: str = "restore the file or prepare the dataset again"
) -> DataError:
    """Return the error for a file, a folder or a record that cannot be read.

    Args:
        path: Its place, for the message.
        error: What was raised; an OSError without its own name of the file.
        remedy: What helps.
    """
    reason = getattr(error, "strerror", None) or one_line(error)
    return DataError(f"{path} cannot be read: {reason}; {remedy}")


def checked_labels(labels: np.ndarray, classes: int, where: Callable[[int], str]) -> np.ndarray:
    """Return labels as int32 (b,).

    Args:
        labels: Integers (b,).
        classes: Number of classes.
        where: Returns the place of a row, for the message.

    Raises:
        DataError: One is not of a class.
    """
    if len(wrong := np.flatnonzero((labels < 0) | (labels >= classes))):
        raise DataError(
            f"{where(int(wrong[0]))} has label {labels[wrong[0]]}, expected 0 to {classes - 1:,}; "
            "use a labelled split, or name every label, 0 too if they count from 1"
        )
    return labels.astype(np.int32)


def check_sizes(name: str, options: SourceOptions, **own: int) -> None:
    """Raise a DataError if options ask for other sizes than a dataset has.

    Args:
        name: The dataset, for the message.
        options: The options.
        **own: The dataset's sizes by option.
    """
    for field, has in own.items():
        asked = getattr(options, field)
        if asked not in (0, has):
            raise DataError(
                f"data.{field}: expected 0 or {has} for {name}, got {asked}; use one of these",
                unused=(f"data.{field}",),
            )


def differing(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Return in words how two lists of class names differ: lengths and first difference."""
    same = len(ours) == len(theirs)
    summary = "classes of other names" if same else f"{len(ours):,} and {len(theirs):,} classes"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return f"{summary}, number {number} {one!r} and {other!r}"
    return summary


def class_counts(source: Source) -> tuple[int, ...] | None:
    """Return the number of examples of each class; None if that takes reading the examples."""
    if source.labels is None:
        return None
    return tuple(np.bincount(source.labels, minlength=len(source.classes)).tolist())


def identity(source: Source) -> str:
    """Return a short hash of all that is known of a split without reading its images.

    It covers the number of examples, the class names and `Source.marks`, not the directory. Takes
    0.1 s for the 1.3 million file names of ImageNet.

    Returns:
        16 hexadecimal digits (BLAKE2b).
    """
    digest = hashlib.blake2b(digest_size=8)
    names = (name.encode("utf-8", "surrogateescape") for name in source.classes)
    for part in (str(len(source)).encode(), *names, b"", *source.marks()):
        digest.update(len(part).to_bytes(8, "little"))  # different lists give different bytes
        digest.update(part)
    return digest.hexdigest()


def sampled(source: Source, seed: int) -> list[tuple[int, str]]:
    """Read a random sample and return each example with a text that identifies it.

    If a share p of the images differs between two copies, a sample of n misses all of them with a
    probability of (1 − p)ⁿ. It has 64 examples, or 1,024 if these have less than 4 MiB. It depends
    only on the seed, on the number of examples and on their bytes.

    Returns:
        Id of each example; its label, the size of its stored bytes and a hash of them.

    Raises:
        DataError: An example cannot be read, which would end a training.
    """
    ids = np.random.default_rng(seed).permutation(len(source))[:SMALL_SAMPLE]
    found = _read_sample(source, ids[:SAMPLE])
    if len(ids) > SAMPLE and sum(size for _, size, _ in found) < _SMALL_BYTES:
        found += _read_sample(source, ids[SAMPLE:])
    return [(example, text) for example, _, text in found]


def _read_sample(source: Source, ids: np.ndarray) -> list[tuple[int, int, str]]:
    """Return id, bytes and a text of each example."""
    images, labels = source.read(ids)
    rows = []
    for example, image, label in zip(ids.tolist(), images, labels.tolist(), strict=True):
        data = image if isinstance(image, bytes) else np.asarray(image).tobytes()
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        rows.append((example, len(data), f"label {label}, {len(data):,} bytes ({digest})"))
    return rows


def content(*splits: Source) -> str:
    """Return a short hash that is equal only for the same images, in any directory or store.

    It covers the `identity` of each split and a sample of its bytes and labels, see `sampled`.

    Returns:
        16 hexadecimal digits (BLAKE2b).
    """
    digest = hashlib.blake2b(digest_size=8)
    for source in splits:
        digest.update(f"{identity(source)} {sampled(source, seed=0)}".encode())
    return digest.hexdigest()
