"""Objects in Amazon S3, Google Cloud Storage and Azure Blob Storage, by the library obstore.

Credentials come from where the clouds' own tools look for them: the environment, the metadata
server of the machine, and for S3 also the files and profiles of boto3, if that is installed. No
option holds a credential. Connections are retried for `_RETRY_S` seconds after errors of the
server, time-outs and throttling.
"""

import asyncio
import functools
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from largebatch.errors import ConfigError, UserError
from largebatch.store_urls import parts_of

IN_FLIGHT = 256
"""Requests of ranges of a process at once. A thread that decodes takes some 200 photographs at a
time, 0.2 s of work, and waits for one latency of the store, not several. More in flight would be
refused: S3 answers 5,500 requests/s for a prefix, which 256 at 20 ms exceed already."""
_RETRY_S = 60
_TIMEOUT_S = 60
"""Limit of one request; large files are transferred in parts of 5 to 16 MiB."""
_PART, _PARTS = 16 * 2**20, 12
"""Bytes of the parts in which a larger file is uploaded, and how many are uploaded at a time."""
_LONGEST_REASON = 300  # characters of a message
_SERVERS = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"}


class StorageError(UserError):
    """An object store that cannot be reached, or that refuses a request."""


class Version(NamedTuple):
    """What changes with each write of an object: its ETag, or its generation in Google Cloud."""

    e_tag: str | None
    version: str | None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Version":
        """Return the version that an answer of obstore names."""
        return cls(answer.get("e_tag"), answer.get("version"))


class Entry(NamedTuple):
    """An object in a listing."""

    size: int
    """Bytes."""
    version: Version
    modified: int
    """Time of the last write, seconds since 1970."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Entry":
        """Return the object that an answer of obstore names."""
        return cls(answer["size"], Version.of(answer), int(answer["last_modified"].timestamp()))

    @property
    def tag(self) -> str:
        """The ETag without its quotes, which listings of some servers lack; '' if there is none."""
        return (self.version.e_tag or "").strip('"')

    def same(self, other: "Entry") -> bool:
        """Return whether another answer is about the same content."""
        if self.tag:
            return (self.size, self.tag) == (other.size, other.tag)
        return (self.size, self.modified) == (other.size, other.modified)


class Range(NamedTuple):
    """Bytes of an object, all of which it has."""

    name: str
    offset: int
    size: int
    """At least 1."""
    entry: Entry
    """The object as it was listed."""


_slots = asyncio.Semaphore(IN_FLIGHT)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all reads; its thread does not keep the process from ending."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="largebatch-objects", daemon=True).start()
    return loop


class Bucket:
    """The objects below a URL; names are relative to it. Thread-safe."""

    def __init__(self, url: str, request_s: int = 0, retry_s: int = 0) -> None:
        """Send no request yet.

        Args:
            url: ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH`` or ``az://CONTAINER/PATH``.
            request_s: Limit of one request, seconds; 0 is `_TIMEOUT_S`.
            retry_s: Time after which a failed request is not repeated, seconds; 0 is `_RETRY_S`.

        Raises:
            ConfigError: The URL is malformed, or obstore is not installed.
            StorageError: The credentials are malformed.
        """
        scheme, bucket, path = parts_of(url)
        try:
            from obstore import store
        except ImportError:
            raise ConfigError(
                f"{url}: object storage needs the package obstore; use pip install "
                "'largebatch[storage]'"
            ) from None
        self.url = f"{scheme}://{bucket}/{path}".rstrip("/")
        with _one_line_errors(self.url):
            self._store: Any = store.from_url(
                self.url,
                client_options={
                    "timeout": f"{request_s or _TIMEOUT_S}s",
                    "connect_timeout": "10s",
                    # Only local servers are reached without encryption.
                    "allow_http": os.environ.get(_SERVERS.get(scheme, ""), "").startswith("http:"),
                },
                retry_config={
                    "max_retries": 20,
                    "retry_timeout": timedelta(seconds=retry_s or _RETRY_S),
                },
                **_access(scheme),
            )

    def objects(self, prefix: str = "") -> dict[str, Entry]:
        """Return all objects in a folder, or everywhere, and in its folders, by name."""
        found: dict[str, Entry] = {}
        with _one_line_errors(self.url):
            for page in self._store.list(prefix or None):
                found |= {each["path"]: Entry.of(each) for each in page}
        return found

    def listing(self, prefix: str = "") -> tuple[dict[str, Entry], list[str]]:
        """Return the objects directly in a folder by name, and the names of its folders, sorted."""
        with _one_line_errors(self.url):
            found = self._store.list_with_delimiter(prefix or None)
        folders = sorted(path.rpartition("/")[2] for path in found["common_prefixes"])
        return {each["path"]: Entry.of(each) for each in found["objects"]}, folders

    def entries(self, prefix: str = "") -> dict[str, Entry]:
        """Return the objects directly in a folder, or those in none, by name."""
        return self.listing(prefix)[0]

    def folders(self, prefix: str = "") -> list[str]:
        """Return the names of the folders directly below a path, sorted."""
        return self.listing(prefix)[1]

    def read(self, name: str) -> tuple[bytes, Version] | None:
        """Return the content and the version of an object; None if there is none."""
        with _one_line_errors(f"{self.url}/{name}"):
            try:
                found = self._store.get(name)
                return bytes(found.bytes()), Version.of(found.meta)
            except FileNotFoundError:
                return None

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes | None]:
        """Return bytes of objects, read at once; None for one that is not the one listed any more.

        The server compares the ETag, and so does this, for servers that ignore the condition.

        Raises:
            StorageError: See `Bucket`.
        """
        return asyncio.run_coroutine_threadsafe(self._read_all(ranges), _loop()).result()

    async def _read_all(self, ranges: Sequence[Range]) -> list[bytes | None]:
        return await asyncio.gather(*map(self._read_range, ranges))

    async def _read_range(self, wanted: Range) -> bytes | None:
        from obstore import exceptions

        name, offset, size, entry = wanted
        options: Any = {"range": (offset, offset + size)}
        if entry.tag:
            options["if_match"] = f'"{entry.tag}"'
        with _one_line_errors(f"{self.url}/{name}"):
            for last in (False, False, True):
                try:
                    async with _slots:
                        found = await self._store.get_async(name, options=options)
                        if not entry.same(Entry.of(found.meta)):
                            return None
                        data = bytes(await found.bytes_async())
                except (FileNotFoundError, exceptions.PreconditionError):
                    return None
                except exceptions.GenericError:  # obstore does not repeat an answer that was cut
                    if last:
                        raise
                    continue
                if len(data) == size:
                    return data
        raise StorageError(
            f"{self.url}/{name}: answers have fewer than the {size:,} bytes from byte {offset:,}; "
            "check the network and the server"
        )

    def download(self, name: str, path: Path) -> None:
        """Write an object to a file, whose folder is created; it is complete or absent.

        Raises:
            StorageError: There is no such object, or see `Bucket`.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        with _one_line_errors(f"{self.url}/{name}"):
            with partial.open("wb") as file:
                for piece in self._store.get(name).stream(min_chunk_size=2**20):
                    file.write(piece)
            partial.replace(path)

    def write(self, name: str, content: bytes | Path) -> Version:
        """Create or replace an object atomically, from bytes or a file; return its version.

        Args:
            name: The object.
            content: Its content.

        Raises:
            FileNotFoundError: The file does not exist.
            StorageError: See `Bucket`.
        """
        if isinstance(content, Path):
            os.stat(content)
        with _one_line_errors(f"{self.url}/{name}"):
            return Version.of(
                self._store.put(name, content, chunk_size=_PART, max_concurrency=_PARTS)
            )

    def swap(self, name: str, content: bytes, expected: Version | None) -> Version | None:
        """Write a small object only if nobody has changed it.

        Args:
            name: The object.
            content: Its new content.
            expected: The version to be replaced; None if there must be no such object.

        Returns:
            The new version; None if another one was found.

        Raises:
            StorageError: The store has no conditional writes, or see `Bucket`.
        """
        from obstore import exceptions

        mode: Any = "create"
        if expected is not None:
            mode = {name: value for name, value in expected._asdict().items() if value is not None}
        with _one_line_errors(f"{self.url}/{name}"):
            try:
                written = self._store.put(name, content, mode=mode, use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return None
            except FileNotFoundError:
                if expected is None:  # there is no such bucket
                    raise
                return None
        return Version.of(written)

    def copy(self, name: str, target: str) -> None:
        """Copy an object within the store."""
        with _one_line_errors(f"{self.url}/{name}"):
            self._store.copy(name, target)

    def delete(self, *names: str) -> None:
        """Delete objects; those that are absent are ignored."""
        for name in names:
            with _one_line_errors(f"{self.url}/{name}"):
                try:
                    self._store.delete(name)
                except FileNotFoundError:
                    continue


def _access(scheme: str) -> dict[str, Any]:
    """Return arguments of a store where obstore does not look in all usual places by itself."""
    if scheme == "gs" and (server := os.environ.get("STORAGE_EMULATOR_HOST")):
        local = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        return {"service_account_key": json.dumps({"gcs_base_url": server, **local})}
    if scheme != "s3" or "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider

        return {"credential_provider": Boto3CredentialProvider(boto3.Session())}
    except (ImportError, ValueError):  # ValueError: no profile and no metadata server
        return {}


@contextmanager
def _one_line_errors(place: str) -> Iterator[None]:
    """Turn an error of obstore into a StorageError of one line."""
    try:
        from obstore.exceptions import BaseError
    except ImportError:  # reported by the caller
        yield
        return
    try:
        yield
    except (BaseError, FileNotFoundError, PermissionError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # a local file
            raise
        # The rest of the text describes obstore's own objects.
        reason = str(error).partition("Debug source:")[0]
        if answer := re.search(r"<Code>(\w+)</Code>\s*<Message>([^<]*)", reason):
            reason = f"{answer[1]}: {answer[2]}"
        reason = re.sub(r"\?[^\s)\"]*", "?…", " ".join(reason.split()))  # a signed URL is a secret
        if len(reason) > _LONGEST_REASON:  # the answer of the server is at the end
            reason = f"{reason[:100]} … {reason[100 - _LONGEST_REASON :]}"
        place = " ".join(place.splitlines())
        raise StorageError(
            f"{place}: {reason or type(error).__name__}; check the URL, the credentials and the "
            "network"
        ) from None
