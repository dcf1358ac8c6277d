"""Options of fault detection and fault handling."""

import dataclasses
from typing import Literal

from largebatch.config.values import option


@dataclasses.dataclass(frozen=True)
class Health:
    """Fault detection and fault handling."""

    policy: Literal["stop", "skip", "rollback"] = option(
        "stop",
        "action at a non-finite loss or gradient: stop; skip the update of this step, at most 10 "
        "times; or roll back to the newest checkpoint and continue after the batches in between, "
        "at most twice; a diverging run rolls back or stops",
        mathematics=False,
    )
    divergence: float = option(
        0.5,
        "a run diverges if the loss exceeds ln(classes), or the least loss of its first steps, by "
        "this value in `window` or more consecutive steps after the warm-up (loss.kind=sigmoid: "
        "ln(2) by this value / classes), and the images of these steps prove that the network is "
        "no better than a guess; 0: no check",
        within="at least 0",
        mathematics=False,
    )
    window: int = option(
        20,
        "least number of steps for the checks of divergence and stuck training",
        within="above 0",
        mathematics=False,
    )
    stuck_after: str = option(
        "30 %",
        "after this duration and the warm-up, a run is stuck if the right images of a tenth of the "
        "run or more prove that the network is no better than a guess, and neither training nor an "
        "evaluation has ever been better; mixed, erased or distorted images need two evaluations; "
        "empty: no check",
        mathematics=False,
    )
    hosts_every: str = option(
        "100 steps",
        "several processes: interval at which their step times are compared to find stragglers, "
        "whose time to the barrier is 1.2 times the median in three consecutive comparisons; "
        "empty: never",
        mathematics=False,
    )
    replay_every: str = option(
        "",
        "interval at which a step is repeated and compared bitwise to detect silent data "
        "corruption; GPUs need run.deterministic=true; empty: never",
        mathematics=False,
    )
    peer_timeout_s: float = option(
        30.0,
        "several processes: seconds without a heartbeat after which a process counts as dead and "
        "the others exit",
        within="above 0",
        mathematics=False,
    )
    grace_s: float = option(
        25.0,
        "seconds after the first SIGTERM in which the run saves a checkpoint; then it exits with "
        "the last complete checkpoint; at least 120 s after SIGUSR1 and before the end of a SLURM "
        "job",
        within="above 0",
        mathematics=False,
    )
    limit_s: float = option(
        1800.0,
        "seconds without progress while data are opened and processes join, in a microbatch, an "
        "evaluation batch or a checkpoint, four times as many in a compilation; then the run exits "
        "and writes the stacks of all threads; 0: no limit",
        within="at least 0",
        mathematics=False,
    )
