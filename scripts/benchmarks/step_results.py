"""The figures of races in the training step as results, with the goals of this project."""

import dataclasses
from collections.abc import Mapping, Sequence

from benchmarks.measure import Result
from benchmarks.race import Race
from benchmarks.runner import Figures
from benchmarks.step_work import StepWork

RATE = "images/s"
FLOP_PER_IMAGE = 24.3e9  # forward and backward of ResNet-50 at 224×224
_GIB = 1 << 30
_PEER_GOALS = {"flax": 1.0, "torch_compile": 1.0}
_H200_RATE = 5500.0  # of batches 256 to 512 in bfloat16
_SMALL, _LARGE, _SMALL_SHARE = 40, 512, 0.70


@dataclasses.dataclass(frozen=True)
class Setting:
    """What was run, and where.

    Attributes:
        work: The step, of any batch.
        device: As JAX names its kind.
        peak: FLOP/s of the device in the step's number format; None where that is unknown.
    """

    work: StepWork
    device: str
    peak: float | None

    @classmethod
    def here(cls, work: StepWork) -> "Setting":
        """On this machine. Starts JAX: the competitors must have ended."""
        import jax

        from largebatch.parallel.hardware import hardware_of

        kind = jax.devices()[0].device_kind
        known = hardware_of(kind)
        on_cpu = jax.devices()[0].platform == "cpu"
        return cls(work, kind, known.flops[work.dtype] if known and not on_cpu else None)

    @property
    def flop_per_image(self) -> float | None:
        """Of a step; None for networks other than ResNet-50."""
        if (self.work.network, self.work.width) != ("resnet50", 64):
            return None
        return FLOP_PER_IMAGE * (self.work.image_size / 224) ** 2

    def rate_goal(self, batch: int) -> float | None:
        """Images/s that ours must reach."""
        full = self.flop_per_image == FLOP_PER_IMAGE and self.work.dtype == "bfloat16"
        return _H200_RATE if full and "H200" in self.device and 256 <= batch <= 512 else None


def rates(figures: Sequence[Figures]) -> tuple[float, ...]:
    """Images per second, for each repeat."""
    return tuple(one["images"] / one["wall_s"] for one in figures)


def of_races(races: Mapping[int, Race], peers: Sequence[str], setting: Setting) -> list[Result]:
    """For each batch ours, then each peer's; then small batches against large ones."""
    results = []
    for batch, race in races.items():
        results += ours(batch, race, setting)
        results += [beside(batch, race, peer) for peer in peers]
    if _SMALL in races and _LARGE in races:
        small, large = (rates(races[batch].figures["ours"]) for batch in (_SMALL, _LARGE))
        shares = tuple(a / b for a, b in zip(small, large, strict=True))
        name = f"rate at {_SMALL} of that at {_LARGE}"
        goal = None if setting.peak is None else _SMALL_SHARE
        results.append(Result(name, "share", shares, goal=goal))
    return results


def ours(batch: int, race: Race, setting: Setting) -> list[Result]:
    """Our own figures at one batch."""
    name, figures = f"batch {batch}", race.figures["ours"]
    found, first = rates(figures), figures[0]
    steps = tuple(1e3 * one["wall_s"] / one["steps"] for one in figures)
    results = [
        Result(name, RATE, found, goal=setting.rate_goal(batch), note=race.about["ours"]),
        Result(name, "ms a step", steps, better="less"),
    ]
    if setting.flop_per_image:
        flops = tuple(rate * setting.flop_per_image for rate in found)
        results.append(Result(name, "TFLOP/s", tuple(f / 1e12 for f in flops)))
        if setting.peak:
            shares = tuple(f / setting.peak for f in flops)
            results.append(Result(name, "share of peak FLOP/s", shares))
    results.append(Result(name, "s to compile", (first["compile_s"],), better="less"))
    for key, unit in (("program_bytes", "GiB by the compiler"), ("peak_bytes", "GiB in use")):
        if key in first:
            most = max(one[key] for one in figures) / _GIB
            results.append(Result(name, unit, (most,), better="less"))
    return results


def beside(batch: int, race: Race, peer: str) -> Result:
    """Ours and a peer's rates at one batch."""
    name = f"batch {batch} vs {peer}"
    if peer in race.absent:
        return Result(name, RATE, peer_name=peer, absent=race.absent[peer])
    theirs = race.figures[peer]
    first = theirs[0]
    facts = [race.about[peer], f"{first['compile_s']:.1f} s to compile"]
    if "peak_bytes" in first:
        facts.append(f"{max(one['peak_bytes'] for one in theirs) / _GIB:.2f} GiB in use")
    return Result(
        name,
        RATE,
        rates(race.figures["ours"]),
        peer=rates(theirs),
        peer_name=peer,
        goal=_PEER_GOALS.get(peer),
        note="; ".join(facts),
    )


def activations(needed: Mapping[int, float]) -> list[Result]:
    """Memory that each further image takes, from the programs of the least and largest batch.

    Args:
        needed: Bytes of the program by batch.
    """
    if len(needed) < 2:
        return []
    least, most = min(needed), max(needed)
    slope = (needed[most] - needed[least]) / (most - least)
    fixed = needed[least] - slope * least
    note = f"from batches {least} and {most}; {fixed / _GIB:.2f} GiB whatever the batch"
    return [Result("memory of an image", "MB", (slope / 1e6,), better="less", note=note)]
