"""The mark of a dataset that is being written, and the check before one is opened."""

import os
from pathlib import Path

from largebatch.errors import DataError
from largebatch.store_urls import url_of

WORK, PLAN = ".prepare", "plan.json"
"""The folder of unfinished work within a dataset, and the file in it while one is written."""


def check_finished(place: str) -> None:
    """Check that a dataset on a disk is not unfinished, nor a directory above it.

    Args:
        place: A path, or a pattern of files. A URL is not checked: an object is complete or absent.

    Raises:
        DataError: It is being written, or its writer was interrupted.
    """
    if url_of(place):
        return
    path = Path(os.path.abspath(os.path.expanduser(place)))
    for folder in (path, *path.parents):
        if os.path.exists(folder / WORK / PLAN):
            raise DataError(
                f"{folder} is unfinished ({folder / WORK} exists); give the command that writes it "
                "again, then repeat this"
            )
