"""Prepare ImageNet or any other labelled images for training, once, and verify the result.

    python scripts/prepare_imagenet.py --tars DIR --out DIR
    python scripts/prepare_imagenet.py --images imagenette2-320.tgz --out DIR
    python scripts/prepare_imagenet.py --from parquet:gs://BUCKET/imagenet --out DIR
    python scripts/prepare_imagenet.py --verify --out DIR

Writes ArrayRecord shards with the metadata of TensorFlow Datasets. After an interruption, the same
command continues. Manual: docs/imagenet.md.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from largebatch.cli import Parser
from largebatch.data.feed import cores
from largebatch.data.prepare import datasets
from largebatch.data.prepare.image_files import find_images, find_tars
from largebatch.data.prepare.inputs import Input
from largebatch.data.prepare.jobs import system_errors
from largebatch.data.prepare.manifest import verify
from largebatch.data.prepare.run import prepare
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.fault_tolerance import exit_codes as codes


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the flags."""
    parser = Parser(
        __doc__,
        usage="prepare_imagenet.py (--tars DIR | --images PATH | --from SOURCE | --verify) "
        "--out DIR [options]",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--tars", type=Path, metavar="DIR", help="folder of ILSVRC2012_img_{train,val}.tar"
    )
    what.add_argument(
        "--images", type=Path, metavar="PATH", help="class folders, train/ and val/, or their tar"
    )
    what.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="SOURCE",
        help="any dataset, as data.source; parquet:PATH; arrayrecord:URL in a bucket",
    )
    what.add_argument("--verify", action="store_true", help="check a prepared dataset")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="directory of the dataset"
    )
    parser.add_argument(
        "--side",
        type=int,
        default=0,
        metavar="N",
        help="shrink the shorter side of larger images to N pixels, JPEG (0: files as they are)",
    )
    parser.add_argument(
        "--validation", type=float, default=0.0, metavar="X", help="--images: share to hold out"
    )
    parser.add_argument(
        "--classes", type=int, default=0, metavar="N", help="--from: of a dataset without names"
    )
    parser.add_argument(
        "--md5", action="store_true", help="--tars: compare published checksums first"
    )
    parser.add_argument(
        "--allow_partial", action="store_true", help="the images are a part of ImageNet"
    )
    parser.add_argument(
        "--shards", type=int, default=0, metavar="N", help="shards of each split (0: as TFDS)"
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", default=cores(), help=f"processes ({cores()})"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Prepare or verify; return the exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Prepare or verify; return the exit code, 130 after Ctrl-C."""
    flags = parse(arguments)
    _check_flags(flags)
    try:
        if flags.verify:
            verify(flags.out, processes=flags.processes)
            return 0
        with system_errors(flags.out):
            found = _find(flags)
        prepare(found, flags.out, side=flags.side, processes=flags.processes)
    except KeyboardInterrupt:
        print("interrupted; give the same command again to continue", file=sys.stderr)
        return codes.INTERRUPTED
    return 0


def _find(flags: argparse.Namespace) -> Input:
    """Find the images of the input."""
    if flags.tars:
        return find_tars(
            flags.tars,
            md5=flags.md5,
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


def _check_flags(flags: argparse.Namespace) -> None:
    """Raise a ConfigError for a flag that does not apply, or a number out of range."""
    applies = {
        "side": not flags.verify,
        "shards": not flags.verify,
        "validation": flags.images,
        "classes": flags.source,
        "md5": flags.tars,
        "allow_partial": flags.tars or flags.images,
    }
    for name, given in applies.items():
        if getattr(flags, name) and not given:
            raise ConfigError(f"--{name} does not apply to this command; leave it out")
    for name, least in (("processes", 1), ("shards", 0), ("classes", 0)):
        if getattr(flags, name) < least:
            raise ConfigError(f"--{name}: expected at least {least}; correct the number")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code == codes.INTERRUPTED:  # at a second Ctrl-C Python would wait forever for its workers
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)
