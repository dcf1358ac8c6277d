"""The XLA options of a run, and the check that a compiler accepts them.

By default XLA merges neighbouring all-reduces, and with them all gradients into one after backward.
Options are passed with each program (``compiler_options``); an unknown name in the environment's
``XLA_FLAGS`` would end the process. A child process tries every option first, or this process for
CPUs. Options that the compiler refuses are left out with a warning.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax

from largebatch.config.registries import SCHEMES
from largebatch.environment import versions
from largebatch.errors import ConfigError
from largebatch.files import user_cache, write_json
from largebatch.parallel import option_check
from largebatch.parallel.hardware import hardware_of
from largebatch.parallel.option_table import TABLE
from largebatch.parallel.processes import agreed_minimum

_CHECK = Path(__file__).with_name("option_check.py")
_CHECK_S = 180.0
# The packages that decide which names a compiler knows.
_PACKAGES = ("jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "libtpu")
_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The options that a compiler accepts and refuses."""

    accepted: Mapping[str, str]
    rejected: Mapping[str, str]
    """Name to reason."""


def platform_of(device: jax.Device) -> str:
    """The table's name for a device's platform: cuda, rocm, tpu, tpu:v5p (a known one), or cpu."""
    if device.platform == "tpu":
        known = hardware_of(device.device_kind)
        return known.name if known else "tpu"
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def options_for(platform: str, allreduce: str, *, deterministic: bool = False) -> dict[str, str]:
    """Return our options for ``comm.allreduce`` and ``run.deterministic``, name to value."""
    separate = SCHEMES[allreduce].separate
    family, _, generation = platform.partition(":")
    ours = (*TABLE.get(family, ()), *(TABLE.get(platform, ()) if generation else ()))
    return {
        option.name: option.value
        for option in ours
        if (separate or not option.separates) and (deterministic or not option.deterministic)
    }


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``comm.xla_options``.

    A value may be empty: ``xla_gpu_enable_command_buffer=`` switches CUDA graphs off.

    Raises:
      ConfigError: a text is not ``name=value``.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("--")
        if not equals or not name.startswith("xla_"):
            raise ConfigError(
                f"comm.xla_options: expected xla_name=value with commas between, got {text!r}"
            )
        # XLA reads booleans as they are written in Python.
        found[name] = {"true": "True", "false": "False"}.get(value.strip(), value.strip())
    return found


def overlaps(platform: str, extra: Sequence[str]) -> bool:
    """Whether ``comm.xla_options`` leaves on what makes a TPU's all-reduces asynchronous.

    Args:
      platform: as ``platform_of`` names it.
      extra: ``comm.xla_options``. An option that the environment sets or the compiler refuses is
        not known here.

    Raises:
      ConfigError: see ``parse_options``.
    """
    given = parse_options(extra)
    needed = (option.name for option in TABLE.get(platform, ()) if option.overlaps)
    return not any(given.get(name) in ("False", "0") for name in needed)


def program_options(
    platform: str,
    allreduce: str,
    extra: Sequence[str],
    warn: Callable[[str], None],
    cache: Path | None = None,
    *,
    deterministic: bool = False,
) -> dict[str, str]:
    """Return the options that every process compiles its programs with.

    These are ours, unless the environment sets the same name, updated by those of the
    configuration. Options that the compiler of any process refuses are left out, with a warning
    there.

    Args:
      platform: as ``platform_of`` names it.
      allreduce: ``comm.allreduce``.
      extra: ``comm.xla_options``.
      warn: called with a line for each option that is left out.
      cache: as of ``checked``.
      deterministic: ``run.deterministic``.

    Raises:
      ConfigError: see ``parse_options``.
    """
    asked = parse_options(extra)
    wanted = options_for(platform, allreduce, deterministic=deterministic) | asked
    if not wanted:
        return {}
    taken = _set_in_environment(os.environ) - set(asked)
    verdict = checked(platform, {n: v for n, v in wanted.items() if n not in taken}, cache)
    for name, reason in verdict.rejected.items():
        warn(f"the compiler refuses {name}, which is left out: {reason}")
    # Programs that communicate must be the same everywhere.
    return {n: v for n, v in sorted(wanted.items()) if agreed_minimum(int(n in verdict.accepted))}


def checked(platform: str, options: Mapping[str, str], cache: Path | None = None) -> Verdict:
    """Try options in a child process, without touching an accelerator, or here for CPUs.

    The verdict of a child is cached by the versions of the compilers.

    Args:
      platform: as ``platform_of`` names it.
      options: name to value.
      cache: directory of verdicts; None: ``largebatch/xla_options`` in the user's cache.
    """
    if not options:
        return Verdict({}, {})
    if platform == "cpu":  # its compiler reports an unknown name or value as an exception
        return _verdict(options, dict(option_check.answers(platform, options)))
    path = (cache or user_cache() / "xla_options") / f"{_key(platform, options)}.json"
    try:
        kept = json.loads(path.read_text())
        return Verdict(kept["accepted"], kept["rejected"])
    except (OSError, ValueError, KeyError):
        pass
    reasons, is_final = _try(platform, options)
    verdict = _verdict(options, reasons)
    if is_final:
        # Without a cache the next start takes seconds longer.
        with contextlib.suppress(OSError):
            write_json(path, dataclasses.asdict(verdict))
    return verdict


def _verdict(options: Mapping[str, str], reasons: Mapping[str, str]) -> Verdict:
    return Verdict(
        accepted={name: value for name, value in options.items() if not reasons[name]},
        rejected={name: reasons[name] for name in options if reasons[name]},
    )


def _try(platform: str, options: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """Return the reason against each option ("" if it is accepted), and whether it is final."""
    reasons: dict[str, str] = {}
    while left := {name: value for name, value in options.items() if name not in reasons}:
        answers, problem = _child(platform, left)
        if "" not in answers or answers.pop(""):
            # The program without options failed too: the options remain untested.
            return reasons | dict.fromkeys(left, f"it could not be tried ({problem})"), False
        reasons |= answers
        unanswered = [name for name in left if name not in answers]
        if unanswered:  # the first of them ended the process; the others are tried again
            reasons[unanswered[0]] = f"the compiler ended ({problem})"
    return {name: reasons[name] for name in options}, True


def _child(platform: str, options: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the answers of a child process, and how it ended."""
    environment = {k: v for k, v in os.environ.items() if k not in _ENVIRONMENT}
    environment |= {
        "JAX_PLATFORMS": "cpu",
        # Leave chips alone that this process or another uses.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_SKIP_MDS_QUERY": "1",
    }
    request = json.dumps({"platform": platform, "options": dict(options)})
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_CHECK)],
            input=request,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_CHECK_S,
        )
        output, errors, problem = done.stdout, done.stderr, f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode()
        errors, problem = "", f"no answer in {_CHECK_S:.0f} s"
    answers = {}
    for line in output.splitlines():
        if line.startswith("["):
            name, reason = json.loads(line)
            answers[name] = reason
    last = (answers.get("") or (errors.strip().splitlines() or [""])[-1]).strip()
    return answers, f"{problem}: {last}" if last else problem


def _key(platform: str, options: Mapping[str, str]) -> str:
    text = json.dumps([platform, sorted(options.items()), versions(_PACKAGES)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _set_in_environment(environ: Mapping[str, str]) -> set[str]:
    """Return the names of the options in the environment."""
    words = " ".join(environ.get(name, "") for name in _ENVIRONMENT).split()
    return {word.lstrip("-").partition("=")[0] for word in words}
