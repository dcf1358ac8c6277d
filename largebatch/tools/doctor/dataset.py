"""The data set: opens, has the counts that are known, and is as it was written."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from largebatch import data
from largebatch.config import Config
from largebatch.config.known_sets import KNOWN_SETS, KnownSet
from largebatch.data.open import open_source
from largebatch.data.prepare.metadata import MANIFEST, Shard, changes, read_manifest
from largebatch.tools.doctor.lines import Line, judged, ok, problem, skip

NAME = "data set"
CHECKSUMS = "data checksums"
SAMPLE_S = 3.0
"""Seconds after which no further shard of a sample is begun."""
_SAMPLE = 8


def opened(config: Config) -> tuple[data.Source, data.Source]:
    """Training and validation split.

    Raises:
        DataError: One cannot be opened; the message says what was found and what was expected.
    """
    return open_source(config, "train"), open_source(config, "validation")


def known_set(source: str) -> KnownSet | None:
    """What is known of the set that data.source names; folders are known by their names."""
    kind, _, path = source.partition(":")
    return KNOWN_SETS.get(source) or KNOWN_SETS.get(f"{kind}:{Path(path).name}")


def judge(
    described: tuple[str, str],
    counts: tuple[int, int],
    classes: int,
    known: KnownSet | None,
    identity: str,
) -> Line:
    """The line.

    Args:
        described: Both splits in words.
        counts: Examples of training and validation.
        classes: How many.
        known: What they should be; None: unknown.
        identity: Of the training split.
    """
    words = f"{described[0]}; {described[1]}; identity {identity}"
    if known is None:
        return ok(NAME, f"{words}; no published counts to compare with")
    problems = [
        (f"{have:,} {what} instead of {should:,}", "prepare the set again, or name another")
        for what, have, should in (
            ("training examples", counts[0], known.train),
            ("validation examples", counts[1], known.validation),
            ("classes", classes, known.classes),
        )
        if have != should
    ]
    return judged(NAME, f"{words}; counts as published", problems)


def check(config: Config, splits: tuple[data.Source, data.Source]) -> Line:
    """The line of what `opened` gave."""
    train, validation = splits
    return judge(
        (train.describe(), validation.describe()),
        (len(train), len(validation)),
        len(train.classes),
        known_set(config.data.source),
        data.identity(train),
    )


def prepared_directory(config: Config) -> Path | None:
    """Where the set of a run lies with the manifest of its preparation; None without one."""
    kind, _, path = config.data.source.partition(":")
    if kind in ("decoded", "arrayrecord", "folder"):
        candidates = [Path(path).expanduser()]
    elif kind == "tfds":
        from largebatch.data.tfds import root_of

        name = path.replace(":", "/").partition("/")[0]
        candidates = sorted(Path(root_of(config.data.data_dir), name).glob("*"), reverse=True)
    else:
        return None
    return next((path for path in candidates if (path / MANIFEST).is_file()), None)


def check_files(config: Config, *, full: bool, clock: Callable[[], float] = time.monotonic) -> Line:
    """Sizes of all shards, and checksums of a sample of them, or of all.

    Args:
        config: What is to run.
        full: Read every shard.
        clock: In seconds; after SAMPLE_S no further shard of a sample is begun.

    Raises:
        DataError: The manifest cannot be read.
    """
    directory = prepared_directory(config)
    if directory is None:
        return skip(CHECKSUMS, "the set has no manifest of scripts/prepare_imagenet.py")
    shards = read_manifest(directory).shards
    missing = [name for shard in shards if not shard.present(directory) for name in shard.files]
    chosen = shards if full else sample(shards)
    until, found, read = clock() + SAMPLE_S, [], 0
    for shard in chosen:
        if read and not full and clock() > until:
            break
        found += changes(directory, shard.files) if shard.present(directory) else []
        read += 1
    return judge_files(directory, len(shards), read, missing, found)


def sample(shards: Sequence[Shard]) -> list[Shard]:
    """Shards spread evenly over the set, the first and the last among them."""
    count = min(_SAMPLE, len(shards))
    if count < 2:
        return list(shards)
    return [shards[i * (len(shards) - 1) // (count - 1)] for i in range(count)]


def judge_files(
    directory: Path, shards: int, read: int, missing: Sequence[str], changed: Sequence[str]
) -> Line:
    """The line.

    Args:
        directory: Of the set.
        shards: How many there are.
        read: How many were read whole.
        missing: Files that are absent or of another size.
        changed: What else has changed, in words.
    """
    if missing or changed:
        shown = [f"{name} is missing or of another size" for name in missing[:3]] + [*changed][:3]
        more = len(missing) + len(changed) - len(shown)
        return problem(
            CHECKSUMS,
            f"{directory}: {'; '.join(shown)}{f' and {more} more' if more else ''}",
            "remove the files named here and give the command that prepared the set: it writes "
            "what is missing",
        )
    rest = "" if read == shards else "; --full reads all"
    return ok(CHECKSUMS, f"{shards:,} shards of their sizes, {read:,} read and as written{rest}")
