"""The dataset: it opens, has the published counts, and its files are as they were written."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from largebatch import data
from largebatch.config import Config
from largebatch.config.facts import KNOWN_SETS, KnownSet
from largebatch.data.prepare.metadata import MANIFEST, Shard, changes, read_manifest
from largebatch.tools.doctor.lines import Line, judged, ok, problem, skip

NAME, CHECKSUMS = "dataset", "data checksums"
SAMPLE_S = 3.0
"""Seconds after which no further shard of a sample is read."""
_SAMPLE = 8


def known_set(source: str) -> KnownSet | None:
    """Return the published counts of data.source; folders are known by their names."""
    kind, _, path = source.partition(":")
    return KNOWN_SETS.get(source) or KNOWN_SETS.get(f"{kind}:{Path(path).name}")


def check(config: Config, splits: tuple[data.Source, data.Source]) -> Line:
    """Compare the counts of the training and the validation split with the published ones."""
    train, validation = splits
    words = f"{train.describe()}; {validation.describe()}; identity {data.identity(train)}"
    counts = (len(train), len(validation), len(train.classes))
    return judge(words, counts, known_set(config.data.source))


def judge(words: str, counts: tuple[int, int, int], known: KnownSet | None) -> Line:
    """Return the line from the numbers of training examples, validation examples and classes."""
    if known is None:
        return ok(NAME, f"{words}; no published counts to compare with")
    names = ("training examples", "validation examples", "classes")
    published = (known.train, known.validation, known.classes)
    problems = [
        (f"{have:,} {name} instead of {should:,}", "prepare the dataset again, or choose another")
        for name, have, should in zip(names, counts, published, strict=True)
        if have != should
    ]
    return judged(NAME, f"{words}; counts as published", problems)


def check_files(config: Config, *, full: bool, clock: Callable[[], float] = time.monotonic) -> Line:
    """Check the sizes of all shards, and checksums of a sample of them or of all.

    Args:
        config: configuration of the run.
        full: read every shard.
        clock: seconds.

    Raises:
        DataError: the manifest cannot be read.
    """
    directory = prepared_directory(config)
    if directory is None:
        return skip(CHECKSUMS, "the dataset has no manifest of scripts/prepare_imagenet.py")
    shards = read_manifest(directory).shards
    found = [
        f"{name} is missing or has another size"
        for shard in shards
        if not shard.present(directory)
        for name in shard.files
    ]
    until, read = clock() + SAMPLE_S, 0
    for shard in shards if full else sample(shards):
        if read and not full and clock() > until:
            break
        found += changes(directory, shard.files) if shard.present(directory) else []
        read += 1
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return problem(
            CHECKSUMS,
            f"{directory}: {'; '.join(found[:3])}{more}",
            "remove these files and repeat the command that prepared the dataset; it writes what "
            "is missing",
        )
    words = f"{len(shards):,} shards have their sizes, {read:,} were read and are unchanged"
    return ok(CHECKSUMS, words + ("" if read == len(shards) else "; --full reads all"))


def prepared_directory(config: Config) -> Path | None:
    """Return the folder of a run's dataset with the manifest of its preparation; None without."""
    kind, _, path = config.data.source.partition(":")
    candidates = []
    if kind in ("decoded", "arrayrecord", "folder"):
        candidates = [Path(path).expanduser()]
    elif kind == "tfds":
        from largebatch.data.tfds import root_of

        name = path.replace(":", "/").partition("/")[0]
        candidates = sorted(Path(root_of(config.data.data_dir), name).glob("*"), reverse=True)
    return next((path for path in candidates if (path / MANIFEST).is_file()), None)


def sample(shards: Sequence[Shard]) -> list[Shard]:
    """Return shards spread evenly over the dataset, the first and the last among them."""
    count = min(_SAMPLE, len(shards))
    if count < 2:
        return list(shards)
    return [shards[i * (len(shards) - 1) // (count - 1)] for i in range(count)]
