"""Plan a recipe: its steps, rates, FLOPs and predicted time, and its step compiled for a topology.

    python scripts/plan.py --config=configs/fujitsu2019_81920.py
    python scripts/plan.py --config=configs/fujitsu2019_81920.py --topology=v100:2048
    python scripts/plan.py --all --json=records/compile.json

Without --topology nothing is compiled. Topologies: cpu:N, v100:N, a100:N, h100:N, h200:N,
tpu:KIND:SHAPE (such as tpu:v5p:8x16x16). Nothing runs on an accelerator. The extras compile-gpu and
compile-tpu install the compilers of absent devices. Further options are those of the recipe:
--config.section.key=value.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from planning import every, session

from largebatch.cli import Parser
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent
from largebatch.planning.compile import LIMIT_GIB, LIMIT_S, VARIANTS
from largebatch.planning.prediction import known_clusters


def parser() -> Parser:
    """The command line."""
    made = Parser(
        __doc__, usage="plan.py --config RECIPE [options] [--config.section.key=value ...]"
    )
    made.add_recipe("recipe: a name in configs/ or a file", optional=True)
    made.add_argument(
        "--all",
        nargs="?",
        const="",
        metavar="NAMES",
        help="compile every recipe for its own devices",
    )
    made.add_argument("--devices", type=int, help="devices to predict for (the published run's)")
    made.add_argument(
        "--cluster",
        help=f"their cluster: {', '.join(known_clusters())}, or a file FILE.toml that describes it "
        "(the published)",
    )
    made.add_argument("--topology", help="devices to compile for, such as v100:2048")
    made.add_argument(
        "--variants",
        default="ours",
        help=f"variants to compile, with commas between, of {', '.join(VARIANTS)} (ours)",
    )
    made.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="OPTION=A,B,…",
        help="compile the step with each value of an option, such as model.remat=none,norms, "
        "and compare bytes and kernels; a value with commas is in double quotes; several: all "
        "combinations",
    )
    made.add_argument("--json", type=Path, help="where to write the report")
    made.add_argument(
        "--limit_s", type=float, default=LIMIT_S, help=f"seconds per compilation ({LIMIT_S:.0f})"
    )
    made.add_argument(
        "--limit_gib", type=float, default=LIMIT_GIB, help=f"memory of the compiler ({LIMIT_GIB:g})"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Plan; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Plan one recipe, or compile all.

    Raises:
      UserError: a mistake on the command line, or a recipe that does not compile.
    """
    flags, overrides = parser().parse_run(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing here needs an accelerator
    if flags.json:
        check_parent(flags.json)
    if flags.all is None:
        session.run(flags, overrides, arguments)
    elif flags.config or overrides:
        raise ConfigError("--all: expected no recipe and no options of one beside it")
    else:
        every.run(flags, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
