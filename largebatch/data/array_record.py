"""`arrayrecord:PATH` and `tfrecord:PATH`: directories of shards of `tf.train.Example`s."""

from collections.abc import Sequence

from largebatch.data import shard_files, tfrecord
from largebatch.data.examples import ArrayRecordShards, Keys, lengths_of, open_shard, parse
from largebatch.data.sharded import ShardedRecords, Shards
from largebatch.data.sources import SourceOptions
from largebatch.data.storage import absolute
from largebatch.data.tfds import COPY_IT, is_prepared, open_prepared
from largebatch.data.tfrecord import TFRecordShards
from largebatch.errors import DataError
from largebatch.object_store import url_of

_KEYS = (Keys("image", "label"), Keys("image/encoded", "image/class/label"))
_ARRAY_RECORD = shard_files.Form(
    "arrayrecord", "ArrayRecord", "array_?record", ".array_record-00000-of-00004"
)
# The scripts of TensorFlow's models write `train-00000-of-01024`.
_TF_RECORD = shard_files.Form(
    "tfrecord", "TFRecord", r"tf_?record|-\d{5}-of-\d{5}$", ".tfrecord-00000-of-00004"
)


def open_array_record(spec: str, split: str, options: SourceOptions) -> ShardedRecords:
    """Open a split of a directory of ArrayRecord files.

    A directory with TFDS's metadata is opened as by `tfds:`. Otherwise:

    - The files of a split are found by their names; see `shard_files.of_split`. A file has
      `array_record` or `arrayrecord` in its name.
    - A record is a `tf.train.Example` with `image` and `label`, or with `image/encoded` and
      `image/class/label`; the first record decides which.
    - Line i of `labels.txt` or `label.labels.txt` names label i, from 0; labels that count from 1
      need a line for 0. Without such a file data.classes is needed: to read a million labels would
      take a minute at every start.

    Args:
        spec: `arrayrecord:PATH`.
        split: `train` or `validation`.
        options: `classes` is the number of classes where no file names them.

    Returns:
        The split.

    Raises:
        DataError: The directory is absent, incomplete or not of that form.
    """
    return _open(spec, split, options, _ARRAY_RECORD)


def open_tf_record(spec: str, split: str, options: SourceOptions) -> ShardedRecords:
    """Open a split of a directory of TFRecord files, as `open_array_record` does.

    A file has `tfrecord` or `tf_record` in its name, or ends in `-00000-of-01024`.

    Args:
        spec: `tfrecord:PATH`.
        split: `train` or `validation`.
        options: `classes` is the number of classes where no file names them.

    Returns:
        The split.

    Raises:
        DataError: The directory is absent, incomplete or not of that form.
    """
    return _open(spec, split, options, _TF_RECORD)


def _open(spec: str, split: str, options: SourceOptions, form: shard_files.Form) -> ShardedRecords:
    path = spec.partition(":")[2]
    directory = absolute(path)
    if path and is_prepared(directory):
        return open_prepared(spec, split, directory, options)
    if url_of(path) and form is _ARRAY_RECORD:
        raise DataError(f"data.source: {spec}: {COPY_IT.format(path)}")
    found = shard_files.of_split(spec, split, form, options)
    shards: Shards
    if form is _ARRAY_RECORD:
        lengths = lengths_of(found.paths)
        first = _first(found, lengths)
        record = open_shard(found.paths[first]).read([0])[0]
        shards = ArrayRecordShards(found.paths, lengths, _keys(found.paths[first], record))
    else:
        rows = tfrecord.positions_of(spec, found.paths, found.storage)
        lengths = tuple(map(len, rows))
        first = _first(found, lengths)
        record = tfrecord.record(found.paths[first], rows[first][0], found.storage)
        keys = _keys(found.paths[first], record)
        shards = TFRecordShards(found.paths, lengths, keys, rows, found.storage, options.sequential)
    return ShardedRecords(
        spec,
        split,
        shards,
        shard_files.class_names(found.storage, options.classes),
        f"{found.directory}, split {found.own}",
    )


def _first(found: shard_files.Found, lengths: Sequence[int]) -> int:
    """Return the number of the first file that holds a record."""
    if not sum(lengths):
        raise DataError(
            f"{found.directory}: the {len(found.names)} files of {found.own} hold no record; "
            "write them again"
        )
    return next(shard for shard, length in enumerate(lengths) if length)


def _keys(path: str, record: bytes) -> Keys:
    """Return the keys of image and label, from a file's first record."""
    problems = []
    for keys in _KEYS:
        try:
            parse(record, keys)
            return keys
        except ValueError as error:
            problems.append(str(error))
    raise DataError(f"{path}, record 0: {'; '.join(problems)}; write the records again")
