"""Options of a run that are none of its parts."""

import dataclasses
from typing import Literal

from largebatch.config.declaration import option


@dataclasses.dataclass(frozen=True)
class Run:
    """Seed, intervals and what is kept."""

    seed: int = option(0, "seed of parameters, data order and augmentation", within="at least 0")
    scale_to: Literal["full", "node", "laptop"] = option(
        "full",
        "shrink a recipe for ImageNet, with the same ratio of batch to data set (but at least 64 "
        "or 16 images) and the same shape of schedule: node, to Imagenette, for 8 devices; laptop, "
        "to the digits and a tiny network, at a quarter of the learning rate; SGD's rate is scaled "
        "linearly to the smaller batch; batch.workers is rounded to what the devices share evenly",
        mathematics=False,
    )
    scale_length: float = option(
        1.0, "factor of all durations of the recipe", within="above 0", mathematics=False
    )
    log_every: str = option("10 steps", "interval of rows in metrics.jsonl", mathematics=False)
    layers_every: str = option(
        "100 steps", "interval of rows in layers.jsonl: trust ratio and norms", mathematics=False
    )
    evaluate_every: str = option("4 epochs", "interval of evaluations", mathematics=False)
    evaluate_first: str = option(
        "", "when the first evaluation is; empty: after the interval", mathematics=False
    )
    checkpoint_every: str = option("4 epochs", "interval of checkpoints", mathematics=False)
    keep_checkpoints: int = option(
        3, "newest checkpoints kept", within="above 0", mathematics=False
    )
    stop_after: str = option(
        "",
        "stop here, with a checkpoint, as if interrupted; empty: at the end of training",
        mathematics=False,
    )
    deterministic: bool = option(
        False,
        "only algorithms that give the same bits every time: of importance on GPUs, CPUs and TPUs "
        "have no others",
        mathematics=False,
    )
    target: float = option(
        0.0,
        "top-1 of the validation set, a fraction: the summary says when an evaluation first "
        "reached it, and there the clock of MLPerf's log stops, while training goes on; 0: none, "
        "in that log 0.759 in the closed division, the end of training in the open one",
        within="at least 0 and below 1",
        mathematics=False,
    )
    trackers: tuple[str, ...] = option(
        (),
        "where the history goes beside JSON lines and TensorBoard: wandb, mlflow, or your own "
        "package.module:factory (docs/contributing.md)",
        mathematics=False,
    )
    profile: str = option(
        "",
        "START:STOP, steps from and up to which process 0 writes a trace to WORKDIR/profile, for "
        "scripts/report.py --trace and XProf; empty: none",
        mathematics=False,
    )
    compile_cache: str = option(
        "auto",
        "folder in which compiled programs are kept for the next start, of all runs and "
        "processes; auto: $JAX_COMPILATION_CACHE_DIR or ~/.cache/largebatch/compile; off: none",
        mathematics=False,
    )
    mlperf_log: Literal["", "open", "closed"] = option(
        "",
        "write WORKDIR/result_SEED.txt, MLPerf's log in this division, after a warm-up on made-up "
        "images; such a run cannot be resumed; empty: none",
        mathematics=False,
    )
    mlperf_organisation: str = option("unsubmitted", "who would submit that log", mathematics=False)
