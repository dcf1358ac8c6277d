"""Peak rates of devices and of the networks between them, as their makers state them.

The numbers and their sources are in ``clusters.toml``. Rates are those of the line without
protocol. Real rates are lower; ``scripts/benchmark.py allreduce`` fits them.
"""

import dataclasses
import math
import tomllib
import types
from collections.abc import Mapping
from importlib import resources
from typing import Any

from largebatch.errors import ConfigError, did_you_mean

_FORMATS = ("float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Link:
    """A device's link to its neighbours."""

    bandwidth: float
    """Bytes/s for each device and direction."""
    latency: float
    """Seconds of a message without bytes."""


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One kind of device, as JAX counts devices, in its usual machine."""

    name: str
    kinds: tuple[str, ...]
    """Parts of ``device_kind`` in lower case; the longest that it contains decides."""
    flops: Mapping[str, float]
    """Peak FLOP/s by number format."""
    bandwidth: float
    """Bytes/s of device memory."""
    memory: float
    """Bytes of device memory."""
    devices_per_node: int
    inside: Link
    """Between devices of a node; for a torus, one ICI link."""
    between: Link
    """Between nodes, or between slices of a torus."""
    launch_s: float
    """Seconds of every collective besides its messages."""
    sustained: float
    """Share of the roofline (peak FLOP/s and memory bandwidth) that ResNet-50 training reaches."""
    torus: int = 0
    """Dimensions of the network inside a slice; 0: nodes and switches."""
    slice_chips: int = 0
    """Chips of the largest torus."""
    wrap: int = 1
    """An axis closes to a ring if its length is a multiple of this."""
    devices_per_chip: int = 1
    bucket_mib: float = 0.0
    """Least size of a bucket for ``comm.bucket_mib=auto``, in MiB; 0: planned.

    Only in one slice, and unless ``comm.xla_options`` makes all-reduces synchronous.
    """
    in_turn: bool = False
    """Whether each all-reduce of gradients must depend on the one before (``clusters``)."""
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Machine:
    """A named cluster of devices of one kind."""

    name: str
    hardware: Hardware
    source: str
    devices_per_node: int = 0
    """0: the usual number of the hardware."""
    rack_nodes: int = 0
    """Nodes with full bandwidth between them; 0: all."""
    uplink_share: float = 1.0
    """Bandwidth that leaves a rack, of what its nodes have together."""
    most_devices: int = 0
    """Devices of the whole machine; 0: no limit."""


def read(text: str, file: str) -> tuple[dict[str, Hardware], dict[str, Machine]]:
    """Return the hardware and clusters of a TOML text, by name.

    Args:
      text: as in ``clusters.toml``.
      file: its name, for errors.

    Raises:
      ConfigError: no TOML, an unknown or missing key, a number that is not positive and finite, or
        a cluster of unknown hardware.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: expected TOML: {error}") from error
    unknown = sorted(set(tables) - {"hardware", "cluster"})
    if unknown:
        raise ConfigError(f"{file}: unknown table {unknown[0]!r}; use [hardware.…], [cluster.…]")
    hardware = {
        name: _hardware(name, facts, f"{file}, hardware.{name}")
        for name, facts in tables.get("hardware", {}).items()
    }
    machines = {}
    for name, facts in tables.get("cluster", {}).items():
        place = f"{file}, cluster.{name}"
        _check_keys(facts, Machine, place)
        of = facts["hardware"]
        if of not in hardware:
            raise ConfigError(f"{place}: hardware {of!r}; {did_you_mean(of, hardware)}")
        _check_numbers(facts, place)
        if not 0 < facts.get("uplink_share", 1.0) <= 1:
            raise ConfigError(f"{place}.uplink_share: expected 0 to 1, got {facts['uplink_share']}")
        machines[name] = Machine(**{**facts, "name": name, "hardware": hardware[of]})
    return hardware, machines


def _hardware(name: str, facts: Mapping[str, Any], place: str) -> Hardware:
    _check_keys(facts, Hardware, place)
    _check_numbers(facts, place)
    if set(facts["flops"]) != set(_FORMATS):
        raise ConfigError(f"{place}.flops: expected {_FORMATS}, got {', '.join(facts['flops'])}")
    links = {}
    for way in ("inside", "between"):
        _check_keys(facts[way], Link, f"{place}.{way}")
        links[way] = Link(**facts[way])
    return Hardware(
        **{
            **facts,
            **links,
            "name": name,
            "kinds": tuple(facts["kinds"]),
            "flops": types.MappingProxyType(dict(facts["flops"])),
        }
    )


def _check_keys(facts: Mapping[str, Any], kind: type, place: str) -> None:
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name != "name"}
    for key in facts:
        if key not in fields:
            raise ConfigError(f"{place}: unknown key {key!r}; {did_you_mean(key, fields)}")
    for key, field in fields.items():
        if key not in facts and field.default is dataclasses.MISSING:
            raise ConfigError(f"{place}: missing {key!r}")


def _check_numbers(facts: Mapping[str, Any], place: str) -> None:
    for key, value in facts.items():
        if isinstance(value, dict):
            _check_numbers(value, f"{place}.{key}")
        elif isinstance(value, int | float) and not 0 < value < math.inf:
            raise ConfigError(f"{place}.{key}: expected a positive finite number, got {value}")


_FILE = "clusters.toml"
_hardware_read, _machines_read = read(
    (resources.files("largebatch.parallel") / _FILE).read_text(encoding="utf-8"), _FILE
)
HARDWARE: Mapping[str, Hardware] = types.MappingProxyType(_hardware_read)
MACHINES: Mapping[str, Machine] = types.MappingProxyType(_machines_read)


def machine(name: str) -> Machine:
    """Return a named cluster.

    Raises:
      ConfigError: the name is unknown.
    """
    if name not in MACHINES:
        raise ConfigError(f"unknown cluster {name!r}; {did_you_mean(name, MACHINES)}")
    return MACHINES[name]


def hardware_of(device_kind: str) -> Hardware | None:
    """Return the hardware of a ``device_kind`` ('NVIDIA H200', 'TPU v5 lite'); None if unknown."""
    text = device_kind.lower()
    fitting = [
        (len(kind), name)
        for name, hardware in HARDWARE.items()
        for kind in hardware.kinds
        if kind in text
    ]
    return HARDWARE[max(fitting)[1]] if fitting else None
