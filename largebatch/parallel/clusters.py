"""Devices, the networks between them, and named clusters; rates as their makers state them.

The numbers and their sources are in ``clusters.toml``. Rates are those of the line without
protocol. Real rates are lower; ``scripts/benchmark.py allreduce`` fits them.
"""

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jax

from largebatch.errors import ConfigError, did_you_mean

_FILE = "clusters.toml"
_FORMATS = ("float32", "float16", "bfloat16")
_LINKS = ("inside", "between")  # those of the hardware, which a cluster can change
_WRITTEN = {
    bool: (bool, "true or false"),
    float: ((int, float), "a number"),
    int: (int, "an integer"),
    str: (str, "a text"),
    tuple: (list, "a list of texts"),
    Mapping: (dict, "a table"),
}
"""Types of fields: their types in TOML, in Python and in words."""


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
    """Least size of a bucket in one slice for ``comm.bucket_mib=auto``, in MiB; 0: planned."""
    in_turn: bool = False
    """Whether each all-reduce of gradients must depend on the one before (``reduces_in_turn``)."""
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


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Devices of one kind in full nodes, or in part of one node or slice.

    Raises:
      ConfigError: several nodes, chips or slices that are not full.
    """

    hardware: Hardware
    devices: int
    devices_per_node: int = 0
    """0: the usual number of the hardware."""
    shape: tuple[int, ...] = ()
    """Chips along each axis of a slice's torus; empty: as even as can be."""
    rack_nodes: int = 0
    """Nodes with full bandwidth between them; 0: all."""
    uplink_share: float = 1.0
    """Bandwidth that leaves a rack, of what its nodes have together."""

    def __post_init__(self) -> None:
        if self.devices < 1 or self.devices % self.node_devices:
            raise ConfigError(
                f"{self.devices} devices of {self.hardware.name}: expected full "
                f"{'slices' if self.hardware.torus else 'nodes'} of {self.node_devices}"
            )
        if self.hardware.torus and math.prod(self.torus_shape) * self._per_chip != (
            self.node_devices
        ):
            raise ConfigError(
                f"a torus of {'×'.join(map(str, self.torus_shape))} has "
                f"{math.prod(self.torus_shape) * self._per_chip} devices of {self.hardware.name}; "
                f"expected the shape of one slice of {self.node_devices}"
            )

    @property
    def node_devices(self) -> int:
        """Devices of a node or a slice, which ``hardware.inside`` connects."""
        hardware = self.hardware
        if self.devices_per_node:
            usual = self.devices_per_node
        elif self.shape:
            usual = math.prod(self.shape) * hardware.devices_per_chip
        elif hardware.torus:
            usual = hardware.slice_chips * hardware.devices_per_chip
        else:
            usual = hardware.devices_per_node
        return min(self.devices, usual)

    @property
    def nodes(self) -> int:
        """Nodes, or slices."""
        return self.devices // self.node_devices

    @property
    def torus_shape(self) -> tuple[int, ...]:
        """Chips along each axis of a slice, the shortest axis first."""
        if self.shape:
            return self.shape
        chips, shape = max(1, self.node_devices // self._per_chip), []
        for axes in range(self.hardware.torus, 0, -1):
            side = (
                max(d for d in range(1, round(chips ** (1 / axes)) + 1) if chips % d == 0)
                if axes > 1
                else chips
            )
            shape.append(side)
            chips //= side
        return tuple(shape)

    @property
    def racks(self) -> int:
        """Racks of the nodes; the last one can be filled in part."""
        return math.ceil(self.nodes / self.rack_nodes) if self.rack_nodes else 1

    @property
    def between(self) -> Link:
        """A device's link to other nodes, if a scheduler spreads the nodes over the racks.

        Of a node's partners 1 − (r−1)/(M−1) are in other racks of r nodes. If this share is larger
        than the share of the bandwidth that leaves the rack, the uplinks decide.
        """
        line = self.hardware.between
        if self.racks == 1:
            return line
        crossing = 1 - (self.rack_nodes - 1) / (self.nodes - 1)
        slower = max(1.0, crossing / self.uplink_share)
        return Link(line.bandwidth / slower, line.latency)

    @property
    def _per_chip(self) -> int:
        return min(self.hardware.devices_per_chip, self.devices)


# ---- descriptions in TOML


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
    if unknown := sorted(set(tables) - {"hardware", "cluster"}):
        raise ConfigError(f"{file}: unknown table {unknown[0]!r}; use [hardware.…], [cluster.…]")
    hardware = {
        name: _row(Hardware, facts, f"{file}: hardware.{name}", name=name)
        for name, facts in tables.get("hardware", {}).items()
    }
    machines = {
        name: _machine(name, facts, f"{file}: cluster.{name}", hardware)
        for name, facts in tables.get("cluster", {}).items()
    }
    return hardware, machines


def _tables(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: expected TOML ({error}); fix the file") from error


def _machine(
    name: str, facts: dict[str, Any], place: str, known: Mapping[str, Hardware]
) -> Machine:
    """Return a cluster of known hardware, with the links that it has of its own."""
    of = facts.pop("hardware", None)
    if of is None:
        raise ConfigError(f"{place}: 'hardware' is missing; add hardware = …")
    if not isinstance(of, str) or of not in known:
        raise ConfigError(
            f"{place}: hardware={of!r} is unknown; {did_you_mean(str(of), known)}; or describe "
            "it in a table [hardware]"
        )
    hardware, links = known[of], {}
    for way in _LINKS:
        if way in facts:
            usual = dataclasses.asdict(getattr(hardware, way))
            links[way] = _row(Link, facts.pop(way), _at(place, way), usual)
    if links:
        hardware = dataclasses.replace(hardware, **links)
    return _row(Machine, facts, place, name=name, hardware=hardware)


def _own_machine(file: str, facts: dict[str, Any]) -> Machine:
    """Return the cluster of a user's file, whose hardware is known or described."""
    known, facts = HARDWARE, {"source": file} | facts
    if isinstance(own := facts.get("hardware"), dict):
        usual = {"kinds": [], "source": file}
        known = {file: _row(Hardware, usual | own, f"{file}: hardware", name=file)}
        facts["hardware"] = file
    return _machine(file, facts, file, known)


def _row(
    kind: type,
    facts: Any,
    place: str,
    usual: Mapping[str, Any] | None = None,
    **given: Any,
) -> Any:
    """Return an instance of a class from a table of its fields.

    Args:
      kind: a dataclass.
      facts: the table.
      place: of the table, for errors.
      usual: values of fields that the table leaves out.
      **given: fields that the table cannot have.

    Raises:
      ConfigError: a key or a value is wrong.
    """
    if not isinstance(facts, dict):
        raise ConfigError(f"{place}={facts!r}: expected a table; write one")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name not in given}
    values = dict(usual or {})
    for key, value in facts.items():
        if key not in fields:
            known = (*fields, *_LINKS)
            raise ConfigError(f"{place}: unknown key {key!r}; {did_you_mean(key, known)}")
        values[key] = _value(fields[key].type, value, _at(place, key))
    for key, field in fields.items():
        if key not in values and field.default is dataclasses.MISSING:
            raise ConfigError(f"{place}: {key!r} is missing; add {key} = …")
    return kind(**values, **given)


def _value(kind: Any, value: Any, place: str) -> Any:
    """Return the value of a field from its form in TOML.

    Raises:
      ConfigError: it has another type, or is a number out of range.
    """
    if kind is Link:
        return _row(Link, value, place)
    kind = typing.get_origin(kind) or kind
    written, words = _WRITTEN[kind]
    if not isinstance(value, written) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{place}={value!r}: expected {words}; write one")
    if kind is Mapping and set(value) != set(_FORMATS):
        raise ConfigError(
            f"{place}: expected {', '.join(_FORMATS)}, got {', '.join(value)}; use the FLOP/s of "
            "each of these formats"
        )
    if kind is Mapping:
        return {key: _value(float, each, f"{place}.{key}") for key, each in value.items()}
    if kind in (int, float) and not 0 < value < math.inf:
        raise ConfigError(
            f"{place}={value}: expected a finite number above 0; leave the key out for its "
            "default, or use such a number"
        )
    if place.endswith("uplink_share") and value > 1:
        raise ConfigError(
            f"{place}={value}: expected a share of the bandwidth, at most 1; use such a number"
        )
    return tuple(value) if kind is tuple else value


def _at(place: str, key: str) -> str:
    """Return the place of a key: 'FILE: key' or 'FILE: table.key'."""
    return f"{place}{'.' if ': ' in place else ': '}{key}"


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


def cluster_in(machine: Machine, devices: int) -> Cluster:
    """Return devices of a named cluster.

    Raises:
      ConfigError: it has fewer, or they do not fill nodes or slices.
    """
    if machine.most_devices and devices > machine.most_devices:
        raise ConfigError(
            f"cluster {machine.name!r}: expected at most {machine.most_devices} devices, got "
            f"{devices}"
        )
    return Cluster(
        machine.hardware,
        devices,
        devices_per_node=machine.devices_per_node,
        rack_nodes=machine.rack_nodes,
        uplink_share=machine.uplink_share,
    )


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


def cluster_of(devices: Sequence[jax.Device]) -> Cluster | None:
    """Return the cluster of these devices; None for unknown hardware or nodes of unequal size.

    A node's devices are those of one ``slice_index`` if JAX knows several (on GPUs these are
    hosts), else those of one process; with one device per process, the usual number.
    """
    hardware = hardware_of(devices[0].device_kind)
    if hardware is None:
        return None
    count = len(devices)
    slices = len({getattr(device, "slice_index", None) or 0 for device in devices})
    processes = len({device.process_index for device in devices})
    shape, group = (), 0
    if hardware.torus:
        group = count // slices
        shape = _extents(devices)
    elif slices > 1:
        group = count // slices
    elif count > processes:
        group = count // processes
    try:
        return Cluster(hardware, count, devices_per_node=group, shape=shape)
    except ConfigError:
        return None  # nodes of unequal size


def reduces_in_turn(devices: Iterable[jax.Device]) -> bool:
    """Whether all-reduces of gradients must depend on each other (``Hardware.in_turn``).

    Between slices they are asynchronous without it, and would wait for the network one by one.
    """
    cluster = cluster_of(tuple(devices))
    if cluster is None or cluster.devices == 1:
        return False
    return cluster.hardware.in_turn and cluster.nodes == 1


def _extents(devices: Sequence[jax.Device]) -> tuple[int, ...]:
    """Return the chips along each axis of the first device's slice, from their coordinates."""
    first = getattr(devices[0], "slice_index", None) or 0
    mine = [d.coords for d in devices if (getattr(d, "slice_index", None) or 0) == first]
    return tuple(max(axis) - min(axis) + 1 for axis in zip(*mine, strict=True))
