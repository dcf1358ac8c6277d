"""train.py with a fault: ``faulty.py FAULT PROCESS VALUE -- ARGUMENTS OF TRAIN.PY``.

FAULT happens to process PROCESS alone: ``slow`` lets every microbatch but a step's last take VALUE
seconds longer, ``fail`` raises an error in step VALUE, ``hang`` waits there for ever.
"""

import functools
import os
import sys
import time

import train
from largebatch.guard import leave
from largebatch.train import loop
from largebatch.train.programs import Programs


def slow(seconds):
    compiled = Programs.accumulate.func

    def slowed(self):
        accumulate = compiled(self)

        def later(*arguments):
            time.sleep(seconds)
            return accumulate(*arguments)

        return later

    Programs.accumulate = functools.cached_property(slowed)
    Programs.accumulate.__set_name__(Programs, "accumulate")


def at_step(step, fault):
    original, done = loop.run_step, [0]

    def run_step(*arguments, **options):
        done[0] += 1
        if done[0] == step:
            fault()
        return original(*arguments, **options)

    loop.run_step = run_step


def fail():
    raise RuntimeError("the fan has stopped")


def sleeps_for_ever():
    while True:
        time.sleep(1)


def main(fault, process, value, dashes, *arguments):
    assert dashes == "--"
    if int(os.environ.get("JAX_PROCESS_ID", "0")) == int(process):
        if fault == "slow":
            slow(float(value))
        else:
            at_step(int(value), {"fail": fail, "hang": sleeps_for_ever}[fault])
    return train.main(arguments)


if __name__ == "__main__":
    leave(main(*sys.argv[1:]))
