"""Failures of the machine that a run can explain: a full disk, a device's memory."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import jax

from largebatch.config import microbatch_candidates
from largebatch.errors import UserError
from largebatch.training.memory import is_exhausted
from largebatch.training.setup import Run


@contextlib.contextmanager
def full_disk_explained(place: Path) -> Iterator[None]:
    """Turn a log that cannot be written into one line; a checkpoint that cannot only warns.

    Raises:
      UserError: with where, and what to do.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise UserError(
            f"the logs in {place} cannot be written ({error.strerror}); free some space, then the "
            "same command resumes from the newest checkpoint"
        ) from error


@contextlib.contextmanager
def out_of_memory_explained(made: Run) -> Iterator[None]:
    """Turn a device's running out of memory into the microbatch to use.

    Raises:
      UserError: with it.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_exhausted(error):
            raise
        stage = made.plan.first_stage
        fitting = microbatch_candidates(stage.config, stage.facts)
        smaller = [m for m in fitting if m < stage.microbatch]
        remedy = (
            f"use --config.batch.microbatch={smaller[-1]}"
            if smaller
            else "use fewer batch.images_per_worker or smaller images"
        )
        raise UserError(
            f"a device ran out of memory with batch.microbatch={stage.microbatch} "
            f"({stage.local_images} images at a time); {remedy}"
        ) from error
