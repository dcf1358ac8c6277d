"""The data source of a configuration, and the facts that a plan needs."""

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np

from largebatch import data
from largebatch.config import Config, Facts
from largebatch.config.facts import KNOWN_SETS, full_source
from largebatch.config.schema import replaced
from largebatch.data.sources import Split
from largebatch.errors import ConfigError, DataError

_SETS = "data.validation_sets"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SPLITS = ("train", "validation")
_PAIRS = 64  # of neighbours that show whether a dataset is in the order of its classes


def open_source(
    config: Config,
    split: str,
    opener: Callable[..., data.Source] = data.open_source,
    *,
    whole: bool = False,
) -> data.Source:
    """Open a split of the configured data.

    Args:
      config: the configuration of a stage.
      split: ``train`` or ``validation``.
      opener: `data.open_source`, or one that keeps what it has opened.
      whole: whether class folders without splits are the validation split.
    """
    options = config.data
    return opener(
        options.source,
        split,
        data.SourceOptions(
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
        ),
    )


def open_validation_sets(
    config: Config, main: data.Source, opener: Callable[..., data.Source] = data.open_source
) -> dict[str, data.Source]:
    """Open the validation splits of ``data.validation_sets``, by name.

    Args:
      config: the configuration of a stage.
      main: the main validation split.
      opener: as in `open_source`.

    Raises:
      ConfigError: a text is not NAME=SOURCE, or a name is taken.
      DataError: a set cannot be opened, or differs from the main one in classes or image size.
    """
    found: dict[str, data.Source] = {}
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
            source = open_source(replaced(config, changes), "validation", opener, whole=True)
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


def grouped_by_class(source: data.Source) -> bool:
    """Return whether neighbours mostly have the same label, as in class folders.

    Reads 64 pairs of neighbours at equal distances. In a random order, neighbours have the same
    label as often as any two examples.
    """
    first = np.linspace(0, max(0, len(source) - 2), _PAIRS).astype(np.int64)
    ids, rows = np.unique([first, np.minimum(first + 1, len(source) - 1)], return_inverse=True)
    (_, labels), _ = data.as_far_as_possible(source.read, ids)
    pairs = labels[rows.reshape(2, -1)]
    _, counts = np.unique(pairs, return_counts=True)
    expected = np.square(counts / counts.sum()).sum()
    return bool(len(counts) > 1 and (pairs[0] == pairs[1]).mean() > (1 + expected) / 2)


def facts_of(train: data.Source, validation: data.Source, devices: int, processes: int) -> Facts:
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
    return Facts(
        train_examples=len(train),
        validation_examples=len(validation),
        classes=len(train.classes),
        image_shape=train.image_shape,
        devices=devices,
        processes=processes,
        identity=int(data.identity(train), 16) >> 4,
        validation_identity=int(data.identity(validation), 16) >> 4,
        content=int(data.content(train, validation) or "0", 16) >> 4,
    )


@dataclasses.dataclass(frozen=True)
class KnownSplit:
    """The facts of a `Source` of a public dataset whose files are not at hand."""

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
        spec: See `open_source`.
        split: `train` or `validation`.
        image_size: Pixels a side; 0 is the photographs' default.
    """
    if spec == "digits" or spec not in KNOWN_SETS:
        return None
    from largebatch.data.photos import MEAN, STD  # brings the image libraries

    known = KNOWN_SETS[spec]
    side = image_size or known.side
    examples = known.train if split == "train" else known.validation
    return KnownSplit(
        spec, examples, tuple(map(str, range(known.classes))), (side, side, 3), MEAN, STD
    )
