"""The input pipeline of Flax's ImageNet example: its own code, called.

Its settings, which are kept: decode_and_crop_jpeg of the sampled box, bicubic resize, random flip,
normalisation on the host, float32 out, a private pool of 48 threads, shuffling among 2,000 encoded
examples, automatic parallelism, 10 batches ahead. TFDS reads the set for it.
"""

from collections.abc import Callable

from benchmarks.peers.flax_checkout import example
from benchmarks.peers.tensorflow import counted, need
from benchmarks.runner import Figures, timed
from benchmarks.workload import Workload, tfrecords


def prepare(work: Workload) -> Callable[[], Figures]:
    """As of `benchmarks.runner`."""
    directory = tfrecords(work)[0].parent
    need()
    pipeline = example(work.flax_examples, "input_pipeline")
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    # Asked for at the opening, an alternative format is refused (TFDS 4.9.10).
    builder.info.set_file_format("tfrecord", override=True, override_if_initialized=True)
    dataset = pipeline.create_split(
        builder, work.batch, train=True, image_size=work.image_size or pipeline.IMAGE_SIZE
    )
    return timed(counted(dataset, "label"), work)


def about(work: Workload) -> str:
    """Its settings."""
    return "decode of the box, bicubic, float32 normalised on the host, 48 threads, shuffle 2,000"
