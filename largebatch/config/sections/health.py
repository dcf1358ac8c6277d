"""Options of what a run does when something goes wrong."""

import dataclasses
from typing import Literal

from largebatch.config.declaration import option


@dataclasses.dataclass(frozen=True)
class Health:
    """What is looked for, how often, and what then happens."""

    policy: Literal["stop", "skip", "rollback"] = option(
        "stop",
        "at a loss or gradient that is not finite: stop, skip that step's update, or roll back to "
        "the newest checkpoint and go on behind the batches that led there; a run that diverges "
        "rolls back or stops",
        mathematics=False,
    )
    max_skips: int = option(
        10,
        "policy skip: steps of a run that may be skipped",
        within="at least 0",
        mathematics=False,
    )
    max_rollbacks: int = option(
        2, "policy rollback: how often a run may", within="at least 0", mathematics=False
    )
    divergence: float = option(
        0.5,
        "after the warm-up a loss this far above ln(classes), in every one of `window` steps, is "
        "divergence; 0: not looked for",
        within="at least 0",
        mathematics=False,
    )
    window: int = option(
        20, "steps over which divergence is looked for", within="above 0", mathematics=False
    )
    stuck_after: str = option(
        "30 %",
        "from here on the training is stuck if the median loss of `window` steps is no better than "
        "that of a guess, ln(classes), and has not been better before, or not for a tenth of the "
        "run; empty: not looked for",
        mathematics=False,
    )
    hosts_every: str = option(
        "100 steps",
        "several processes: interval at which their times are gathered and the slowest is named; "
        "empty: never",
        mathematics=False,
    )
    slow_factor: float = option(
        1.2,
        "a host whose time to the barrier is this many times the median is called slow",
        within="above 0",
        mathematics=False,
    )
    replay_every: str = option(
        "",
        "interval at which a step is computed twice and compared to the bit, against silent data "
        "corruption; GPUs need run.deterministic=true for it; empty: never",
        mathematics=False,
    )
    peer_timeout_s: float = option(
        30.0,
        "several processes: seconds without a sign of life after which one counts as dead and the "
        "others end",
        within="above 0",
        mathematics=False,
    )
    grace_s: float = option(
        25.0,
        "seconds from the first SIGTERM within which the run saves and stops; after them it ends "
        "with the last checkpoint",
        within="above 0",
        mathematics=False,
    )
    before_limit_s: float = option(
        120.0,
        "seconds before the end of a SLURM job (SLURM_JOB_END_TIME) at which the run stops as if "
        "it had a signal; SIGUSR1 gives it as long, but at least `grace_s`",
        within="at least 0",
        mathematics=False,
    )
    init_limit_s: float = option(
        1800.0,
        "seconds without progress in opening data and joining processes after which the run "
        "ends with the stacks of all threads; 0: none, also for the limits below",
        within="at least 0",
        mathematics=False,
    )
    compile_limit_s: float = option(
        7200.0, "the same for compiling", within="at least 0", mathematics=False
    )
    step_limit_s: float = option(
        1800.0, "the same for a microbatch or a step", within="at least 0", mathematics=False
    )
    evaluation_limit_s: float = option(
        1800.0, "the same for a batch of evaluation", within="at least 0", mathematics=False
    )
    checkpoint_limit_s: float = option(
        1800.0, "the same for a checkpoint", within="at least 0", mathematics=False
    )
