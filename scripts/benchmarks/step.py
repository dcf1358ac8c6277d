"""The training step against its peers: images per second, with data on the device.

    step --batch 32 --peer flax --json records/step.json
    step --batch 512,256 --dtype bfloat16 --peer flax,torch_eager,torch_compile --trace /tmp/trace
    step --batch 256 --variant model.remat=norms --variant comm.wire=float32

Our step is the compiled program of the trainer with real state: ResNet-50, LARS, one worker;
--config.section.key=value changes its options. A variant is our step with further options, as a
peer in the same race. Every competitor is a separate process that is stopped while another one is
measured; compilation and warm-up are not timed. --trace profiles some steps of those that run on
JAX, for XProf. Several batches also give the memory of an image.
"""

import argparse
import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path

from benchmarks import training
from benchmarks.competitor import FailedError, Race, compete
from benchmarks.measure import GIB, RATE, Result, chosen, numbers
from benchmarks.peers import flax_step, torch_step
from benchmarks.training import PROGRAM_GIB, StepWork
from largebatch.errors import ConfigError

PEERS = {
    "flax": flax_step.flax,
    "torch_eager": torch_step.eager,
    "torch_compile": torch_step.compiled,
}
OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--batch", default="32", help="images of a step, several comma-separated (32)")
    add("--peer", default="", help=f"comma-separated: {', '.join(PEERS)}")
    add(
        "--variant",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="our step with other options as a peer, e.g. 'model.remat=norms'; repeatable",
    )
    add("--trace", type=Path, help="folder for profiles of some steps")
    add("--repeats", type=int, default=5, help="repeats, after one to warm up (5)")
    training.add_work(parser)


def run(flags: argparse.Namespace) -> list[Result]:
    """Measure each batch.

    Raises:
        ConfigError: Options that do not fit each other.
        FailedError: Ours failed at every batch.
    """
    peers = chosen("--peer", flags.peer, PEERS)
    batches = numbers("--batch", flags.batch)
    races: dict[int, Race] = {}
    results = []
    for batch in batches:
        folder = str(flags.trace / f"batch{batch}") if flags.trace else ""
        work = StepWork.of(flags, batch=batch, profile=folder)
        tasks = {"ours": (training.ours, work)}
        tasks |= {name: (PEERS[name], work) for name in peers}
        variants = {name: variant(work, name) for name in flags.variant}
        for each in variants.values():
            training.config(each)  # mistakes before anything is compiled
        tasks |= {name: (training.ours, each) for name, each in variants.items()}
        try:
            races[batch] = compete(tasks, flags.repeats)
        except FailedError as error:  # such as a batch that does not fit
            if batch == batches[-1] and not races:
                raise
            results.append(Result(f"batch {batch}", RATE, absent=str(error)))
            continue
        results += races[batch].results(f"batch {batch}")
    return results + memory_of_an_image({n: r.column(PROGRAM_GIB)[0] for n, r in races.items()})


def variant(work: StepWork, options: str) -> StepWork:
    """The same work with further options of ours, given as `section.key=value …`.

    Raises:
        ConfigError: The text is not of this form.
    """
    try:
        words = shlex.split(options)
    except ValueError:  # a quote is not closed
        words = []
    pairs = [word.removeprefix("--config.").partition("=") for word in words]
    if not pairs or not all(key and equals for key, equals, _ in pairs):
        raise ConfigError(
            f"--variant: expected options such as 'model.remat=norms', got {options!r}"
        )
    added = tuple((key, text) for key, _, text in pairs)
    return dataclasses.replace(work, overrides=(*work.overrides, *added), profile="")


def memory_of_an_image(needed: Mapping[int, float]) -> list[Result]:
    """The slope of the program's GiB by batch, from the smallest to the largest batch."""
    if len(needed) < 2:
        return []
    least, most = min(needed), max(needed)
    slope = (needed[most] - needed[least]) / (most - least)
    fixed = needed[least] - slope * least
    note = f"from batches {least} and {most}; {fixed:.2f} GiB independent of the batch"
    return [Result("memory of an image", "MB", (slope * GIB / 1e6,), note=note)]
