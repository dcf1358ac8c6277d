"""The same tars prepared by TFDS itself with TensorFlow, and by this package without."""

import importlib.util
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from largebatch.data.prepare import records
from largebatch.data.prepare.run import Options, prepare
from tests.data.prepare import fakes

needs_tensorflow = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("tensorflow", "importlib_resources")),
    reason="TFDS prepares only where tensorflow and importlib_resources are installed",
)
_PREPARE = """
import sys
import tensorflow_datasets as tfds
builder = tfds.builder("imagenet2012", data_dir=sys.argv[2], file_format="array_record")
config = tfds.download.DownloadConfig(manual_dir=sys.argv[1])
builder.download_and_prepare(download_config=config)
"""


def rows(folder, split):
    from array_record.python.array_record_module import ArrayRecordReader

    (path,) = folder.glob(f"imagenet2012-{split}.array_record-*")
    return path.name, [records.parse(one) for one in ArrayRecordReader(str(path)).read_all()]


@needs_tensorflow
@pytest.mark.slow
def test_the_set_is_the_one_that_tfds_prepares(tmp_path):
    source = fakes.write_tars(tmp_path / "tars")
    command = [sys.executable, "-c", _PREPARE, str(source), str(tmp_path / "theirs")]
    subprocess.run(command, check=True, capture_output=True)
    theirs = tmp_path / "theirs" / "imagenet2012" / "5.1.0"
    ours = prepare(Options(out=tmp_path / "ours", tars=source, partial=True), say=lambda line: None)
    for name in ("features.json", "label.labels.txt"):
        assert (ours / name).read_text() == (theirs / name).read_text()
    infos = [json.loads((one / "dataset_info.json").read_text()) for one in (ours, theirs)]
    for info in infos:
        for split in info["splits"]:
            del split["numBytes"]  # those of the repaired images differ
    assert infos[0] == infos[1]
    for split in ("train", "validation"):
        (our_name, our_rows), (their_name, their_rows) = rows(ours, split), rows(theirs, split)
        assert our_name == their_name
        assert [row[:2] for row in our_rows] == [row[:2] for row in their_rows]
        for (name, _, our_image), (_, _, their_image) in zip(our_rows, their_rows, strict=True):
            if name != fakes.CMYK:  # the repaired PNG is the same, too
                assert our_image == their_image, name
            else:
                # TensorFlow decodes it with a coarser transform.
                one, other = (
                    np.asarray(Image.open(io.BytesIO(image))).astype(int)
                    for image in (our_image, their_image)
                )
                assert np.abs(one - other).max() <= 10
                assert np.abs(one - other).mean() <= 2
