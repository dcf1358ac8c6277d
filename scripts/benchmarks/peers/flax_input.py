"""The input pipeline of Flax's ImageNet example, and the TFDS datasets that peers read."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.competitor import Absent, Figures
from benchmarks.feeding import Workload, timed
from largebatch.errors import DataError, one_line

SHUFFLED = 2_000  # encoded examples


def flax(work: Workload) -> tuple[Callable[[], Figures], str]:
    """The input pipeline of Flax's ImageNet example: its own code, called; TFDS reads the set.

    Its settings, which are kept: decode_and_crop_jpeg of the sampled box, bicubic resize, random
    flip, normalisation on the host, float32 out, a private pool of 48 threads, shuffling among
    2,000 encoded examples, automatic parallelism, 10 batches ahead.
    """
    directory = tfrecords(work)[0].parent
    require_tensorflow()
    (pipeline,) = flax_example(work.flax_examples, "input_pipeline")
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    # Asked for at the opening, another format is refused (TFDS 4.9.10).
    builder.info.set_file_format("tfrecord", override=True, override_if_initialized=True)
    size = work.image_size or pipeline.IMAGE_SIZE
    dataset = pipeline.create_split(builder, work.batch, train=True, image_size=size)
    about = "decode of the box, bicubic, float32 normalised on the host, 48 threads, shuffle 2,000"
    return timed(_counted(dataset), work), about


def flax_example(checkout: str, *names: str) -> list[Any]:
    """Import modules of the example, which are in no package.

    Args:
        checkout: A checkout of google/flax, its folder `examples`, or that of the example.
        names: Names of the modules.

    Raises:
        Absent: They are not there, or need packages that are not installed.
    """
    if not checkout:
        raise Absent("its code is in no package; give a checkout of google/flax, --flax_examples")
    for inside in ("examples/imagenet", "imagenet", "."):
        folder = Path(checkout, inside)
        if all((folder / f"{name}.py").is_file() for name in names):
            sys.path.insert(0, str(folder))
            sys.modules.pop("train", None)
            try:
                return [importlib.import_module(name) for name in names]
            except ImportError as error:
                raise Absent(f"the example cannot be imported ({error})") from error
    raise Absent(f"--flax_examples {checkout} holds no imagenet/{names[0]}.py")


def _counted(dataset: Any) -> Iterator[int]:
    """The number of images of each batch of a `tf.data.Dataset`."""
    for batch in dataset.as_numpy_iterator():
        yield len(batch["label"])


def require_tensorflow() -> ModuleType:
    """TensorFlow, without devices.

    Raises:
        Absent: It is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise Absent(f"TensorFlow is not installed ({error})") from error
    tf.config.set_visible_devices([], "GPU")
    return tf


def tfds_directory(work: Workload) -> Path:
    """Folder of the newest version of the `tfds:NAME[:CONFIG]` set.

    Raises:
        Absent: The source is no TFDS set.
        DataError: There is no such set under `data_dir`.
    """
    import tensorflow_datasets as tfds

    scheme, _, name = work.data.partition(":")
    if scheme != "tfds":
        raise Absent(f"reads TFDS sets only, not {work.data!r}")
    try:
        builder = tfds.builder(name.replace(":", "/"), data_dir=work.data_dir or None)
    except tfds.core.DatasetNotFoundError as error:
        raise DataError(f"--data {work.data}: {one_line(error)}; see --data_dir") from error
    return Path(builder.data_path)


def tfrecords(work: Workload) -> list[Path]:
    """The TFRecord shards of the training split, in order.

    Raises:
        Absent: There are none: tf.data cannot read ArrayRecord.
    """
    directory = tfds_directory(work)
    found = sorted(directory.glob("*-train.tfrecord-*"))
    if not found:
        raise Absent(
            f"{directory} has no TFRecord shards, and tf.data reads no ArrayRecord; "
            "let TFDS write the dataset"
        )
    return found
