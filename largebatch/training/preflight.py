"""Checks before a long run starts: the MLPerf log and the disk."""

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

from largebatch.checkpoint.file import bytes_needed
from largebatch.config import Config, Plan
from largebatch.config.sections import Run as Options
from largebatch.errors import ConfigError, UserError
from largebatch.tracking.compliance import check_log, rehearse
from largebatch.tracking.mlperf import CLOSED_TARGET
from largebatch.training.memory import GIB

PyTree = Any
LOG_BYTES = 2**28
"""A generous allowance for metrics, layers and TensorBoard events."""


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


def disk_bytes(options: Options, shapes: PyTree) -> int:
    """Return the bytes that the checkpoints of a run, with one that is written, and its logs need.

    Args:
        options: the section ``run``.
        shapes: shapes and dtypes of the stored state.
    """
    count = options.keep_checkpoints + options.keep_best + 1
    return count * bytes_needed(shapes) + LOG_BYTES


def check_space(path: Path, options: Options, shapes: PyTree) -> None:
    """Check that a disk has the bytes of `disk_bytes`; the directory may not exist yet.

    Raises:
        UserError: it has not.
    """
    needed, free = disk_bytes(options, shapes), free_bytes(path)
    if needed > free:
        raise UserError(
            f"{path} has {free / GIB:.2f} GiB free, checkpoints and logs need {needed / GIB:.2f} "
            "GiB; free space or use another directory"
        )


def free_bytes(path: Path) -> int:
    """Return the bytes free on the file system of a directory that may not exist yet."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return shutil.disk_usage(existing).free
