"""Check data, disk and the MLPerf log before a long run starts."""

import dataclasses
import importlib.util
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from largebatch import data
from largebatch.config import Config, Plan, resolve
from largebatch.data.open import facts_of, open_source, open_validation_sets
from largebatch.errors import ConfigError, UserError, counted
from largebatch.parallel import processes
from largebatch.tracking.compliance import check_log, rehearse
from largebatch.tracking.mlperf import CLOSED_TARGET
from largebatch.training.memory import GIB
from largebatch.training.steps import model_of

LOG_BYTES = 2**28
"""A generous allowance for metrics, layers and TensorBoard events."""


@dataclasses.dataclass(frozen=True)
class Preflight:
    """A run that may start.

    Attributes:
        plan: what it resolves to.
        rows: (label, value) of what was checked.
    """

    plan: Plan
    rows: list[tuple[str, str]]


def preflight(
    config: Config, out: Path, *, devices: Sequence[jax.Device] | None = None
) -> Preflight:
    """Check configuration, data, devices, disk space and the MLPerf log that is configured.

    One example of each split is read. Nothing is compiled.

    Args:
        config: configuration of the run.
        out: directory that the run will write to.
        devices: None for all devices of all processes.

    Raises:
        UserError: something would stop the run, or its log would be refused.
    """
    devices = jax.devices() if devices is None else devices
    splits = [open_source(config, split) for split in ("train", "validation")]
    for split in (*splits, *open_validation_sets(config, splits[1]).values()):
        # The run counts what cannot be decoded against data.max_unreadable.
        data.as_far_as_possible(split.read, np.zeros(1, np.int64))
    on_device = config.data.crops == "device"
    facts = facts_of(*splits, len(devices), jax.process_count(), crops_on_device=on_device)
    plan = resolve(config, facts)
    needed, free = checkpoint_bytes(plan) + LOG_BYTES, free_bytes(out)
    if needed > free:
        raise UserError(
            f"{out} has {free / GIB:.2f} GiB free, checkpoints and logs need {needed / GIB:.2f} "
            "GiB; free space or use another directory"
        )
    hosts = counted(jax.process_count(), "process")
    rows = [
        ("training data", splits[0].describe()),
        ("validation data", splits[1].describe()),
        (
            "devices",
            f"{len(devices)} × {devices[0].device_kind} in {hosts}",
        ),
        ("disk", f"{free / GIB:,.1f} GiB free, {needed / GIB:.2f} GiB needed"),
    ]
    if config.run.mlperf_log:
        processes.first_process_does(lambda: check_rules(plan))
        rows.append(("MLPerf log", f"{config.run.mlperf_log} division, accepted by its checker"))
    return Preflight(plan, rows)


def check_logger(config: Config) -> None:
    """Check that the package that writes and checks the MLPerf log is installed.

    Raises:
        UserError: it is missing.
    """
    if importlib.util.find_spec("mlperf_logging") is None:
        raise UserError(
            f"run.mlperf_log={config.run.mlperf_log} needs a package that is missing; use "
            "pip install mlperf-logging"
        )


def check_rules(plan: Plan) -> None:
    """Give the log that a run of the plan would write to MLPerf's checker.

    Raises:
        ConfigError: the checker refuses it, whatever the accuracy.
        UserError: mlperf-logging is not installed.
    """
    options = plan.config.run
    check_logger(plan.config)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, f"result_{options.seed}.txt")
        reached = options.target or CLOSED_TARGET
        rehearse(
            log,
            plan,
            division=options.mlperf_log,
            accuracy=lambda epochs: reached * (epochs / plan.epochs),
            target=options.target,
        )
        verdict = check_log(log)
    if not verdict.accepted:
        raise ConfigError(
            f"run.mlperf_log={options.mlperf_log}: the division's rules refuse this recipe: "
            f"{'; '.join(verdict.complaints)}; change it, or use run.mlperf_log=open"
        )


def free_bytes(path: Path) -> int:
    """Return the bytes free on the file system of a directory that may not exist yet."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return shutil.disk_usage(existing).free


def checkpoint_bytes(plan: Plan) -> int:
    """Return the bytes of all checkpoints kept: float32 parameters, velocities and statistics."""
    params, stats = model_of(plan).shapes()
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (params, stats)]
    return 4 * (2 * sizes[0] + sizes[1]) * (plan.config.run.keep_checkpoints + 1)
