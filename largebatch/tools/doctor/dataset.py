"""The dataset and the plan: published counts, files as they were written, resolved options."""

import time
from collections.abc import Sequence
from pathlib import Path

import jax

from largebatch import data
from largebatch.config import Config, Facts, resolve
from largebatch.config.facts import KNOWN_SETS, KnownSet
from largebatch.data.open import facts_of, known_split, open_source
from largebatch.data.prepare.metadata import MANIFEST, Shard, changes, read_manifest
from largebatch.tools.doctor.job import Job
from largebatch.tools.doctor.lines import Problem, Skip

SAMPLE_S = 3.0
"""Seconds after which no further shard of a sample is read."""
_SAMPLE = 8


def known_set(source: str) -> KnownSet | None:
    """Return the published counts of data.source; folders are known by their names."""
    kind, _, path = source.partition(":")
    return KNOWN_SETS.get(source) or KNOWN_SETS.get(f"{kind}:{Path(path).name}")


def counts(job: Job) -> str:
    """Open both splits, and compare their counts with the published ones."""
    train, validation = open_source(job.config, "train"), open_source(job.config, "validation")
    job.splits = train, validation
    words = f"{train.describe()}; {validation.describe()}; identity {data.identity(train)}"
    known = known_set(job.config.data.source)
    if known is None:
        return f"{words}; no published counts to compare with"
    problems = [
        (f"{have:,} {name} instead of {should:,}", "prepare the dataset again, or choose another")
        for name, have, should in (
            ("training examples", len(train), known.train),
            ("validation examples", len(validation), known.validation),
            ("classes", len(train.classes), known.classes),
        )
        if have != should
    ]
    if problems:
        raise Problem(*problems)
    return f"{words}; counts as published"


def checksums(job: Job) -> str:
    """Check the sizes of all shards, and checksums of a sample of them or of all.

    Each host reads a sample, since it may have its own copy; only process 0 reads everything.
    """
    directory = prepared_directory(job.config)
    if directory is None:
        raise Skip("the dataset has no manifest of scripts/prepare_imagenet.py")
    full = job.full and jax.process_index() == 0
    shards = read_manifest(directory).shards
    found = [
        f"{name} is missing or has another size"
        for shard in shards
        if not shard.present(directory)
        for name in shard.files
    ]
    until, read = time.monotonic() + SAMPLE_S, 0
    for shard in shards if full else sample(shards):
        if read and not full and time.monotonic() > until:
            break
        found += changes(directory, shard.files) if shard.present(directory) else []
        read += 1
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        remedy = "remove these files and repeat the command that prepared the dataset"
        raise Problem((f"{directory}: {'; '.join(found[:3])}{more}", remedy))
    words = f"{len(shards):,} shards have their sizes, {read:,} were read and are unchanged"
    return words + ("" if read == len(shards) else "; --full reads all")


def prepared_directory(config: Config) -> Path | None:
    """Return the folder of a run's dataset with the manifest of its preparation; None without."""
    kind, _, path = config.data.source.partition(":")
    candidates = []
    if kind == "tfds":
        from largebatch.data.tfds import root_of

        name = path.replace(":", "/").partition("/")[0]
        candidates = sorted(Path(root_of(config.data.data_dir), name).glob("*"), reverse=True)
    elif path:
        candidates = [Path(path).expanduser()]
    return next((path for path in candidates if (path / MANIFEST).is_file()), None)


def sample(shards: Sequence[Shard]) -> list[Shard]:
    """Return shards spread evenly over the dataset, the first and the last among them."""
    count = min(_SAMPLE, len(shards))
    if count < 2:
        return list(shards)
    return [shards[i * (len(shards) - 1) // (count - 1)] for i in range(count)]


def plan(job: Job) -> str:
    """Resolve the options, with the published counts if the dataset cannot be opened."""
    job.plan = resolve(job.config, _facts(job))
    found = job.plan
    return f"{found.steps:,} steps, {found.epochs:.4g} epochs of {found.facts.train_examples:,}"


def _facts(job: Job) -> Facts:
    source, size = job.config.data.source, job.config.data.image_size
    on_device = job.config.data.crops == "device"
    train, validation = job.splits or (
        known_split(source, name, size) for name in ("train", "validation")
    )
    if train is None or validation is None or (on_device and job.splits is None):
        raise Skip("the dataset is neither here nor known")
    devices, processes = len(jax.devices()), jax.process_count()
    return facts_of(train, validation, devices, processes, crops_on_device=on_device)
