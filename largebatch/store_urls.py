"""URLs of Amazon S3, Google Cloud Storage and Azure Blob Storage."""

import os
import re

from largebatch.errors import ConfigError

SCHEMES = ("s3", "gs", "az")
_BUCKET = r"[A-Za-z0-9._-]+"
_URL = re.compile(rf"({'|'.join(SCHEMES)})://({_BUCKET})(?:/([^?#]*))?")
_PATTERN = re.compile(rf"({'|'.join(SCHEMES)})://{_BUCKET}(?:/(?!.*\?[^/]*=).*)?", re.DOTALL)


def url_of(path: str | os.PathLike) -> str:
    """Return the URL of a path in an object store, such as ``gs://bucket/runs/a``; '' if local.

    A `Path` made of a URL has one slash less.
    """
    scheme, colon, rest = str(path).partition(":/")
    return f"{scheme}://{rest.removeprefix('/')}" if colon and scheme in SCHEMES else ""


def check_local(option: str, path: str | os.PathLike) -> None:
    """Check that a path is not in an object store.

    Raises:
        ConfigError: It is; the message names the option.
    """
    if url := url_of(path):
        raise ConfigError(f"{option}={shown(url)}: expected a local path; use another directory")


def parts_of(url: str) -> tuple[str, str, str]:
    """Return scheme, bucket and path of a URL; the path has no slash at its ends.

    Raises:
        ConfigError: It is malformed, or has credentials or a query.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise _malformed(url)
    scheme, bucket, path = match.groups()
    return scheme, bucket, (path or "").strip("/")


def check_url(url: str) -> None:
    """Check a URL, or a pattern of URLs in which `?` stands for a character, before it is shown.

    Raises:
        ConfigError: The bucket is malformed, or there are credentials or a query.
    """
    if not _PATTERN.fullmatch(url):
        raise _malformed(url)


def shown(text: str) -> str:
    """Return a text that ends with a URL, for messages: without user, password and query."""
    start = re.search(rf"({'|'.join(SCHEMES)}):/+", text)
    if start is None or _URL.fullmatch(text[start.start() :]):
        return text
    rest = re.sub(r"^.*@", "…@", text[start.end() :], flags=re.DOTALL)
    return text[: start.end()] + re.sub(r"[?#].*", "?…", rest, flags=re.DOTALL)


def _malformed(url: str) -> ConfigError:
    return ConfigError(
        f"{shown(url)}: expected s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH, "
        "without credentials; set these in the environment"
    )
