"""Tries options on the compiler of a platform. For accelerators it runs as a child process.

Standard input is a JSON object {"platform": …, "options": {name: value}}. Each line of standard
output is one verdict as JSON, [name, reason], with an empty reason for an accepted option. The
first has the name "" and the verdict for a program without options. No accelerator is used: every
build of XLA parses options of GPUs, and those of TPUs are tried on a program for absent chips.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

TINY_TPUS = {
    "tpu": "v5e:2x2",
    "tpu:v3": "v3:2x2",
    "tpu:v4": "v4:2x2x1",
    "tpu:v5e": "v5e:2x2",
    "tpu:v5p": "v5p:2x2x1",
    "tpu:v6e": "v6e:2x2",
}
"""The smallest absent slice of each platform."""


def lowered(platform: str) -> Any:
    """Return a program of one addition, lowered for the platform."""
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    number = jax.ShapeDtypeStruct((), "float32")
    if platform in TINY_TPUS:
        tiny = TINY_TPUS[platform]
        described = topologies.get_topology_desc(platform="tpu", topology_name=tiny)
        sharding = SingleDeviceSharding(described.devices[0])
        number = jax.ShapeDtypeStruct((), "float32", sharding=sharding)
    return jax.jit(lambda x: x + 1).lower(number)


def answers(platform: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Try each option on its own; yield its name and the reason against it, first without any."""
    program = lowered(platform)
    for name, value in [("", None), *options.items()]:
        reason = ""
        try:
            program.compile(compiler_options={name: value} if name else None)
        except Exception as error:  # any exception is the reason against the option
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        yield name, reason


def main() -> int:
    """Answer the request of standard input."""
    request = json.load(sys.stdin)
    for answer in answers(request["platform"], request["options"]):
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
