"""The data that a configuration names, and what a plan needs to know of them."""

from collections.abc import Callable

from largebatch import data
from largebatch.config import Config, Facts
from largebatch.errors import DataError


def open_source(
    config: Config, split: str, opener: Callable[..., data.Source] = data.open_source
) -> data.Source:
    """The training or validation split of the configured data, opened by ``opener``."""
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
        ),
    )


def facts_of(
    train: data.Source,
    validation: data.Source,
    devices: int,
    processes: int,
    *,
    crops_on_device: bool = False,
) -> Facts:
    """What the plan needs to know.

    Raises:
      DataError: the two splits do not belong together.
      ConfigError: devices are to cut crops from what is no store of decoded pictures.
    """
    if train.classes != validation.classes:
        raise DataError(
            f"{train.name}: training and validation have "
            f"{data.differing(train.classes, validation.classes)}; prepare both alike"
        )
    stored = 0
    if crops_on_device:
        stored = data.stored_source(train).stored_size
        data.stored_source(validation)
    return Facts(
        stored_size=stored,
        train_examples=len(train),
        validation_examples=len(validation),
        classes=len(train.classes),
        image_shape=train.image_shape,
        devices=devices,
        processes=processes,
        identity=int(data.identity(train), 16) >> 4,
    )
