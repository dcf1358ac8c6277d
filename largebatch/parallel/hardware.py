"""Peak rates of devices and of the networks between them, as their makers state them.

The numbers and their sources are in ``clusters.toml``. Rates are those of the line without
protocol. Real rates are lower; ``scripts/benchmark.py allreduce`` fits them.
"""

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from largebatch.errors import ConfigError, did_you_mean

_FORMATS = ("float32", "float16", "bfloat16")
_DESCRIBED = {
    bool: "true or false",
    dict: "a table",
    float: "a number",
    int: "an integer",
    list: "a list of texts",
    str: "a text",
}


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
    flops: Mapping[str, float] = dataclasses.field(hash=False)  # a mapping has no hash
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
    tables = _tables(text, file)
    unknown = sorted(set(tables) - {"hardware", "cluster"})
    if unknown:
        raise ConfigError(f"{file}: unknown table {unknown[0]!r}; use [hardware.…], [cluster.…]")
    hardware = {
        name: _hardware(name, facts, f"{file}, hardware.{name}")
        for name, facts in tables.get("hardware", {}).items()
    }
    machines = {}
    for name, facts in tables.get("cluster", {}).items():
        machines[name] = _machine(name, facts, f"{file}, cluster.{name}", hardware)
    return hardware, machines


def _tables(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: expected TOML ({error}); fix the file") from error


def _machine(
    name: str, facts: Mapping[str, Any], place: str, known: Mapping[str, Hardware]
) -> Machine:
    """Return a cluster of known hardware.

    Raises:
      ConfigError: a key or a value is wrong.
    """
    of = facts.get("hardware")
    if of is not None and (not isinstance(of, str) or of not in known):
        raise ConfigError(
            f"{place}: hardware={of!r} is unknown; {did_you_mean(str(of), known)}; or describe "
            "it in a table [hardware]"
        )
    _check(facts, Machine, place)
    if not 0 < facts.get("uplink_share", 1.0) <= 1:
        raise ConfigError(
            f"{_at(place, 'uplink_share')}={facts['uplink_share']}: expected a share of the "
            "bandwidth; use a number above 0 and at most 1"
        )
    return Machine(**{**facts, "name": name, "hardware": known[of]})


def _hardware(name: str, facts: Mapping[str, Any], place: str) -> Hardware:
    _check(facts, Hardware, place)
    if set(facts["flops"]) != set(_FORMATS):
        raise ConfigError(
            f"{place}.flops: expected {', '.join(_FORMATS)}, got {', '.join(facts['flops'])}; use "
            "the FLOP/s of each of these formats"
        )
    for key, value in facts["flops"].items():
        _check_type(value, float, f"{place}.flops.{key}")
    _check_numbers(facts["flops"], f"{place}.flops")
    return Hardware(
        **{
            **facts,
            **{way: _link(facts[way], f"{place}.{way}") for way in ("inside", "between")},
            "name": name,
            "kinds": tuple(facts["kinds"]),
            "flops": types.MappingProxyType(dict(facts["flops"])),
        }
    )


def _link(facts: Any, place: str) -> Link:
    _check(facts, Link, place)
    return Link(**facts)


def _check(facts: Any, kind: type, place: str) -> None:
    """Check the keys, types and signs of a table with the fields of a class.

    Raises:
      ConfigError: one of them is wrong.
    """
    _check_type(facts, dict, place)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name != "name"}
    for key in facts:
        if key not in fields:
            raise ConfigError(f"{place}: unknown key {key!r}; {did_you_mean(key, fields)}")
    for key, field in fields.items():
        if key in facts:
            of = typing.get_origin(field.type) or field.type
            written = {tuple: list, Mapping: dict, Link: dict, Hardware: str}.get(of, of)
            _check_type(facts[key], written, _at(place, key))
        elif field.default is dataclasses.MISSING:
            raise ConfigError(f"{place}: {key!r} is missing; add {key} = …")
    _check_numbers(facts, place)


def _at(place: str, key: str) -> str:
    """Return the place of a key: 'FILE, key' or 'FILE, table.key'."""
    return f"{place}{'.' if ', ' in place else ', '}{key}"


def _check_type(value: Any, kind: type, place: str) -> None:
    fits = isinstance(value, int | float if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{place}={value!r}: expected {_DESCRIBED[kind]}; write one")


def _check_numbers(facts: Mapping[str, Any], place: str) -> None:
    for key, value in facts.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not 0 < value < math.inf:
            raise ConfigError(
                f"{_at(place, key)}={value}: expected a finite number above 0; leave the key "
                "out for its default, or use such a number"
            )


_FILE = "clusters.toml"
_hardware_read, _machines_read = read(
    (resources.files("largebatch.parallel") / _FILE).read_text(encoding="utf-8"), _FILE
)
HARDWARE: Mapping[str, Hardware] = types.MappingProxyType(_hardware_read)
MACHINES: Mapping[str, Machine] = types.MappingProxyType(_machines_read)


def machine(name: str) -> Machine:
    """Return a named cluster, or the one that a file describes.

    Args:
      name: a name of `MACHINES`, or the path of a TOML file (docs/cost-model.md, "Your own
        cluster").

    Raises:
      ConfigError: the name is unknown, or the file is not a description.
    """
    if name in MACHINES:
        return MACHINES[name]
    if not (name.endswith(".toml") or "/" in name):
        raise ConfigError(
            f"--cluster={name} is unknown; {did_you_mean(name, MACHINES)}; or use a file of your "
            "own, --cluster=FILE.toml"
        )
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise ConfigError(
            f"--cluster={name} cannot be read ({reason}); use a TOML file, or one of "
            f"{', '.join(MACHINES)}"
        ) from error
    return _own_machine(name, _tables(text, name))


def _own_machine(name: str, facts: Mapping[str, Any]) -> Machine:
    """Return the cluster of a user's file: hardware, known or described, with its own links.

    Raises:
      ConfigError: a key or a value is wrong.
    """
    facts = dict(facts)
    links = {way: facts.pop(way) for way in ("inside", "between") if way in facts}
    known_keys = [*(field.name for field in dataclasses.fields(Machine)[1:]), "inside", "between"]
    for key in facts:
        if key not in known_keys:
            raise ConfigError(f"{name}: unknown key {key!r}; {did_you_mean(key, known_keys)}")
    own, known = facts.get("hardware"), HARDWARE
    if isinstance(own, dict):
        usual = {"kinds": [], "source": name}
        known = {name: _hardware(name, usual | own, f"{name}, hardware")}
        facts["hardware"] = name
    found = _machine(name, {"source": name} | facts, name, known)
    given = {}
    for way, link in links.items():
        _check_type(link, dict, f"{name}, {way}")
        usual = dataclasses.asdict(getattr(found.hardware, way))
        given[way] = _link(usual | link, f"{name}, {way}")
    return dataclasses.replace(found, hardware=dataclasses.replace(found.hardware, **given))


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
