"""Options of a run that are none of its parts."""

import dataclasses

from largebatch.config.declaration import option


@dataclasses.dataclass(frozen=True)
class Run:
    """Seed, intervals and what is kept."""

    seed: int = option(0, "seed of parameters, data order and augmentation", within="at least 0")
    log_every: str = option("10 steps", "interval of rows in metrics.jsonl", mathematics=False)
    layers_every: str = option(
        "100 steps", "interval of rows in layers.jsonl: trust ratio and norms", mathematics=False
    )
    evaluate_every: str = option("4 epochs", "interval of evaluations", mathematics=False)
    checkpoint_every: str = option("4 epochs", "interval of checkpoints", mathematics=False)
    keep_checkpoints: int = option(
        3, "newest checkpoints kept", within="above 0", mathematics=False
    )
    stop_after: str = option(
        "",
        "stop here, with a checkpoint, as if interrupted; empty: at the end of training",
        mathematics=False,
    )
