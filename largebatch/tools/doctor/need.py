"""What a run needs of its input, and what would meet it."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Need:
    """Training images that each host has to deliver in a second, and why.

    Attributes:
        images_per_s: Of each host.
        hosts: How many share the work.
        because: The reckoning, in words.
        divisible: Whether more hosts would each need less: so if a time is the target, not if
            devices are to be kept busy, which bring their own need.
    """

    images_per_s: float
    hosts: int
    because: str
    divisible: bool


def need_in_time(samples: int, target_s: float, hosts: int) -> Need:
    """The need of `samples` training images in `target_s` seconds on `hosts` hosts."""
    return Need(
        samples / target_s / hosts,
        hosts,
        f"{samples:,} training images in {target_s:g} s on {hosts} host(s)",
        divisible=True,
    )


def need_of_devices(images_per_s: float, devices: int, hosts: int) -> Need:
    """The need of `devices` devices a host that train `images_per_s` images a second each."""
    return Need(
        images_per_s * devices,
        hosts,
        f"{devices} device(s) a host at {images_per_s:g} images/s each",
        divisible=False,
    )


def cores_needed(need: Need, given: float, cores: int) -> int:
    """Cores of this kind that meet the need, if the rate grows as their number."""
    return math.ceil(need.images_per_s / given * cores)


def hosts_needed(need: Need, given: float) -> int:
    """Hosts of this kind that meet the need together."""
    return math.ceil(need.images_per_s * need.hosts / given)


def advice(need: Need, given: float, cores: int) -> str:
    """What to change, in words with numbers."""
    share = given / need.images_per_s
    if share >= 1:
        return f"the input keeps up, {share:.2f} times what is needed: change nothing"
    ways = [f"{cores_needed(need, given, cores):,} cores per host instead of {cores}"]
    if need.divisible:
        ways.append(f"{hosts_needed(need, given):,} hosts instead of {need.hosts:,}")
    return f"the input gives {share:.2f} of what is needed; any of: {', or '.join(ways)}"
