"""A set that TFDS wrote with TensorFlow is read as tf.data reads it; `.ci/tensorflow` runs this."""

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from largebatch.data.source import SourceOptions
from largebatch.data.tfds import open_tfds
from tests.data import stores

CLASSES = ("cat", "dog", "eel")
SPLITS = {"train": (200, 0), "validation": (40, 1000)}
"""Number of images of each split, and the index of the first."""
ROOT = Path(__file__).parents[2]


def write(data_dir):
    """Prepare the set, and write what tf.data reads from it, in the order of the files."""
    import tensorflow_datasets as tfds

    splits = {
        name: stores.labelled_images(count, len(CLASSES), first)
        for name, (count, first) in SPLITS.items()
    }
    builder = stores.prepare(data_dir, splits, CLASSES, shards=4, file_format="tfrecord")
    read = {}
    for split in splits:
        in_order = tfds.ReadConfig(interleave_cycle_length=1)
        dataset = builder.as_dataset(
            split, decoders={"image": tfds.decode.SkipDecoding()}, read_config=in_order
        )
        read[split] = [
            (bytes(example["image"]), int(example["label"])) for example in tfds.as_numpy(dataset)
        ]
    (Path(data_dir) / "read.pickle").write_bytes(pickle.dumps(read))


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
def test_reads_what_tf_data_reads(tmp_path):
    # A process of its own: TensorFlow never shares one with a training.
    subprocess.run([sys.executable, "-m", __name__, tmp_path], cwd=ROOT, env=os.environ, check=True)
    read = pickle.loads((tmp_path / "read.pickle").read_bytes())
    directory = tmp_path / "pets" / "1.0.0"
    assert len(list(directory.glob("pets-train.tfrecord-0000?-of-00004"))) == 4
    for split, (count, _) in SPLITS.items():
        assert len(read[split]) == count
        records = open_tfds("tfds:pets", split, SourceOptions(data_dir=str(tmp_path)))
        assert records.classes == CLASSES
        stores.check_records(records, read[split])


if __name__ == "__main__":
    write(sys.argv[1])
