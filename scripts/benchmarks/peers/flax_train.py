"""The training of Flax's ImageNet example on class folders, with the example's own code."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.competitor import Absent, Figures
from benchmarks.epochs import EpochWork, memory_gib, timed_epochs
from benchmarks.peers.flax_input import flax_example

_SHUFFLED, _PREFETCHED = 16 * 128, 10  # of the example's configuration


def flax(work: EpochWork) -> tuple[Callable[[], Figures], str]:
    """The example's input, network, train and evaluation steps, and its loop.

    The network has the recipe's width, images and centre crops its sizes, and the steps its
    learning rates. Training crops (8 to 100 % of the area), the loss without label smoothing and
    the weight decay of 1e-4 are the example's; it evaluates complete batches only. Its input reads
    TFDS datasets; here it gets the files of the folders.
    """
    start = time.perf_counter()
    train, models = flax_example(work.flax_examples, "train", "models")
    import jax
    from flax.training import common_utils

    train.NUM_CLASSES = work.classes
    base = getattr(models, work.network.replace("resnet", "ResNet"), None)
    if base is None:
        raise Absent(f"the example has no {work.network}")
    # The example's padding is for 224 pixels, where it gives a share of 0.875.
    padded = round(work.image_size / work.evaluation_crop)
    train.input_pipeline.CROP_PADDING = padded - work.image_size
    model = base(num_classes=work.classes, num_filters=work.width)
    rates = jax.numpy.asarray(work.learning_rates)
    config = SimpleNamespace(half_precision=False, momentum=work.momentum)
    state = train.create_train_state(
        jax.random.key(work.seed), config, model, work.image_size, lambda step: rates[step]
    )
    train_step = jax.pmap(
        lambda state, batch: train.train_step(state, batch, lambda step: rates[step]),
        in_axes=(None, 0),
        out_axes=(None, 0),
        axis_name="batch",
    )
    evaluation_step = jax.pmap(train.eval_step, in_axes=(None, 0), axis_name="batch")
    folders = ClassFolders(work.folder)
    feeds = {
        training: train.create_input_iter(
            folders,
            work.batch,
            work.image_size,
            train.tf.float32,
            train=training,
            cache=False,
            shuffle_buffer_size=_SHUFFLED if training else None,
            prefetch=_PREFETCHED,
        )
        for training in (True, False)
    }
    evaluations = folders.info.splits["validation"].num_examples // work.batch

    def epochs() -> Iterator[tuple[int, float]]:
        nonlocal state
        images_before = 0
        for step, batch in enumerate(
            itertools.islice(feeds[True], len(work.learning_rates)), start=1
        ):
            state, _ = train_step(state, batch)
            if step in work.evaluate_after:
                found = [evaluation_step(state, next(feeds[False])) for _ in range(evaluations)]
                top1 = common_utils.get_metrics(found)["accuracy"].mean()
                yield step * work.batch - images_before, float(top1)
                images_before = step * work.batch

    about = "Flax's ImageNet example, its code: its crops, no label smoothing, weight decay 1e-4"
    return timed_epochs(epochs(), memory_gib, start), about


class ClassFolders:
    """What the example uses of a TFDS builder, on train/ and val/ with class folders.

    TFDS writes examples in random order; files are in one too, else its buffer of 2,000 examples
    would mix few classes.
    """

    def __init__(self, folder: str) -> None:
        splits = {"train": "train", "validation": "val"}
        self._files = {name: sorted(Path(folder, at).glob("*/*")) for name, at in splits.items()}
        self._classes = sorted({file.parent.name for file in self._files["train"]})
        counts = {name: SimpleNamespace(num_examples=len(f)) for name, f in self._files.items()}
        self.info = SimpleNamespace(splits=counts)

    def examples(self, split: str) -> list[tuple[str, int]]:
        """Return files and labels of a whole split, such as `train[0:9469]`, in random order."""
        files = self._files[split.partition("[")[0]]
        files = [files[i] for i in np.random.default_rng(0).permutation(len(files))]
        return [(str(file), self._classes.index(file.parent.name)) for file in files]

    def as_dataset(self, split: str, decoders: object) -> Any:
        """Return the encoded images and the labels of a whole split."""
        import tensorflow as tf

        files, labels = zip(*self.examples(split), strict=True)
        pairs = tf.data.Dataset.from_tensor_slices((list(files), list(labels)))
        return pairs.map(
            lambda file, label: {"image": tf.io.read_file(file), "label": label},
            num_parallel_calls=tf.data.AUTOTUNE,
        )
