"""The shards of an ArrayRecord set once more as TFRecord, the same records in the same order."""

from collections.abc import Callable

from benchmarks.peers.tensorflow import need
from benchmarks.runner import Figures
from benchmarks.workload import Workload, tfds_directory


def prepare(work: Workload) -> Callable[[], Figures]:
    """As of `benchmarks.runner`: ready when all are written."""
    tf = need()
    from array_record.python.array_record_module import ArrayRecordReader

    for path in sorted(tfds_directory(work).glob("*.array_record-*")):
        reader = ArrayRecordReader(str(path))
        copy = path.with_name(path.name.replace(".array_record-", ".tfrecord-"))
        with tf.io.TFRecordWriter(str(copy)) as writer:
            for record in reader.read_all():
                writer.write(record)
        reader.close()
    return dict
