"""Options of seed, intervals, checkpoints and logs of a run."""

import dataclasses
from typing import Literal

from largebatch.config.values import option


@dataclasses.dataclass(frozen=True)
class Run:
    """Seed, intervals, checkpoints and logs."""

    seed: int = option(0, "seed of parameters, data order and augmentation", within="at least 0")
    scale_to: Literal["full", "node", "laptop"] = option(
        "full",
        "scale an ImageNet recipe to a smaller dataset with the same schedule and ratio of batch "
        "to dataset (docs/recipes.md). node: Imagenette on 8 devices; laptop: digits, a tiny "
        "network and a quarter of the learning rate",
    )
    scale_length: float = option(1.0, "factor of all durations of the recipe", within="above 0")
    log_every: str = option("10 steps", "interval of rows in metrics.jsonl", mathematics=False)
    layers_every: str = option(
        "100 steps",
        "interval of rows in layers.jsonl (trust ratios and norms)",
        mathematics=False,
    )
    evaluate_every: str = option("4 epochs", "interval of evaluations", mathematics=False)
    evaluate_first: str = option(
        "", "time of the first evaluation; empty: evaluate_every", mathematics=False
    )
    checkpoint_every: str = option("4 epochs", "interval of checkpoints", mathematics=False)
    keep_checkpoints: int = option(
        3, "number of newest checkpoints to keep", within="above 0", mathematics=False
    )
    keep_best: bool = option(
        False,
        "also keep the checkpoint of the greatest validation top-1 (with schedule.ema, of the "
        "averaged weights), saved after each better evaluation",
        mathematics=False,
    )
    stop_after: str = option(
        "",
        "stop with a checkpoint after this duration; empty: train to the end",
        mathematics=False,
    )
    deterministic: bool = option(
        False,
        "only deterministic algorithms; CPUs and TPUs have no others",
        mathematics=False,
    )
    target: float = option(
        0.0,
        "target top-1, as a fraction: the summary reports when an evaluation first reached it, "
        "the MLPerf clock stops there, and training continues; 0: none (MLPerf log: 0.759 in the "
        "closed division, the end of training in the open division)",
        within="at least 0 and below 1",
        mathematics=False,
    )
    trackers: tuple[str, ...] = option(
        (),
        "further outputs of the metrics: wandb, mlflow, or your own package.module:factory "
        "(docs/contributing.md)",
        mathematics=False,
    )
    profile: str = option(
        "",
        "START:STOP, steps that process 0 traces to WORKDIR/profile, for XProf; empty: none",
        mathematics=False,
    )
    compile_cache: str = option(
        "auto",
        "directory of the compilation cache, or a gs:// URL; auto: $JAX_COMPILATION_CACHE_DIR or "
        "~/.cache/largebatch/compile; off: none",
        mathematics=False,
        per_host="value",
    )
    mlperf_log: Literal["", "open", "closed"] = option(
        "",
        "write WORKDIR/result_SEED.txt, the MLPerf log of this division; such a run cannot be "
        "resumed",
        mathematics=False,
    )
