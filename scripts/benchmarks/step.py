"""The training step: images per second on data that is on the device, beside its peers.

    step --batch 32 --peer flax --json records/step.json
    step --batch 512,256 --dtype bfloat16 --peer flax,torch_eager,torch_compile --trace /tmp/trace

Ours is the product's own compiled program with real state: ResNet-50, LARS, one worker.
--config.section.key=value changes its options. Every competitor is a process of its own that stands
still while it is not its turn; compilation and warm-up are outside of the clock. --trace profiles
some steps of those that run on JAX and says where their time goes.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from benchmarks import profiles, step_results
from benchmarks.competitor import Competitor, FailedError
from benchmarks.measure import Result
from benchmarks.race import Race, compete, why
from benchmarks.step_work import StepWork
from largebatch.errors import ConfigError, did_you_mean
from largebatch.models import DEPTHS

OURS = "benchmarks.training"
PEERS = {
    "flax": "benchmarks.peers.flax_step",
    "torch_eager": "benchmarks.peers.torch_eager",
    "torch_compile": "benchmarks.peers.torch_compile",
}
OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--batch", default="32", help="images of a step, several comma-separated (32)")
    add("--peer", default="", help=f"comma-separated: {', '.join(PEERS)}")
    add("--flax_examples", default="", help="checkout of google/flax, for its example's network")
    add("--trace", type=Path, help="folder for profiles of some steps")
    add("--repeats", type=int, default=5, help="repeats, after one to warm up (5)")
    add(
        "--second_batch",
        type=int,
        help="of the memory of an image, if one is given; 0: none (half)",
    )
    add_work(parser)


def add_work(parser: argparse.ArgumentParser) -> None:
    """Options of what a step is."""
    add = parser.add_argument
    add("--dtype", default="float32", help="float32, bfloat16 or float16 (float32)")
    add("--image_size", type=int, default=224, help="pixels a side (224)")
    add("--network", default="resnet50", choices=DEPTHS, help="resnet50 unless given")
    add("--width", type=int, default=64, help="channels of the first stage (64)")
    add("--classes", type=int, default=1000, help="classes (1,000)")
    add("--seconds", type=float, default=1.0, help="length of a repeat, at least (1)")
    add("--answer_s", type=float, default=900.0, help="a competitor silent for so long has failed")


def run(flags: argparse.Namespace) -> list[Result]:
    """A race for each batch, then what came of them.

    Raises:
        ConfigError: Options that do not fit each other.
        FailedError: Ours failed at every batch.
    """
    batches, peers = numbers(flags.batch, "--batch"), names(flags.peer)
    modules = {"ours": OURS} | {name: PEERS[name] for name in peers}
    races: dict[int, Race] = {}
    results: list[Result] = []
    for batch in batches:
        work = work_of(flags, batch)
        try:
            tasks = {name: (module, work) for name, module in modules.items()}
            races[batch] = compete(tasks, flags.repeats)
        except FailedError as error:
            if batch == batches[-1] and not races:
                raise
            results.append(Result(f"batch {batch}", step_results.RATE, absent=why(error)))
    bytes_ = {b: race.figures["ours"][0]["program_bytes"] for b, race in races.items()}
    second = batches[0] // 2 if flags.second_batch is None else flags.second_batch
    if len(bytes_) == 1 and second:
        bytes_ |= program_bytes(work_of(flags, second))
    setting = step_results.Setting.here(work_of(flags, batches[0]))
    found = step_results.of_races(races, peers, setting)
    found += step_results.activations(bytes_)
    if flags.trace:
        found += profiles.results(flags.trace, races)
    return found + results


def work_of(flags: argparse.Namespace, batch: int) -> StepWork:
    """The work that the options describe."""
    trace = getattr(flags, "trace", None)
    return StepWork(
        limit_s=flags.answer_s,
        batch=batch,
        image_size=flags.image_size,
        classes=flags.classes,
        dtype=flags.dtype,
        network=flags.network,
        width=flags.width,
        seconds=flags.seconds,
        overrides=tuple(f"{key}={text}" for key, text in flags.overrides),
        flax_examples=getattr(flags, "flax_examples", ""),
        trace=str(trace / f"batch{batch}") if trace else "",
    )


def program_bytes(work: StepWork) -> dict[int, float]:
    """What our program needs at another batch; empty where that cannot be compiled."""
    try:
        with Competitor("benchmarks.program_bytes", dataclasses.replace(work, trace="")) as one:
            return {work.batch: one.repeat()["program_bytes"]}
    except FailedError:
        return {}


def numbers(text: str, flag: str) -> list[int]:
    """Positive whole numbers, comma-separated.

    Raises:
        ConfigError: One is not.
    """
    words = text.split(",")
    for word in words:
        if not word.isdecimal() or not int(word):
            raise ConfigError(f"{flag} {text}: {word!r} is no number of 1 or more")
    return list(dict.fromkeys(map(int, words)))


def names(text: str) -> Sequence[str]:
    """Peers, comma-separated.

    Raises:
        ConfigError: One is unknown.
    """
    given = [name for name in text.split(",") if name]
    for name in given:
        if name not in PEERS:
            raise ConfigError(f"--peer {name} is unknown; {did_you_mean(name, PEERS)}")
    return given
