"""Shards of `tf.train.Example`s, by their format and the place where they are."""

import dataclasses
from collections.abc import Sequence

from largebatch.data import riegeli, tfrecord
from largebatch.data.examples import ArrayRecordShards, Keys, lengths_of
from largebatch.data.index import positions
from largebatch.data.storage import LocalStorage, Storage
from largebatch.errors import DataError, one_line

ExampleShards = ArrayRecordShards | riegeli.RiegeliShards | tfrecord.TFRecordShards


def open_shards(
    name: str, form: str, paths: tuple[str, ...], storage: Storage, keys: Keys, check: bool
) -> ExampleShards:
    """Return the shards, with the number of records of each.

    Args:
        name: What is opened, for the progress of an index.
        form: `array_record` or `tfrecord`.
        paths: The files, in one directory.
        storage: That directory.
        keys: The features that are read.
        check: See `TFRecordShards`.

    Raises:
        DataError: A file is absent, incomplete or of a form that is not read.
    """
    if form == "array_record" and isinstance(storage, LocalStorage):
        return ArrayRecordShards(paths, lengths_of(paths), keys)
    scan = riegeli.scan if form == "array_record" else tfrecord.scan
    rows = tuple(positions(name, form, paths, scan, storage))
    lengths = tuple(map(len, rows))
    if form == "array_record":
        return riegeli.RiegeliShards(paths, lengths, rows, storage, keys)
    return tfrecord.TFRecordShards(paths, lengths, rows, storage, keys, check)


def with_own_keys(shards: ExampleShards, choices: Sequence[Keys]) -> ExampleShards:
    """Return the shards with the first keys that their first record has.

    Raises:
        DataError: It has none of them, or cannot be read.
    """
    first = next(shard for shard, length in enumerate(shards.lengths) if length)
    problems = []
    for keys in choices:
        chosen = dataclasses.replace(shards, keys=keys)
        try:
            chosen.open(first).read(0)
            return chosen
        except (OSError, RuntimeError, ValueError) as error:
            problems.append(one_line(error))
    raise DataError(
        f"{shards.paths[first]}, record 0: {'; '.join(dict.fromkeys(problems))}; restore the file "
        "or write the records again"
    )
