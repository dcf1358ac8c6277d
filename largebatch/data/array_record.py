"""`arrayrecord:PATH` and `tfrecord:PATH`: directories of shards of `tf.train.Example`s."""

from largebatch.data import shard_files
from largebatch.data.example_shards import open_shards, with_own_keys
from largebatch.data.examples import Keys
from largebatch.data.sharded import ShardedRecords
from largebatch.data.sources import SourceOptions
from largebatch.data.storage import absolute, storage_of
from largebatch.data.tfds import is_prepared, open_prepared
from largebatch.errors import DataError

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
    storage = None
    if path and not shard_files.is_pattern(directory):
        storage = storage_of(directory, options)
        if is_prepared(storage):
            return open_prepared(spec, split, storage, options)
    found = shard_files.of_split(spec, split, form, options, storage)
    name = "array_record" if form is _ARRAY_RECORD else "tfrecord"
    shards = open_shards(spec, name, found.paths, found.storage, _KEYS[0], options.sequential)
    if not sum(shards.lengths):
        raise DataError(
            f"{found.directory}: the {len(found.names)} files of {found.own} hold no record; "
            "write them again"
        )
    return ShardedRecords(
        spec,
        split,
        with_own_keys(shards, _KEYS),
        shard_files.class_names(found.storage, options.classes),
        f"{found.directory}, split {found.own}",
    )
