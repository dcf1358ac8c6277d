"""The data sources by name, and the opening of `data.source`."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, get_args

from largebatch.data.records import ItemRecords, Records
from largebatch.data.sources import Source, SourceOptions, Split, check_class_names, check_sizes
from largebatch.data.unfinished import check_finished
from largebatch.environment import command_path
from largebatch.errors import ConfigError, DataError, UserError, did_you_mean, one_line
from largebatch.registry import add_directory, imported, is_reference
from largebatch.store_urls import check_url, url_of


class Opener(NamedTuple):
    """The function that opens a source."""

    function: str
    """``package.module:function``, imported on first use, since readers bring heavy libraries;
    called as function(spec, split, options), where spec is ``scheme`` or ``scheme:rest``."""
    encoded: bool = False
    """Whether it returns `Records`, which `Photos` decodes and crops, and not a `Source`."""
    remote: bool = False
    """Whether it reads files in object storage in place."""


SOURCES = {
    "digits": Opener("largebatch.data.digits:open_digits"),
    "synthetic": Opener("largebatch.data.synthetic:open_synthetic"),
    "tfds": Opener("largebatch.data.tfds:open_tfds", encoded=True, remote=True),
    "folder": Opener("largebatch.data.folder:open_folder", encoded=True),
    "arrayrecord": Opener(
        "largebatch.data.array_record:open_array_record", encoded=True, remote=True
    ),
    "tfrecord": Opener("largebatch.data.array_record:open_tf_record", encoded=True, remote=True),
    "webdataset": Opener("largebatch.data.webdataset:open_webdataset", encoded=True, remote=True),
    "huggingface": Opener("largebatch.data.huggingface:open_huggingface", encoded=True),
    "parquet": Opener("largebatch.data.huggingface:open_parquet", encoded=True),
}
"""Sources by their scheme, the part of ``data.source`` before the colon. Users' own are
``package.module:factory`` or ``package.module:factory:ARGUMENT``; the factory is called as
factory(ARGUMENT, split, options) and returns `Items`, `Records` or a `Source`."""


_NEEDED = {
    "Items": ("classes", "__len__", "__getitem__"),
    "Records": ("name", "classes", "__len__", "read", "where", "marks", "describe"),
    "a Source": ("name", "classes", "mean", "std", "__len__", "read", "describe"),
}


def _known(what: str, name: str, names: Iterable[str]) -> None:
    """Raise a DataError with the nearest match unless `name` is one of `names`."""
    names = sorted(names)
    if name not in names:
        raise DataError(f"{what}: {name!r} is unknown; {did_you_mean(name, names)}")


def own_reference(spec: str) -> str:
    """Return ``package.module:factory`` of a user's own source; '' for the others."""
    reference = ":".join(spec.split(":")[:2])
    return reference if spec.partition(":")[0] not in SOURCES and is_reference(reference) else ""


def _is_module(name: str) -> bool:
    """Return whether a module can be imported; only names without a dot are looked up."""
    add_directory(Path.cwd())
    return "." in name or importlib.util.find_spec(name) is not None


def open_source(spec: str, split: Split, options: SourceOptions | None = None) -> Source:
    """Open one split of a data source.

    Args:
        spec: `scheme` or `scheme:rest`, e.g. `digits` or `tfds:imagenet2012`; or a user's own
            `package.module:factory:ARGUMENT`.
        split: `train` or `validation`.
        options: What it must deliver; None is its own sizes.

    Returns:
        The split.

    Raises:
        ConfigError: An option is out of range, or the source has no use for it.
        DataError: The source or the split is unknown, absent or not of the size asked for.
    """
    options = options or SourceOptions()
    scheme = spec.partition(":")[0]
    if not own_reference(spec) or not _is_module(scheme):
        _known("data.source", scheme, SOURCES)
    _known("split", split, get_args(Split))
    for field in ("image_size", "examples", "classes"):
        if getattr(options, field) < 0:
            raise DataError(
                f"data.{field}: expected 0 or more, got {getattr(options, field)}; use 0 for the "
                "source's own"
            )
    opened = _opened(spec, split, options)
    if hasattr(opened, "image_shape"):
        return opened
    from largebatch.data.photos import Photos  # brings the image libraries

    check_sizes(spec, options, classes=len(opened.classes))
    if split == "train":
        check_sizes(spec, options, examples=len(opened))
    return Photos(opened, options)


def open_records(
    spec: str, split: Split, options: SourceOptions, *, finished: bool = True
) -> Records | None:
    """Open the encoded images of a split; return None for a source without.

    Args:
        spec: As for `open_source`.
        split: As for `open_source`.
        options: As for `open_source`.
        finished: Whether a dataset that is being written is an error.

    Raises:
        ConfigError: As for `open_source`.
        DataError: As for `open_source`.
    """
    scheme = spec.partition(":")[0]
    if scheme in SOURCES and not SOURCES[scheme].encoded:
        return None
    opened = _opened(spec, split, options, finished=finished)
    return None if hasattr(opened, "image_shape") else opened


def is_photographs(spec: str) -> bool:
    """Return whether `data.source` names photographs, which are cropped.

    A user's own source is assumed to be photographs.
    """
    scheme = spec.partition(":")[0]
    return scheme not in SOURCES or SOURCES[scheme].encoded


def _opened(
    spec: str, split: Split, options: SourceOptions, *, finished: bool = True
) -> Source | Records:
    """Call the function of a scheme, or a user's own factory."""
    scheme = spec.partition(":")[0]
    if options.validation_split and scheme != "folder":
        raise ConfigError(
            f"data.validation_split={options.validation_split:g}: expected data.source="
            f"folder:PATH, got {spec}; use data.validation_split=0"
        )
    if scheme in SOURCES:
        place = spec.partition(":")[2]
        if url := url_of(place):
            check_url(url)
        if url and not SOURCES[scheme].remote:
            read = ", ".join(name for name, opener in SOURCES.items() if opener.remote)
            raise DataError(
                f"data.source={spec}: expected one of {read} in object storage, got {scheme}; copy "
                f"the files: python {command_path('scripts/prepare_imagenet.py')} --copy {place} "
                "DIR"
            )
        # A dataset of TFDS is found by its name, and checked there.
        if finished and place and scheme != "tfds":
            check_finished(place)
        opened = imported(SOURCES[scheme].function, "data.source")(spec, split, options)
        check_class_names(f"data.source={spec}", opened.classes)
        return opened
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
    kind = "a Source" if hasattr(made, "image_shape") else "Records"
    kind = kind if hasattr(made, "read") else "Items"
    if missing := [name for name in _NEEDED[kind] if not hasattr(made, name)]:
        raise DataError(
            f"data.source={spec!r}: the factory returned {type(made).__name__}, which lacks "
            f"{', '.join(missing)} of {kind} (largebatch.data); add what is missing"
        )
    opened = ItemRecords(spec, made) if kind == "Items" else made
    check_class_names(f"data.source={spec}", opened.classes)
    return opened
