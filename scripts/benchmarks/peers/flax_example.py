"""The input pipeline of Flax's ImageNet example: its own code, called.

Its settings, which are kept: decode_and_crop_jpeg of the sampled box, bicubic resize, random flip,
normalisation on the host, float32 out, a private pool of 48 threads, shuffling among 2,000 encoded
examples, automatic parallelism, 10 batches ahead. TFDS reads the set for it.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from benchmarks.peers.tensorflow import counted, need
from benchmarks.runner import Figures, timed
from benchmarks.workload import Absent, Workload, tfrecords


def prepare(work: Workload) -> Callable[[], Figures]:
    """As of `benchmarks.runner`."""
    directory = tfrecords(work)[0].parent
    need()
    pipeline = input_pipeline(work.flax_examples)
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    # Asked for at the opening, an alternative format is refused (TFDS 4.9.10).
    builder.info.set_file_format("tfrecord", override=True, override_if_initialized=True)
    dataset = pipeline.create_split(
        builder, work.batch, train=True, image_size=work.image_size or pipeline.IMAGE_SIZE
    )
    return timed(counted(dataset, "label"), work)


def about() -> str:
    """Its settings."""
    return "decode of the box, bicubic, float32 normalised on the host, 48 threads, shuffle 2,000"


def input_pipeline(examples: str) -> ModuleType:
    """The example's module `imagenet/input_pipeline.py`.

    Args:
        examples: A checkout of google/flax, its folder `examples`, or that of the example.

    Raises:
        Absent: It is not there.
    """
    if not examples:
        raise Absent("its code is in no package: give a checkout of google/flax, --flax_examples")
    for inside in ("examples/imagenet", "imagenet", "."):
        path = Path(examples, inside, "input_pipeline.py")
        if path.is_file():
            spec = importlib.util.spec_from_file_location("flax_input_pipeline", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise Absent(f"--flax_examples {examples} holds no imagenet/input_pipeline.py")
