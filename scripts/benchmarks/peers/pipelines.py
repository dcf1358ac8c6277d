"""Other input pipelines on the same records."""

import importlib.util
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.competitor import Absent, Figures
from benchmarks.feeding import Workload, timed
from largebatch.data import Source
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
    pipeline = example(work.flax_examples)
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    # Asked for at the opening, another format is refused (TFDS 4.9.10).
    builder.info.set_file_format("tfrecord", override=True, override_if_initialized=True)
    size = work.image_size or pipeline.IMAGE_SIZE
    dataset = pipeline.create_split(builder, work.batch, train=True, image_size=size)
    about = "decode of the box, bicubic, float32 normalised on the host, 48 threads, shuffle 2,000"
    return timed(_counted(dataset), work), about


def example(checkout: str) -> ModuleType:
    """The input pipeline of Flax's ImageNet example, which is in no package.

    Args:
        checkout: A checkout of google/flax, its folder `examples`, or that of the example.

    Raises:
        Absent: It is not there.
    """
    if not checkout:
        raise Absent("its code is in no package; give a checkout of google/flax, --flax_examples")
    for inside in ("examples/imagenet", "imagenet", "."):
        path = Path(checkout, inside, "input_pipeline.py")
        if path.is_file():
            spec = importlib.util.spec_from_file_location("flax_input_pipeline", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise Absent(f"--flax_examples {checkout} holds no imagenet/input_pipeline.py")


def tfdata(work: Workload) -> tuple[Callable[[], Figures], str]:
    """tf.data as fast as we can make it do the same work: uint8 out, nothing done twice.

    Decodes only the sampled box, with the fast integer transform, resizes bilinearly, flips;
    shuffles among 2,000 encoded examples; a private pool of as many threads as cores; order not
    kept.
    """
    files, tf = tfrecords(work), require_tensorflow()
    options = tf.data.Options()
    options.threading.private_threadpool_size = work.threads
    options.threading.max_intra_op_parallelism = 1
    options.deterministic = False
    dataset = (
        tf.data.TFRecordDataset([str(file) for file in files], num_parallel_reads=work.threads)
        .repeat()
        .shuffle(SHUFFLED, seed=work.seed)
        .map(lambda record: _cropped(tf, record, work.image_size or 224), tf.data.AUTOTUNE)
        .batch(work.batch, drop_remainder=True)
        .prefetch(2)
        .with_options(options)
    )
    about = "decode of the box, INTEGER_FAST, bilinear, uint8, one thread a core, shuffle 2,000"
    return timed(_counted(dataset), work), about


def _cropped(tf: Any, record: Any, side: int) -> dict[str, Any]:
    """A serialised example as uint8 (side, side, 3) and its label."""
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.io.parse_single_example(record, features)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(parsed["image"]),
        tf.zeros([1, 0, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], 0)
    image = tf.io.decode_and_crop_jpeg(
        parsed["image"], window, channels=3, dct_method="INTEGER_FAST"
    )
    image = tf.image.resize(image, (side, side), tf.image.ResizeMethod.BILINEAR)
    image = tf.cast(tf.round(image), tf.uint8)
    return {"image": tf.image.random_flip_left_right(image), "label": parsed["label"]}


def _counted(dataset: Any) -> Iterator[int]:
    """The number of images of each batch of a `tf.data.Dataset`."""
    for batch in dataset.as_numpy_iterator():
        yield len(batch["label"])


def copy_as_tfrecords(work: Workload) -> tuple[Callable[[], Figures], str]:
    """The shards of an ArrayRecord set once more as TFRecord; ready when all are written."""
    tf = require_tensorflow()
    from array_record.python.array_record_module import ArrayRecordReader

    for path in sorted(tfds_directory(work).glob("*.array_record-*")):
        reader = ArrayRecordReader(str(path))
        copy = path.with_name(path.name.replace(".array_record-", ".tfrecord-"))
        with tf.io.TFRecordWriter(str(copy)) as writer:
            for record in reader.read_all():
                writer.write(record)
        reader.close()
    return dict, ""


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
            "make a set that has both with --make_set"
        )
    return found


def torchvision(work: Workload) -> tuple[Callable[[], Figures], str]:
    """Pillow as torchvision uses it: complete decode, random crop, antialiased bilinear, flip.

    In torch's DataLoader with a worker process for each core beyond one, uint8 out. The encoded
    bytes come through our own reader.
    """
    read = work.photographs()
    try:
        import torch
        from torchvision import transforms
    except Exception as error:  # its binary part may also fail to load or not match torch's
        raise Absent(f"torchvision: {type(error).__name__}: {error}") from error
    torch.set_num_threads(1)
    crop, flip = (
        transforms.RandomResizedCrop(work.image_size or 224),
        transforms.RandomHorizontalFlip(),
    )
    photographs = Photographs(read, transforms.Compose([crop, flip, transforms.PILToTensor()]))
    # Long enough never to end: torch would restart the workers' queues at each epoch's end.
    sampler = torch.utils.data.RandomSampler(
        range(len(read)), replacement=True, num_samples=1 << 30
    )
    loader = torch.utils.data.DataLoader(
        photographs,
        batch_size=work.batch,
        sampler=sampler,
        num_workers=work.threads if work.threads > 1 else 0,
    )
    about = "torchvision.transforms on Pillow, in torch's DataLoader"
    return timed((len(labels) for _, labels in loader), work), about


class Photographs:
    """A map-style dataset of torch: the transformed image and the label of each example."""

    def __init__(self, read: Source, transform: Callable[[Image.Image], Any]) -> None:
        self._read, self._transform = read, transform

    def __len__(self) -> int:
        return len(self._read)

    def __getitem__(self, example: int) -> tuple[Any, int]:
        """The transformed image, and its label."""
        (content,), labels = self._read.read(np.array([example], np.int64))
        return self._transform(Image.open(io.BytesIO(content)).convert("RGB")), int(labels[0])
