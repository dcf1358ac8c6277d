"""Images per second: ours, the peers and our stages, a repeat of each in turn."""

from collections.abc import Sequence

from benchmarks import race
from benchmarks.measure import Result
from benchmarks.race import Race
from benchmarks.runner import Figures
from benchmarks.workload import Workload

PEERS = {
    "flax": "benchmarks.peers.flax_example",
    "tfdata": "benchmarks.peers.tfdata",
    "torchvision": "benchmarks.peers.torchvision_pil",
}
PER_CPU = "images per CPU-second"
_GOALS = {"flax": 2.0}  # of the ratio of images per CPU-second
_DECODED_US = 60.0
_OVERHEAD = 0.10
_PER_IMAGE = "µs of CPU per image"


def compete(work: Workload, peers: Sequence[str], repeats: int) -> Race:
    """Ours, the peers and, on one core, our stages: as of `race.compete`.

    Args:
        work: What all do.
        peers: Names in PEERS.
        repeats: After one of each to warm up.
    """
    modules = {"ours": "benchmarks.product"} | {name: PEERS[name] for name in peers}
    if work.threads == 1:
        modules["stages"] = "benchmarks.stages"
    return race.compete({name: (module, work) for name, module in modules.items()}, repeats)


def rates(figures: Sequence[Figures]) -> dict[str, tuple[float, ...]]:
    """Images per second of the clock and of the processors, for each repeat."""
    return {
        "images/s": tuple(one["images"] / one["wall_s"] for one in figures),
        PER_CPU: tuple(one["images"] / one["cpu_s"] for one in figures),
    }


def throughput(work: Workload, peers: Sequence[str], found: Race) -> list[Result]:
    """The figures of `compete` as results."""
    figures, absent = found.figures, found.absent
    place = f"{work.threads} core{'s' if work.threads > 1 else ''}"
    ours = rates(figures["ours"])
    results = [Result(place, unit, values) for unit, values in ours.items()]
    for peer in peers:
        if peer in absent:
            results.append(
                Result(f"{place} vs {peer}", PER_CPU, peer_name=peer, absent=absent[peer])
            )
            continue
        theirs = rates(figures[peer])
        results += [
            Result(
                f"{place} vs {peer}",
                unit,
                values,
                peer=theirs[unit],
                peer_name=peer,
                goal=_GOALS.get(peer) if unit == PER_CPU else None,
                note=found.about[peer] if unit == PER_CPU else "",
            )
            for unit, values in ours.items()
        ]
    per_image = tuple(1e6 / value for value in ours[PER_CPU])
    if work.data.startswith("decoded:"):
        results.append(
            Result(f"{place}: host cost", _PER_IMAGE, per_image, better="less", goal=_DECODED_US)
        )
    if "stages" in figures:
        results += breakdown(place, per_image, figures["stages"])
    elif "stages" in absent:
        results.append(Result(f"{place}: stages", _PER_IMAGE, absent=absent["stages"]))
    return results


def breakdown(place: str, per_image: Sequence[float], stages: Sequence[Figures]) -> list[Result]:
    """The stages, and what the product takes beyond reading, decoding and resizing.

    Args:
        place: Where they ran.
        per_image: Processor time of an image in the product, µs, for each repeat.
        stages: That of each stage, likewise.
    """
    results = [
        Result(f"{place}: {name}", _PER_IMAGE, tuple(s[name] for s in stages), better="less")
        for name in stages[0]
    ]
    beyond = []
    for total, spent in zip(per_image, stages, strict=True):
        raw = spent["header"] + spent["decode"] + spent["resize"]
        beyond.append((total - spent["read"] - spent["parse"] - raw) / raw)
    results.append(
        Result(
            f"{place}: order and bookkeeping",
            "share of decode + resize",
            tuple(beyond),
            better="less",
            goal=_OVERHEAD,
            note="all that the product takes beyond read, parse, header, decode and resize",
        )
    )
    return results
