"""Whether the compiler knows the XLA options that are set; an unknown one in XLA_FLAGS is fatal."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

from largebatch.config import Config
from largebatch.parallel import compiler
from largebatch.tools.doctor.lines import Line, judged, ok, problem

ENVIRONMENT = "XLA_FLAGS"
OPTIONS = "XLA options"
_LIMIT_S = 60.0


def check_environment() -> Line:
    """Whether a process survives $XLA_FLAGS. To be called before JAX touches a device."""
    flags = os.environ.get("XLA_FLAGS", "")
    if not flags.strip():
        return ok(ENVIRONMENT, "not set")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "import jax; jax.devices()"],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        code, said = done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        code, said = 1, f"no answer in {_LIMIT_S:.0f} s"
    return judge_environment(flags, code, said)


def judge_environment(flags: str, code: int, said: str) -> Line:
    """The line, from how a process with these flags ended and what it wrote."""
    if code == 0:
        return ok(ENVIRONMENT, shlex.join(flags.split()))
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: ?(.*)", said)
    if unknown:
        names = unknown[1].strip().split()
        return problem(
            ENVIRONMENT,
            f"this version of XLA does not know {', '.join(names)}, and every start would abort",
            "take it out of XLA_FLAGS",
        )
    lines = [line for line in said.strip().splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no word"
    return problem(
        ENVIRONMENT, f"a process with {flags} ends with {code}: {last}", "mend or unset XLA_FLAGS"
    )


def check_options(config: Config, platform: str) -> Line:
    """Whether the compiler takes the options of this project and of comm.xla_options.

    Args:
        config: What is to run.
        platform: As of `compiler.platform_of`.

    Raises:
        ConfigError: An option is not written as one.
    """
    asked = compiler.parse_options(config.comm.xla_options)
    ours = compiler.options_for(
        platform, config.comm.allreduce, deterministic=config.run.deterministic
    )
    verdict = compiler.checked(platform, ours | asked)
    return judge_options(platform, list(asked), verdict.accepted, verdict.rejected)


def judge_options(
    platform: str,
    asked: Sequence[str],
    accepted: Mapping[str, str],
    rejected: Mapping[str, str],
) -> Line:
    """The line.

    Args:
        platform: Of the compiler.
        asked: Names that the recipe sets.
        accepted: Name to value of what the compiler takes.
        rejected: Name to reason of what it does not.
    """
    problems = []
    for name, reason in rejected.items():
        whose = "comm.xla_options" if name in asked else "ours, left out by a run"
        remedy = (
            f"take it out of comm.xla_options: {name}"
            if name in asked
            else "use the jax version that docs/performance.md was written with, or expect the "
            "gradients' buckets to be merged"
        )
        problems.append((f"{name} ({whose}): {reason}", remedy))
    words = ", ".join(f"{name}={value}" for name, value in accepted.items())
    return judged(OPTIONS, words or f"none needed for {platform}", problems)
