"""What the flags of `scripts/prepare_imagenet.py` ask for."""

import argparse

from largebatch.data.prepare import datasets
from largebatch.data.prepare.image_files import find_images, find_tars
from largebatch.data.prepare.inputs import Input
from largebatch.errors import ConfigError


def find_input(flags: argparse.Namespace) -> Input:
    """Find the images that the flags name."""
    if flags.tars:
        return find_tars(
            flags.tars,
            partial=flags.allow_partial,
            shards=flags.shards,
            processes=flags.processes,
        )
    if flags.images:
        if flags.out.resolve().is_relative_to(flags.images.resolve()):
            raise ConfigError(
                f"--out={flags.out}: expected a directory outside of --images={flags.images}; use "
                "another one"
            )
        return find_images(
            flags.images,
            validation=flags.validation,
            partial=flags.allow_partial,
            shards=flags.shards,
        )
    return datasets.find(flags.source, classes=flags.classes, shards=flags.shards)


def check_flags(flags: argparse.Namespace) -> None:
    """Raise a ConfigError for a flag that does not apply, or a number out of range."""
    applies = {
        "side": not flags.verify,
        "shards": not flags.verify,
        "validation": flags.images,
        "classes": flags.source,
        "allow_partial": flags.tars or flags.images,
    }
    for name, given in applies.items():
        if getattr(flags, name) and not given:
            raise ConfigError(f"--{name} does not apply to this command; leave it out")
    for name, least in (("processes", 1), ("shards", 0), ("classes", 0)):
        if getattr(flags, name) < least:
            raise ConfigError(f"--{name}: expected at least {least}; correct the number")
