"""ETags of object stores: of which files they are the MD5."""

import hashlib
import re
from pathlib import Path

from largebatch.data.prepare.jobs import system_errors
from largebatch.data.prepare.run import md5

_HASH = re.compile(r'"?([0-9a-f]{32})(?:-(\d+))?"?')
_PARTS = tuple(n << 20 for n in (5, 8, 10, 15, 16, 20, 25, 32, 50, 64, 100, 128, 256, 512, 1024))
"""Part sizes of the usual programs: rclone 5 MiB, aws and boto3 8, this program 16, s5cmd 50, …"""


def kind(tag: str) -> str:
    """Return ``whole`` or ``parts`` for an ETag of the form of an MD5, and '' for any other."""
    found = _HASH.fullmatch(tag)
    return "" if found is None else "parts" if found[2] else "whole"


def is_of(tag: str, path: Path) -> bool | None:
    """Return whether an ETag is the MD5 of a file.

    The ETag of an object in S3, or in the XML interface of Google Cloud Storage, is its MD5 if it
    was written by one request without a key of a key management service. After an upload in parts
    S3 has the MD5 of the MD5s of the parts and their number; the usual part sizes are tried.

    Args:
        tag: The ETag, with or without quotes.
        path: The file.

    Returns:
        None if the ETag has not the form of an MD5, or of no part size that is tried. False if the
        file differs, or if the store encrypts and the ETag is something else of the same form.

    Raises:
        DataError: The file cannot be read.
    """
    found = _HASH.fullmatch(tag)
    if found is None:
        return None
    if not found[2]:
        return md5(path)[1] == found[1]
    with system_errors(path):
        size = path.stat().st_size
    fitting = [part for part in _PARTS if -(-size // part) == int(found[2])]
    return any(_md5_of_parts(path, part) == found[1] for part in fitting) if fitting else None


def _md5_of_parts(path: Path, size: int) -> str:
    whole = hashlib.md5(usedforsecurity=False)
    with system_errors(path), path.open("rb") as stream:
        while part := stream.read(size):
            whole.update(hashlib.md5(part, usedforsecurity=False).digest())
    return whole.hexdigest()
