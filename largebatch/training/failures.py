"""Explain failures of the machine in one line: a full disk, device memory."""

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
    """Replace the error of a log that cannot be written by one line.

    Raises:
      UserError: names the directory and the fix.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise UserError(
            f"the logs in {place} cannot be written ({error.strerror}); free space, then the same "
            "command resumes from the newest checkpoint"
        ) from error


@contextlib.contextmanager
def out_of_memory_explained(made: Run) -> Iterator[None]:
    """Replace an out-of-memory error of a device by the microbatch to use.

    Raises:
      UserError: names the microbatch.
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
