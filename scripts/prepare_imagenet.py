"""Prepare ImageNet for training from its tars or extracted images, or make shards of other images.

    python scripts/prepare_imagenet.py --tars DIR --out DIR
    python scripts/prepare_imagenet.py --verify --out DIR
    python scripts/prepare_imagenet.py --images imagenette2-320.tgz --out DIR

After an interruption, the same command continues. --images writes an arrayrecord:DIR of any class
folders. docs/imagenet.md is the manual.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from largebatch.cli import Parser
from largebatch.data.prepare.class_folders import prepare_class_folders
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.run import Options, prepare
from largebatch.data.prepare.shards import CHECKS
from largebatch.data.prepare.verify import verify
from largebatch.data.reading import cores
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.fault_tolerance import exit_codes as codes


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the flags."""
    parser = Parser(
        __doc__,
        usage="prepare_imagenet.py (--tars DIR | --folders DIR | --images PATH | --verify) "
        "--out DIR [options]",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--tars", type=Path, help="folder of ILSVRC2012_img_{train,val}.tar")
    what.add_argument("--folders", type=Path, help="folder of train/nXXXXXXXX/ and val/")
    what.add_argument("--images", type=Path, metavar="PATH", help="any class folders, or their tar")
    what.add_argument("--verify", action="store_true", help="check a finished set")
    parser.add_argument("--out", type=Path, required=True, help="directory of the set")
    parser.add_argument(
        "--validation", type=float, default=0.0, metavar="X", help="--images: share to hold out"
    )
    parser.add_argument(
        "--store", choices=("jpeg", "decoded"), default="jpeg", help="store files or pixels"
    )
    parser.add_argument(
        "--shorter", type=int, default=0, help="jpeg: shrink the shorter side to N pixels"
    )
    parser.add_argument("--quality", type=int, default=0, help="jpeg: of shrunk images, 1 to 100")
    parser.add_argument("--size", type=int, default=0, help="decoded: pixels a side")
    parser.add_argument(
        "--check",
        choices=CHECKS,
        help="check images by header and end marker (default of preparation) or by decoding "
        "(default of --verify); full writes shards again that ends has checked",
    )
    parser.add_argument("--md5", action="store_true", help="check the tars first: some minutes")
    parser.add_argument(
        "--allow_partial", action="store_true", help="accept fewer images or one split"
    )
    parser.add_argument("--shards", type=int, default=0, help="shards of each split (as TFDS)")
    parser.add_argument(
        "--processes", type=int, metavar="N", default=cores(), help=f"processes ({cores()})"
    )
    return parser.parse_args(arguments)


def _check_images(flags: argparse.Namespace) -> None:
    """Raise a ConfigError for flags of ImageNet: --images stores files as they are."""
    given = {
        "--store decoded": flags.store != "jpeg",
        "--shorter": flags.shorter,
        "--quality": flags.quality,
        "--size": flags.size,
        "--check": flags.check,
        "--md5": flags.md5,
        "--allow-partial": flags.allow_partial,
        "--shards": flags.shards,
    }
    for name, value in given.items():
        if value:
            raise ConfigError(f"{name} does not apply to --images; leave it out")


def main(arguments: Sequence[str]) -> int:
    """Prepare or verify; return the exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Prepare or verify; return the exit code, 130 after Ctrl-C."""
    flags = parse(arguments)
    try:
        if flags.images:
            _check_images(flags)
            prepare_class_folders(flags.images, flags.out, validation=flags.validation)
            return 0
        if flags.validation:
            raise ConfigError("--validation is for --images; leave it out")
        if flags.verify:
            verify(flags.out, check=flags.check or "full", processes=flags.processes)
            return 0
        prepare(
            Options(
                out=flags.out,
                tars=flags.tars,
                folders=flags.folders,
                store=Store(flags.store, flags.shorter, flags.quality, flags.size),
                check=flags.check or "ends",
                md5=flags.md5,
                partial=flags.allow_partial,
                shards=flags.shards,
                processes=flags.processes,
            )
        )
    except KeyboardInterrupt:
        print("interrupted; give the same command again to continue", file=sys.stderr)
        return codes.INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
