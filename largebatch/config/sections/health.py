"""Options of fault detection and fault handling."""

import dataclasses
from typing import Literal

from largebatch.config.values import option


@dataclasses.dataclass(frozen=True)
class Health:
    """Fault detection and fault handling."""

    policy: Literal["stop", "skip", "rollback"] = option(
        "stop",
        "at a non-finite loss or gradient: stop; skip the update, at most 10 times; or roll back "
        "to the newest checkpoint and continue after the batches in between, at most twice. A "
        "diverging run rolls back or stops",
        mathematics=False,
    )
    divergence: float = option(
        0.5,
        "a run diverges if the loss exceeds ln(classes), or the least loss of its first steps, by "
        "this value in `window` or more consecutive steps after the warm-up (kind=sigmoid: ln(2) "
        "by this value / classes), and is no better than a guess (docs/reliability.md); 0: no "
        "check",
        within="at least 0",
        mathematics=False,
    )
    window: int = option(
        20,
        "least steps for the checks of divergence and stuck training",
        within="above 0",
        mathematics=False,
    )
    stuck_after: str = option(
        "30 %",
        "after this duration and the warm-up, a run that is provably no better than a guess and "
        "never was is stuck (docs/reliability.md); empty: no check",
        mathematics=False,
    )
    hosts_every: str = option(
        "100 steps",
        "several processes: interval at which step times are compared to find stragglers, which "
        "take 1.2 times the median in three consecutive comparisons; empty: never",
        mathematics=False,
    )
    replay_every: str = option(
        "",
        "interval at which a step is repeated and compared bitwise; GPUs need "
        "run.deterministic=true; empty: never",
        mathematics=False,
    )
    peer_timeout_s: float = option(
        30.0,
        "several processes: seconds without a heartbeat after which a process counts as dead",
        within="above 0",
        mathematics=False,
    )
    grace_s: float = option(
        25.0,
        "seconds after SIGTERM in which the run saves a checkpoint; at least 120 after SIGUSR1 "
        "and before the end of a SLURM job",
        within="above 0",
        mathematics=False,
    )
    limit_s: float = option(
        1800.0,
        "seconds without progress in joining, opening data, a microbatch, an evaluation batch or "
        "a checkpoint, four times as many in a compilation; then the run exits with the stacks of "
        "all threads; 0: no limit",
        within="at least 0",
        mathematics=False,
    )
