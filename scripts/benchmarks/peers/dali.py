"""NVIDIA DALI's input pipeline on the CPU, on the same records."""

import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.competitor import Absent, Figures
from benchmarks.feeding import Workload, timed
from benchmarks.peers.flax_input import SHUFFLED, tfrecords


def dali(work: Workload) -> tuple[Callable[[], Figures], str]:
    """DALI's TFRecord reader, decoder of the box, resize and flip; uint8 out.

    The transform of the JPEG is the exact one and the resize bilinear without antialiasing, as
    ours; shuffles among 2,000 encoded examples; as many threads as cores.
    """
    files = tfrecords(work)
    try:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali import tfrecord as features
    except Exception as error:  # its binary part may also fail to load
        raise Absent(f"DALI: {type(error).__name__}: {error}") from error
    side = work.image_size or 224

    @pipeline_def(batch_size=work.batch, num_threads=work.threads, device_id=None, seed=work.seed)
    def pipeline(index: str) -> tuple[Any, Any]:
        read = fn.readers.tfrecord(
            path=[str(file) for file in files],
            index_path=write_index(files, Path(index)),
            features={
                "image": features.FixedLenFeature((), features.string, ""),
                "label": features.FixedLenFeature([1], features.int64, -1),
            },
            random_shuffle=True,
            initial_fill=SHUFFLED,
        )
        image = fn.decoders.image_random_crop(
            read["image"],
            device="cpu",
            output_type=types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            num_attempts=10,
            use_fast_idct=False,
        )
        image = fn.resize(
            image, resize_x=side, resize_y=side, interp_type=types.INTERP_LINEAR, antialias=False
        )
        return fn.flip(image, horizontal=fn.random.coin_flip()), read["label"]

    with tempfile.TemporaryDirectory() as index:
        built = pipeline(index)
        built.build()

    def batches() -> Iterator[int]:
        while True:
            images, _ = built.run()
            yield len(images.as_array())

    about = "nvidia.dali on the CPU: decode of the box, exact transform, bilinear, uint8"
    return timed(batches(), work), about


def write_index(files: list[Path], directory: Path) -> list[str]:
    """Write the indices that DALI's TFRecord reader needs: a line `offset bytes` for each record.

    Args:
        files: TFRecord files.
        directory: Where to write.

    Returns:
        The path of the index of each file.
    """
    written = []
    for file in files:
        path, at = directory / f"{file.name}.idx", 0
        with file.open("rb") as stream, path.open("w") as index:
            while length := stream.read(8):
                size = struct.unpack("<Q", length)[0] + 16  # with its length and two checksums
                index.write(f"{at} {size}\n")
                at = stream.seek(at + size)
        written.append(str(path))
    return written
