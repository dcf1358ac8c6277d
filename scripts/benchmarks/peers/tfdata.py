"""tf.data as fast as we can make it do the same work: uint8 out, nothing done twice.

Decodes only the sampled box, with the fast integer transform, resizes bilinearly, flips; shuffles
among 2,000 encoded examples; a private pool of as many threads as cores; order not kept.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.peers.tensorflow import counted, need
from benchmarks.runner import Figures, timed
from benchmarks.workload import Workload, tfrecords


def prepare(work: Workload) -> Callable[[], Figures]:
    """As of `benchmarks.runner`."""
    files = tfrecords(work)
    tf = need()
    options = tf.data.Options()
    options.threading.private_threadpool_size = work.threads
    options.threading.max_intra_op_parallelism = 1
    options.deterministic = False
    dataset = (
        tf.data.TFRecordDataset([str(file) for file in files], num_parallel_reads=work.threads)
        .repeat()
        .shuffle(2_000, seed=work.seed)
        .map(lambda record: example(tf, record, work.image_size or 224), tf.data.AUTOTUNE)
        .batch(work.batch, drop_remainder=True)
        .prefetch(2)
        .with_options(options)
    )
    return timed(counted(dataset, "label"), work)


def about(work: Workload) -> str:
    """Its settings."""
    return "decode of the box, INTEGER_FAST, bilinear, uint8, one thread a core, shuffle 2,000"


def example(tf: Any, record: Any, side: int) -> dict[str, Any]:
    """A serialised example as uint8 (side, side, 3) and its label."""
    parsed = tf.io.parse_single_example(
        record,
        {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
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
