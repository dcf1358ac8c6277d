"""Prepare ImageNet or any other labelled images for training, once, and verify the result.

    python scripts/prepare_imagenet.py --tars DIR --out DIR
    python scripts/prepare_imagenet.py --images imagenette2-320 --out DIR
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
from largebatch.data.prepare.command import check_flags, find_input
from largebatch.data.prepare.jobs import system_errors
from largebatch.data.prepare.manifest import verify
from largebatch.data.prepare.run import prepare
from largebatch.fault_tolerance import exit_code
from largebatch.fault_tolerance import exit_codes as codes

_NUMBERS = (
    ("side", "shrink the shorter side of larger images to N pixels, JPEG (0: files as they are)"),
    ("classes", "--from: of a dataset without names"),
    ("shards", "shards of each split (0: as TFDS)"),
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the flags."""
    parser = Parser(
        __doc__,
        usage="prepare_imagenet.py (--tars DIR | --images PATH | --from SOURCE | --verify) "
        "--out DIR [options]",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    tars = "folder of ILSVRC2012_img_{train,val}.tar"
    what.add_argument("--tars", type=Path, metavar="DIR", help=tars)
    images = "class folders, train/ and val/, or their tar"
    what.add_argument("--images", type=Path, metavar="PATH", help=images)
    source = "any dataset, as data.source; parquet:PATH; arrayrecord:URL in a bucket"
    what.add_argument("--from", dest="source", default="", metavar="SOURCE", help=source)
    what.add_argument("--verify", action="store_true", help="check a prepared dataset")
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="directory of the dataset")
    for name, help in _NUMBERS:
        add(f"--{name}", type=int, default=0, metavar="N", help=help)
    share = "--images: share to hold out"
    add("--validation", type=float, default=0.0, metavar="X", help=share)
    add("--allow_partial", action="store_true", help="the images are a part of ImageNet")
    number = f"processes ({cores()})"
    add("--processes", type=int, metavar="N", default=cores(), help=number)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Prepare or verify; return the exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Prepare or verify; return the exit code, 130 after Ctrl-C."""
    flags = parse(arguments)
    check_flags(flags)
    try:
        if flags.verify:
            verify(flags.out, processes=flags.processes)
            return 0
        with system_errors(flags.out):
            found = find_input(flags)
        prepare(found, flags.out, side=flags.side, processes=flags.processes)
    except KeyboardInterrupt:
        print("interrupted; give the same command again to continue", file=sys.stderr)
        return codes.INTERRUPTED
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code == codes.INTERRUPTED:  # at a second Ctrl-C Python would wait forever for its workers
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)
