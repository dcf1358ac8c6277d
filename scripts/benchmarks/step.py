"""The training step: images per second on data that is on the device, beside its peers.

    step --batch 32 --peer flax --json records/step.json
    step --batch 512,256 --dtype bfloat16 --peer flax,torch_eager,torch_compile --trace /tmp/trace

Ours is the product's own compiled program with real state: ResNet-50, LARS, one worker;
--config.section.key=value changes its options. Every competitor is a process of its own that is
stopped while another one is measured; compilation and warm-up are not timed. --trace profiles some
steps of those that run on JAX.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import jax

from benchmarks import step_work
from benchmarks.competitor import Competitor, FailedError, Race, compete, why
from benchmarks.measure import GIB, RATE, Result, chosen
from benchmarks.peers import flax_step, torch_step
from benchmarks.step_work import PROGRAM_GIB, TRACED_STEPS, StepWork
from largebatch.errors import ConfigError, DataError
from largebatch.models import DEPTHS
from largebatch.tools.report import trace
from largebatch.tools.report.trace import Profile

PEERS = {
    "flax": flax_step.flax,
    "torch_eager": torch_step.eager,
    "torch_compile": torch_step.compiled,
}
OVERRIDES = True
_PEER_GOALS = {"flax": 1.0, "torch_compile": 1.0}
_H200_RATE = 5500.0  # of batches 256 to 512 in bfloat16
_SMALL, _LARGE, _SMALL_SHARE = 40, 512, 0.70
_SHOWN = 25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--batch", default="32", help="images of a step, several comma-separated (32)")
    add("--peer", default="", help=f"comma-separated: {', '.join(PEERS)}")
    add("--flax_examples", default="", help="checkout of google/flax, for its example's network")
    add("--trace", type=Path, help="folder for profiles of some steps")
    add("--repeats", type=int, default=5, help="repeats, after one to warm up (5)")
    add("--second_batch", type=int, help="batch for the memory of an image; 0: none (half)")
    add_work(parser)


def add_work(parser: argparse.ArgumentParser) -> None:
    """Options of what a step is."""
    add = parser.add_argument
    add("--dtype", default="float32", help="float32, bfloat16 or float16 (float32)")
    add("--image_size", type=int, default=224, help="pixels a side (224)")
    add("--network", default="resnet50", choices=DEPTHS, help="network (resnet50)")
    add("--width", type=int, default=64, help="channels of the first stage (64)")
    add("--classes", type=int, default=1000, help="classes (1,000)")
    add("--seconds", type=float, default=1.0, help="length of a repeat, at least (1)")
    add("--answer_s", type=float, default=900.0, help="a competitor silent for so long has failed")


def run(flags: argparse.Namespace) -> list[Result]:
    """Measure each batch.

    Raises:
        ConfigError: Options that do not fit each other.
        FailedError: Ours failed at every batch.
    """
    batches, peers = numbers(flags.batch, "--batch"), chosen("--peer", flags.peer, PEERS)
    races: dict[int, Race] = {}
    failed = []
    for batch in batches:
        work = work_of(flags, batch)
        tasks = {name: (PEERS[name], work) for name in peers}
        try:
            races[batch] = compete({"ours": (step_work.ours, work)} | tasks, flags.repeats)
        except FailedError as error:
            if batch == batches[-1] and not races:
                raise
            failed.append(Result(f"batch {batch}", RATE, absent=why(error)))
    needed = {batch: race.column(PROGRAM_GIB)[0] for batch, race in races.items()}
    second = batches[0] // 2 if flags.second_batch is None else flags.second_batch
    if len(needed) == 1 and second:
        needed |= program_gib(work_of(flags, second))
    profiled = profiles(flags.trace, races) if flags.trace else []
    device = jax.devices()[0].device_kind  # starts JAX here, after the competitors have ended
    found = results(races, work_of(flags, batches[0]), device)
    return found + memory_of_an_image(needed) + profiled + failed


def work_of(flags: argparse.Namespace, batch: int) -> StepWork:
    """The work that the options describe."""
    folder = getattr(flags, "trace", None)
    same = ("image_size", "classes", "dtype", "network", "width", "seconds")
    return StepWork(
        limit_s=flags.answer_s,
        batch=batch,
        overrides=tuple(f"{key}={text}" for key, text in flags.overrides),
        flax_examples=getattr(flags, "flax_examples", ""),
        trace=str(folder / f"batch{batch}") if folder else "",
        **{name: getattr(flags, name) for name in same},
    )


def program_gib(work: StepWork) -> dict[int, float]:
    """Memory of our program by its batch; empty where it cannot be compiled."""
    try:
        with Competitor(step_work.compile_only, dataclasses.replace(work, trace="")) as one:
            return {work.batch: one.repeat()[PROGRAM_GIB]}
    except FailedError:
        return {}


def numbers(text: str, flag: str) -> list[int]:
    """Positive integers, comma-separated, each once.

    Raises:
        ConfigError: One is not.
    """
    for word in text.split(","):
        if not word.isdecimal() or not int(word):
            raise ConfigError(f"{flag} {text}: expected integers of 1 or more, got {word!r}")
    return list(dict.fromkeys(map(int, text.split(","))))


def results(races: Mapping[int, Race], work: StepWork, device: str) -> list[Result]:
    """The results of each batch; then the rate of small batches against large ones.

    Args:
        races: By batch.
        work: The step, of any batch.
        device: As JAX names its kind.
    """
    found = []
    setting = (work.network, work.width, work.image_size, work.dtype)
    full = setting == ("resnet50", 64, 224, "bfloat16") and "H200" in device
    for batch, race in races.items():
        goals = {(peer, RATE): goal for peer, goal in _PEER_GOALS.items()}
        if full and 256 <= batch <= 512:
            goals["ours", RATE] = _H200_RATE
        found += race.results(f"batch {batch}", goals)
    if _SMALL in races and _LARGE in races:
        pairs = zip(races[_SMALL].column(RATE), races[_LARGE].column(RATE), strict=True)
        shares = tuple(a / b for a, b in pairs)
        goal = None if device == "cpu" else _SMALL_SHARE
        found.append(Result(f"rate at {_SMALL} of that at {_LARGE}", "share", shares, goal=goal))
    return found


def memory_of_an_image(needed: Mapping[int, float]) -> list[Result]:
    """The slope of the program's GiB by batch, from the smallest to the largest batch."""
    if len(needed) < 2:
        return []
    least, most = min(needed), max(needed)
    slope = (needed[most] - needed[least]) / (most - least)
    fixed = needed[least] - slope * least
    note = f"from batches {least} and {most}; {fixed:.2f} GiB independent of the batch"
    return [Result("memory of an image", "MB", (slope * GIB / 1e6,), note=note)]


def profiles(folder: Path, races: Mapping[int, Race]) -> list[Result]:
    """Milliseconds of a step by class of kernel; prints the longest kernels and writes them all.

    Args:
        folder: As of --trace.
        races: By batch.
    """
    found = []
    for batch, race in races.items():
        read = {}
        for name in race.figures:
            place = folder / f"batch{batch}" / name
            if not place.is_dir():  # a peer that does not run on JAX
                continue
            try:
                read[name] = trace.read(place)
            except DataError as error:
                found.append(Result(f"batch {batch}: profile of {name}", "ms", absent=str(error)))
                continue
            print("\n".join(kernels(place / "kernels.json", f"batch {batch}: {name}", read[name])))
        found += by_class(batch, read)
    return found


def by_class(batch: int, read: Mapping[str, Profile]) -> list[Result]:
    """Our milliseconds by class of kernel, beside those of the first peer that was profiled."""

    def milliseconds(profile: Profile) -> dict[str, float]:
        step = 1e3 * profile.window_s / TRACED_STEPS
        return {kind: share * step for kind, share in profile.shares.items()}

    peer = next((name for name in read if name != "ours"), "")
    theirs = milliseconds(read[peer]) if peer else {}
    found = []
    for kind, spent in (milliseconds(read["ours"]) if "ours" in read else {}).items():
        both = spent > 0 and theirs.get(kind, 0) > 0  # a ratio to nothing does not exist
        beside = ((theirs[kind],), peer) if both else ()
        unit = "ms of a profiled step"
        found.append(Result(f"batch {batch}: {kind}", unit, (spent,), *beside))
    return found


def kernels(path: Path, title: str, profile: Profile) -> list[str]:
    """Write all kernels, the longest first; returns lines on the longest and all classes."""
    rows = [
        {"name": each.name, "ms_per_step": 1e3 * each.seconds / TRACED_STEPS, "count": each.count}
        | each.origin._asdict()
        for each in profile.kernels
    ]
    kept = {"steps": TRACED_STEPS, "window_s": profile.window_s, "shares": profile.shares}
    path.write_text(json.dumps(kept | {"kernels": rows}, indent=1) + "\n")
    total = sum(row["ms_per_step"] for row in rows)
    row = "{:>10} {:>6} {:>5}  {:<16} {}".format
    lines = [
        f"{title}: the {_SHOWN} longest kernels",
        row("ms a step", "share", "runs", "class", "name, result, operation, source"),
    ]
    for each, kernel in zip(rows[:_SHOWN], profile.kernels, strict=False):
        origin, spent = kernel.origin, each["ms_per_step"]
        parts = (kernel.name, origin.result, origin.op_name.partition("/")[2], origin.source)
        what = "  ".join(part for part in parts if part)
        lines.append(row(f"{spent:.3f}", f"{spent / total:.1%}", kernel.count, origin.kind, what))
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in profile.shares.items())
    return [*lines, f"{shares} ({trace.IDLE}: no kernel runs)"]
