"""Write the weights of a run for other libraries.

    python scripts/export.py runs/digits --to=digits.safetensors
    python scripts/export.py runs/imagenet --to=resnet50/ --format=huggingface --verify

WEIGHTS can also be a checkpoint, an exported file or published weights. Formats: torchvision (and
timm, which has the same names) for .safetensors, onnx for .onnx, huggingface or timm for a folder.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from largebatch import weights
from largebatch.cli import Parser
from largebatch.fault_tolerance import exit_code


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(__doc__)
    made.add_argument(
        "weights", type=Path, metavar="WEIGHTS", help="run, checkpoint or file to read"
    )
    made.add_argument("--best", action="store_true", help="best checkpoint of a run, not newest")
    made.add_argument("--ema", action="store_true", help="averaged weights of a run (schedule.ema)")
    made.add_trust()
    made.add_argument("--to", type=Path, required=True, help="file or folder to write")
    made.add_argument("--format", choices=weights.FORMATS, help="format (by the suffix of --to)")
    made.add_argument("--force", action="store_true", help="replace what is there")
    made.add_argument(
        "--verify", action="store_true", help="load it in that library and compare logits"
    )
    return made


def run(arguments: Sequence[str]) -> None:
    """Export and print what was written."""
    flags = parser().parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing here needs an accelerator
    form = weights.format_of(flags.to, flags.format)
    found = weights.read(flags.weights, ema=flags.ema, best=flags.best, trust=flags.trust)
    written = weights.export(found, flags.to, form, force=flags.force)
    for line in described(found, written):
        print(line)
    if flags.verify:
        print(f"verified {weights.verify(written)}")


def described(found: weights.Weights, written: weights.Written) -> list[str]:
    """Return what was written, its input, and how to load it, as lines."""
    model = written.weights.model
    height, width, channels = found.image_shape
    names = f"{len(found.classes):,} names" if found.classes else "without names"
    lines = [f"from     {found.origin}: {model.title}, {model.classes:,} classes ({names})"]
    lines += [f"written  {path} ({path.stat().st_size:,} bytes)" for path in written.files]
    lines += [
        f"images   {channels} × {height} × {width}, (pixel − mean) / std of 0..255: "
        f"mean {_numbers(found.mean)}; std {_numbers(found.std)}"
    ]
    lines += [f"note     {note}" for note in written.notes]
    return [*lines, "load it with", *(f"    {line}" for line in written.loading)]


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code (largebatch.fault_tolerance.exit_codes)."""
    return exit_code(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
