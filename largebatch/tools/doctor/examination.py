"""All checks in order: without devices, then of each process, then of all processes together."""

import contextlib
import dataclasses
import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

from largebatch.fault_tolerance.exit_codes import HUNG
from largebatch.tools.doctor import dataset, machine, software, speed, storage
from largebatch.tools.doctor.job import Job
from largebatch.tools.doctor.lines import Line, attempted, gathered, merged

XLA_FLAGS = "XLA_FLAGS"
BEFORE_DEVICES: tuple[tuple[str, Callable[[], str]], ...] = (
    ("versions", software.versions_fit),
    (XLA_FLAGS, software.flags_known),
    ("GPU memory", lambda: machine.gpu_memory(machine.query_gpus())),
    ("GPU clocks", lambda: machine.gpu_clocks(machine.query_gpus())),
    ("GPU memory errors", lambda: machine.gpu_errors(machine.query_gpus())),
    ("GPU links", lambda: machine.gpu_links(machine.topology_text())),
)
"""Checks that come before JAX uses a device, or need none."""
_READING = "reading shards of the dataset"
STAGES: tuple[tuple[str, tuple[tuple[str, Callable[[Job], str]], ...]], ...] = (
    (
        "checking devices",
        (
            ("devices", machine.devices),
            ("TPU topology", machine.topology),
            ("XLA options", software.xla_options),
            ("dataset", dataset.counts),
        ),
    ),
    (_READING, (("data checksums", dataset.checksums),)),
    (
        "checking hosts",
        (
            ("plan", dataset.plan),
            ("host memory", machine.host_memory),
            ("open files", machine.open_files),
            ("/dev/shm", machine.shared_memory),
            ("working directory", storage.lock_free),
            ("compile cache", storage.cache_room),
            ("disk", storage.disk_room),
        ),
    ),
    ("timing a step", (("step time", speed.step),)),
    ("decoding", (("decoding", speed.decoding), ("input", speed.input_keeps_up))),
    (
        "comparing hosts",
        (
            ("shared directory", storage.shared),
            ("hosts agree", software.agreement),
            ("clocks", software.clocks),
        ),
    ),
    ("measuring all-reduces", (("all-reduce", speed.all_reduce),)),
)
"""Stage → its checks, by name. A check returns what is well, or raises Skip, Problem or others."""


@contextlib.contextmanager
def time_limit(stage: str, seconds: float) -> Iterator[None]:
    """End the process with code 70 and the stacks of its threads if the body takes longer.

    An error on one host would otherwise keep the others waiting in a collective.

    Args:
        stage: name of the stage, for the message.
        seconds: the limit; 0: none.
    """

    def end() -> None:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        print(
            f"error: {stage} takes more than {seconds:g} s: another process failed or is missing, "
            "see its output; --limit_s=0 waits",
            file=sys.stderr,
            flush=True,
        )
        os._exit(HUNG)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    if seconds:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def before_devices() -> list[Line]:
    """Run the checks that must come before JAX uses a device, or that need none."""
    return [attempted(name, check) for name, check in BEFORE_DEVICES]


def is_fatal(lines: list[Line]) -> bool:
    """Return whether a process that uses a device would abort."""
    return any(line.name == XLA_FLAGS and line.verdict == "PROBLEM" for line in lines)


def examine(
    job: Job, early: list[Line], report: Callable[[str], None] = lambda _: None
) -> list[Line]:
    """Return all lines, merged over the processes; each process must call this.

    Args:
        job: the job; receives what the checks find out.
        early: the lines of `before_devices`.
        report: called with the name of each stage.
    """
    lines = list(early)
    for stage, checks in STAGES:
        report(stage)
        # With --full process 0 may read for hours, and the others wait for it.
        unlimited = stage == _READING and job.full
        with time_limit(stage, 0.0 if unlimited else job.limit_s):
            lines += [attempted(name, partial(check, job)) for name, check in checks]
            job.agree()
    with time_limit("gathering the page", job.limit_s):
        found = gathered([dataclasses.asdict(line) for line in lines])
        hosts = gathered(socket.gethostname())
        return merged([[Line(**line) for line in own] for own in found], hosts)
