"""The data source of a configuration, and the facts that a plan needs."""

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np

from largebatch import data
from largebatch.config import Config, Facts
from largebatch.config.facts import KNOWN_SETS, full_source
from largebatch.config.schema import replaced
from largebatch.data.source import MEAN, STD, Split
from largebatch.errors import ConfigError, DataError

_SETS = "data.validation_sets"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SPLITS = ("train", "validation")
_PAIRS = 64  # of neighbours that show whether a dataset is in the order of its classes


def open_split(
    config: Config,
    split: Split,
    opener: Callable[..., data.Dataset] = data.open_dataset,
    *,
    whole: bool = False,
) -> data.Dataset:
    """Open a split of the configured data.

    Args:
      config: the configuration of a stage.
      split: ``train`` or ``validation``.
      opener: `data.open_dataset`, or one that keeps what it has opened.
      whole: whether class folders without splits are the validation split.
    """
    return opener(config.data.source, split, source_options(config, whole=whole))


def source_options(config: Config, *, whole: bool = False) -> data.SourceOptions:
    """Return what a dataset must deliver; arguments as of `open_split`."""
    options = config.data
    return data.SourceOptions(
        image_size=options.image_size,
        examples=options.examples,
        classes=options.classes,
        data_dir=options.data_dir,
        crop_area=options.crop_area,
        crop_ratio=options.crop_ratio,
        evaluation_crop=options.evaluation_crop,
        resampling=options.resampling,
        validation_split=options.validation_split,
        whole=whole,
        cache_bytes=int(options.cache_gb * 1e9),
    )


def open_validation_sets(
    config: Config, main: data.Dataset, opener: Callable[..., data.Dataset] = data.open_dataset
) -> dict[str, data.Dataset]:
    """Open the validation splits of ``data.validation_sets``, by name.

    Args:
      config: the configuration of a stage.
      main: the main validation split.
      opener: as in `open_split`.

    Raises:
      ConfigError: a text is not NAME=SOURCE, or a name is taken.
      DataError: a set cannot be opened, or differs from the main one in classes or image size.
    """
    found: dict[str, data.Dataset] = {}
    for text in config.data.validation_sets:
        name, _, spec = (part.strip() for part in text.partition("="))
        if not spec or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{_SETS}: expected NAME=SOURCE with names of letters, digits, dots, dashes and "
                f"underscores, got {text!r}; use --config.{_SETS}='v2=folder:PATH'"
            )
        if name in (*found, *_SPLITS):
            raise ConfigError(f"{_SETS}: the name {name} of {text!r} is taken; use another name")
        changes = {"data.source": full_source(spec), "data.validation_split": 0.0}
        try:
            source = open_split(replaced(config, changes), "validation", opener, whole=True)
        except (ConfigError, DataError) as error:
            reason = str(error).removeprefix("data.source: ")
            raise type(error)(f"{_SETS}: {name}: {reason}") from error
        if source.classes != main.classes:
            raise DataError(
                f"{_SETS}: {name} and the main validation set have "
                f"{data.differing(source.classes, main.classes)}; use a set of the same classes"
            )
        if source.image_shape != main.image_shape:
            raise DataError(
                f"{_SETS}: expected images of {main.image_shape}, got {source.image_shape} in "
                f"{name}; use a set of the same image size"
            )
        found[name] = source
    return found


def augment_of(config: Config, mean: Sequence[float]) -> data.Augment:
    """Return the augmentation of training images, given their mean colour in 0..255."""
    options, policy = config.augment, None
    if options.policy != "none":
        from largebatch.data.policies import Policy  # brings Pillow

        policy = Policy(
            "randaugment" if options.rand else "trivialaugment",
            *(options.rand or ()),
            fill=tuple(round(level) for level in mean),
        )
    return data.Augment(
        shift=config.data.shift,
        flip=config.data.flip,
        policy=policy,
        erase=options.erase,
        mixup=options.mixup,
        cutmix=options.cutmix,
    )


def grouped_by_class(dataset: data.Dataset) -> bool:
    """Return whether neighbours mostly have the same label, as in class folders.

    Reads 64 pairs of neighbours at equal distances. In a random order, neighbours have the same
    label as often as any two examples.
    """
    source = dataset.source
    first = np.linspace(0, max(0, len(source) - 2), _PAIRS).astype(np.int64)
    ids, rows = np.unique([first, np.minimum(first + 1, len(source) - 1)], return_inverse=True)
    labels = source.read(ids)[1] if source.labels is None else source.labels[ids]
    pairs = labels[rows.reshape(2, -1)]
    _, counts = np.unique(pairs, return_counts=True)
    expected = np.square(counts / counts.sum()).sum()
    return bool(len(counts) > 1 and (pairs[0] == pairs[1]).mean() > (1 + expected) / 2)


def facts_of(
    train: "data.Dataset | KnownSplit",
    validation: "data.Dataset | KnownSplit",
    devices: int,
    processes: int,
) -> Facts:
    """Return the facts that the plan needs.

    Raises:
      DataError: the two splits have different classes, or only one.
    """
    if train.classes != validation.classes:
        raise DataError(
            f"{train.name}: training and validation have "
            f"{data.differing(train.classes, validation.classes)}; prepare both alike"
        )
    if len(train.classes) < 2:
        raise DataError(
            f"data.source={train.name}: expected at least 2 classes, got "
            f"{', '.join(map(repr, train.classes)) or 'none'}, which cannot be learned; use images "
            "of more classes"
        )
    facts = Facts(
        train_examples=len(train),
        validation_examples=len(validation),
        classes=len(train.classes),
        image_shape=train.image_shape,
        devices=devices,
        processes=processes,
    )
    if isinstance(train, KnownSplit) or isinstance(validation, KnownSplit):
        return facts
    return dataclasses.replace(
        facts,
        identity=int(data.identity(train.source), 16) >> 4,
        validation_identity=int(data.identity(validation.source), 16) >> 4,
        # Arrays of one shape are computed, or in memory: they have no copy in another place.
        content=0
        if train.source.image_shape
        else int(data.content(train.source, validation.source), 16) >> 4,
    )


@dataclasses.dataclass(frozen=True)
class KnownSplit:
    """The facts of a `Dataset` whose files are not at hand."""

    name: str
    examples: int
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return self.examples


def known_split(spec: str, split: Split, image_size: int = 0) -> KnownSplit | None:
    """Return the facts of a split of a public dataset of photographs; None if it is not known.

    Args:
        spec: See `source.open_source`.
        split: `train` or `validation`.
        image_size: Pixels a side; 0 is the photographs' default.
    """
    if spec == "digits" or spec not in KNOWN_SETS:
        return None
    known = KNOWN_SETS[spec]
    side = image_size or known.side
    examples = known.train if split == "train" else known.validation
    return KnownSplit(
        spec, examples, tuple(map(str, range(known.classes))), (side, side, 3), MEAN, STD
    )
