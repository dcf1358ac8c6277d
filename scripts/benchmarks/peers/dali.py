"""NVIDIA DALI's input pipeline on the CPU, on the same records."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.competitor import Absent, Figures
from benchmarks.feeding import Workload, timed
from benchmarks.peers.pipelines import SHUFFLED, tfrecords
from largebatch.data import tfrecord
from largebatch.data.storage import LocalStorage


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
        rows = tfrecord.scan(str(file), LocalStorage(str(file.parent)))
        path = directory / f"{file.name}.idx"
        # A row is the data's place; DALI counts the 12 bytes before and the 4 after it.
        path.write_text("".join(f"{offset - 12} {size + 16}\n" for offset, size in rows.tolist()))
        written.append(str(path))
    return written
