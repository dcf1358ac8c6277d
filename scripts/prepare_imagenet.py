"""Prepare ImageNet from its tars or extracted images, or convert images to another form.

    python scripts/prepare_imagenet.py --tars DIR --out DIR
    python scripts/prepare_imagenet.py --images imagenette2-320.tgz --out DIR
    python scripts/prepare_imagenet.py --from parquet:DIR --to arrayrecord --out DIR

After an interruption, the same command continues. Manual: docs/imagenet.md and data.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from largebatch.cli import Parser
from largebatch.data.prepare.class_folders import prepare_class_folders
from largebatch.data.prepare.convert import Conversion, convert
from largebatch.data.prepare.forms import FORMS
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
        usage="prepare_imagenet.py (--tars DIR | --folders DIR | --images PATH | "
        "--from SOURCE --to FORM | --verify) --out DIR [options]",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--tars", type=Path, help="folder of ILSVRC2012_img_{train,val}.tar")
    what.add_argument("--folders", type=Path, help="folder of train/nXXXXXXXX/ and val/")
    what.add_argument("--images", type=Path, metavar="PATH", help="any class folders, or their tar")
    what.add_argument("--from", dest="source", metavar="SOURCE", help="any set, as data.source")
    what.add_argument("--verify", action="store_true", help="check a finished set")
    parser.add_argument("--out", type=Path, required=True, help="directory of the set")
    parser.add_argument("--to", metavar="FORM", help="--from: the form written, as a source's name")
    parser.add_argument(
        "--classes", type=int, default=0, metavar="N", help="--from: of a set without names"
    )
    parser.add_argument(
        "--validation", type=float, default=0.0, metavar="X", help="--images: share to hold out"
    )
    parser.add_argument(
        "--shorter", type=int, default=0, help="shrink the shorter side to N pixels"
    )
    parser.add_argument("--quality", type=int, default=0, help="of shrunk images, 1 to 100")
    parser.add_argument(
        "--check",
        choices=CHECKS,
        help="by end markers or (--verify) by decoding",
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


def _check_flags(flags: argparse.Namespace) -> None:
    """Raise a ConfigError for flags that do not apply.

    --images and --from store files as they are, so the flags for ImageNet's do not apply to them.
    """
    own = {
        "--validation": (flags.validation, flags.images),
        "--to": (flags.to, flags.source),
        "--classes": (flags.classes, flags.source),
    }
    for name, (value, applies) in own.items():
        if value and not applies:
            what = "--images" if name == "--validation" else "--from"
            raise ConfigError(f"{name} is for {what}; leave it out")
    if flags.source and not flags.to:
        raise ConfigError(f"--from needs --to, the form that is written: {', '.join(FORMS)}")
    if not flags.images and not flags.source:
        return
    _refuse(flags, "--images" if flags.images else "--from")


def _refuse(flags: argparse.Namespace, what: str) -> None:
    """Raise a ConfigError for a flag that is for ImageNet's images."""
    given = {
        "--shorter": flags.shorter,
        "--quality": flags.quality,
        "--check": flags.check,
        "--md5": flags.md5,
        "--allow-partial": flags.allow_partial,
        "--shards": flags.shards and not flags.source,
    }
    for name, value in given.items():
        if value:
            raise ConfigError(f"{name} does not apply to {what}; leave it out")


def main(arguments: Sequence[str]) -> int:
    """Prepare or verify; return the exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Prepare or verify; return the exit code, 130 after Ctrl-C."""
    flags = parse(arguments)
    try:
        _check_flags(flags)
        if flags.source:
            convert(
                Conversion(
                    flags.source,
                    flags.to,
                    flags.out,
                    classes=flags.classes,
                    shards=flags.shards,
                    processes=flags.processes,
                )
            )
            return 0
        if flags.images:
            prepare_class_folders(flags.images, flags.out, validation=flags.validation)
            return 0
        if flags.verify:
            verify(flags.out, check=flags.check or "full", processes=flags.processes)
            return 0
        prepare(
            Options(
                out=flags.out,
                tars=flags.tars,
                folders=flags.folders,
                store=Store(flags.shorter, flags.quality),
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
