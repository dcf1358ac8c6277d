"""What a preparation remembers: its plan, the shards that are done, in the end the manifest."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from largebatch.data.prepare.checksums import Files
from largebatch.errors import DataError
from largebatch.files import write_json

MANIFEST = "manifest.json"
_FORMAT = {"format": "largebatch ImageNet preparation", "version": 1}


@dataclass(frozen=True)
class Done:
    """A shard that has been written.

    Attributes:
        split: `train` or `validation`.
        shard: Its number.
        examples: How many images it has.
        payload: Bytes of its records, or of its pixels.
        check: How its images were checked.
        files: Its files.
    """

    split: str
    shard: int
    examples: int
    payload: int
    check: str
    files: Files

    def present(self, directory: Path) -> bool:
        """Whether its files are there, of their sizes."""
        paths = {directory / name: size for name, (size, _) in self.files.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())

    def bytes(self) -> int:
        """Of all of its files."""
        return sum(size for size, _ in self.files.values())


class Ledger:
    """The memory of one directory. Its own files lie in `.prepare/` and go with the last shard."""

    def __init__(self, directory: Path) -> None:
        """Makes the directory.

        Args:
            directory: Where the shards are written.

        Raises:
            OSError: It cannot be made.
        """
        self.directory = directory
        self.work = directory / ".prepare"
        self._plan = self.work / "plan.json"
        self._journal = self.work / "done.jsonl"
        self.work.mkdir(parents=True, exist_ok=True)

    def shards(self, identity: dict[str, str]) -> dict[tuple[str, int], Done]:
        """The shards that are done.

        Args:
            identity: What a shard depends on, as `plan.identity`.

        Returns:
            Those whose files are there, by split and number.

        Raises:
            DataError: The directory holds another preparation.
        """
        finished = self.manifest()
        earlier = finished["plan"] if finished else self._planned()
        if earlier is None:
            return {}
        if earlier != identity:
            raise DataError(
                f"{self.directory} holds another preparation: {_difference(earlier, identity)}; "
                "choose another --out, the same options, or remove the directory"
            )
        done = shards_of(finished) if finished else []
        if self._journal.exists():
            done += _journalled(self._journal.read_text())
        return {
            (shard.split, shard.shard): shard for shard in done if shard.present(self.directory)
        }

    def begin(self, identity: dict[str, str]) -> None:
        """Remembers what the shards that follow depend on; see `shards`."""
        if self._planned() is None:
            self._journal.unlink(missing_ok=True)
            write_json(self._plan, identity)

    def add(self, shard: Done) -> None:
        """Remembers a shard whose files have their names."""
        with self._journal.open("a") as stream:
            # What a kill cut off must not spoil the line that follows.
            stream.write("\n" + json.dumps(asdict(shard)) + "\n")

    def _planned(self) -> dict[str, str] | None:
        return json.loads(self._plan.read_text()) if self._plan.exists() else None

    def manifest(self) -> dict | None:
        """The manifest, if there is one; see `read_manifest`."""
        return read_manifest(self.directory) if (self.directory / MANIFEST).exists() else None

    def finish(
        self,
        identity: dict[str, str],
        shards: Iterable[Done],
        metadata: Files,
        facts: dict[str, object],
    ) -> None:
        """Writes the manifest.

        Args:
            identity: As of `begin`.
            shards: All of them, in their order.
            metadata: The files beside them.
            facts: What else it should say.
        """
        listed = {"metadata": metadata, "shards": [asdict(shard) for shard in shards]}
        write_json(self.directory / MANIFEST, _FORMAT | facts | {"plan": identity} | listed)


def read_manifest(directory: Path) -> dict:
    """The manifest of a finished set.

    Raises:
        DataError: There is none, or it is not one.
    """
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is missing: the set is unfinished (the command that prepares it goes on) or "
            "was prepared by other means"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); remove it and prepare again") from error
    if not isinstance(manifest, dict) or not manifest.items() >= _FORMAT.items():
        raise DataError(f"{path} is no manifest of version {_FORMAT['version']}")
    return manifest


def shards_of(manifest: dict) -> list[Done]:
    """The shards that a manifest lists."""
    return [_done(entry) for entry in manifest["shards"]]


def metadata_of(manifest: dict) -> Files:
    """The files beside the shards that a manifest lists."""
    return _files(manifest.get("metadata", {}))


def _done(entry: dict) -> Done:
    return Done(**{**entry, "files": _files(entry["files"])})


def _files(entry: dict) -> Files:
    return {name: (size, digest) for name, (size, digest) in entry.items()}


def _journalled(text: str) -> list[Done]:
    done = []
    for line in text.splitlines():
        try:
            done.append(_done(json.loads(line)))
        except (ValueError, TypeError, KeyError):  # blank, or cut off by a kill
            continue
    return done


def _difference(earlier: dict[str, str], now: dict[str, str]) -> str:
    parts = [
        f"{key} {earlier.get(key, 'absent')!r} there, {now.get(key, 'absent')!r} asked for"
        for key in earlier | now
        if earlier.get(key) != now.get(key)
    ]
    return "; ".join(parts)
