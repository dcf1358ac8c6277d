"""train.py with a fault, for tests with real processes.

    tests/faulty.py FAULT PROCESS VALUE -- ARGUMENTS OF TRAIN.PY

FAULT happens in process PROCESS alone: ``slow`` makes every microbatch except the last of a step
VALUE seconds longer, ``fail`` raises an error in step VALUE, ``hang`` waits there, ``none``
does nothing.
"""

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import train
from largebatch.fault_tolerance import leave
from largebatch.training import loop
from largebatch.training.stage import Stage


def slow(seconds: float) -> None:
    """Delay every microbatch except the last of a step."""
    compiled = Stage.accumulate.func

    def slowed(stage: Stage) -> Callable[..., Any]:
        accumulate = compiled(stage)

        def later(*arguments: Any) -> Any:
            time.sleep(seconds)
            return accumulate(*arguments)

        return later

    Stage.accumulate = functools.cached_property(slowed)
    Stage.accumulate.__set_name__(Stage, "accumulate")


def at_step(step: int, fault: Callable[[], None]) -> None:
    """Run the fault at the start of this step of the process, from 1."""
    original, done = loop.run_step, [0]

    def run_step(*arguments: Any, **options: Any) -> Any:
        done[0] += 1
        if done[0] == step:
            fault()
        return original(*arguments, **options)

    loop.run_step = run_step


def fails() -> NoReturn:
    """Raise an unexpected error."""
    raise RuntimeError("the fan has stopped")


def sleeps_for_ever() -> NoReturn:
    """Stay alive and do nothing."""
    while True:
        time.sleep(1)


def main(fault: str, process: str, value: str, dashes: str, *arguments: str) -> int:
    """Prepare the fault and train."""
    if dashes != "--":
        raise SystemExit(__doc__)
    if int(os.environ.get("JAX_PROCESS_ID", "0")) == int(process):
        match fault:
            case "slow":
                slow(float(value))
            case "fail":
                at_step(int(value), fails)
            case "hang":
                at_step(int(value), sleeps_for_ever)
    return train.main(arguments)


if __name__ == "__main__":
    leave(main(*sys.argv[1:]))
