"""The images per second that a run needs from its input, and what would meet the need."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Need:
    """Training images that each host has to deliver per second.

    Attributes:
        images_per_s: images/s of each host.
        hosts: number of hosts.
        because: the calculation, in words.
        divisible: whether more hosts would each need less: true for a target time, false for
            devices, since each host brings its own.
    """

    images_per_s: float
    hosts: int
    because: str
    divisible: bool


def need_in_time(samples: int, target_s: float, hosts: int) -> Need:
    """Return the need of `samples` training images in `target_s` seconds on `hosts` hosts."""
    because = f"{samples:,} training images in {target_s:g} s on {hosts} host(s)"
    return Need(samples / target_s / hosts, hosts, because, divisible=True)


def need_of_devices(images_per_s: float, devices: int, hosts: int) -> Need:
    """Return the need of `devices` devices per host that train `images_per_s` images/s each."""
    because = f"{devices} device(s) a host at {images_per_s:g} images/s each"
    return Need(images_per_s * devices, hosts, because, divisible=False)


def cores_needed(need: Need, given: float, cores: int) -> int:
    """Return the cores that meet the need if `given` images/s on `cores` grow in proportion."""
    return math.ceil(need.images_per_s / given * cores)


def hosts_needed(need: Need, given: float) -> int:
    """Return the number of hosts of `given` images/s that meet the need together."""
    return math.ceil(need.images_per_s * need.hosts / given)


def advice(need: Need, given: float, cores: int) -> str:
    """Return what to change, with numbers."""
    share = given / need.images_per_s
    if share >= 1:
        return f"the input keeps up, {share:.2f} times what is needed: change nothing"
    ways = [f"{cores_needed(need, given, cores):,} cores per host instead of {cores}"]
    if need.divisible:
        ways.append(f"{hosts_needed(need, given):,} hosts instead of {need.hosts:,}")
    return f"the input gives {share:.2f} of what is needed; any of: {', or '.join(ways)}"
