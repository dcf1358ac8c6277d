"""Small sets that look like ImageNet, with all of its odd files."""

import functools
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from largebatch.data import imagenet

CLASSES = ("n01440764", "n01739381", "n02105855")
PNG = "n02105855_2933.JPEG"  # TFDS repairs these two, by name
CMYK = "n01739381_1309.JPEG"
OTHER_CMYK = "n01739381_7.JPEG"
ODD = (PNG, CMYK, OTHER_CMYK, "n01440764_3.JPEG", "n01440764_4.JPEG", "n01440764_5.JPEG")


def pixels(seed: int, height: int = 40, width: int = 56) -> np.ndarray:
    """A smooth coloured image, uint8 (height, width, 3)."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def photo(seed: int, height: int = 40, width: int = 56) -> bytes:
    return encoded(Image.fromarray(pixels(seed, height, width)), quality=92)


@functools.cache
def train(per_class: int = 8) -> dict[str, bytes]:
    """Files of the training split, by name; the first of each class's are odd."""
    files = {
        f"{name}_{10 + i}.JPEG": photo(100 * c + i, 30 + 3 * i, 70 - 5 * i)
        for c, name in enumerate(CLASSES)
        for i in range(per_class)
    }
    rotated = Image.Exif()
    rotated[0x0112] = 6
    sixteen = (pixels(3)[..., 0].astype(np.uint16) << 8) + 255
    image = Image.fromarray(pixels(4))
    odd = (
        encoded(image, "PNG"),
        encoded(image.convert("CMYK"), quality=95),
        encoded(image.convert("CMYK"), quality=90),
        encoded(image.convert("L")),
        encoded(image, exif=rotated),
        encoded(Image.fromarray(sixteen), "PNG"),
    )
    return files | dict(zip(ODD, odd, strict=True))


@functools.cache
def validation(count: int = 10) -> dict[str, bytes]:
    """Files of the validation split, by name."""
    return {f"ILSVRC2012_val_{i:08d}.JPEG": photo(1000 + i) for i in range(1, count + 1)}


def label(name: str) -> int:
    """The label of a training file, computed in another way than in the package."""
    return sorted(imagenet.classes()).index(name.partition("_")[0])


def tar(files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], **kind: bytes) -> bytes:
    """A tar; `kind` gives members of that name (without .JPEG) another type."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as out:
        for name, data in files.items() if isinstance(files, Mapping) else files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_300_000_000.5  # a float needs a header of its own
            info.type = kind.get(Path(name).stem, tarfile.REGTYPE)
            if info.type == tarfile.REGTYPE:
                out.addfile(info, io.BytesIO(data))
            else:
                info.size, info.linkname = 0, "/etc/passwd"
                out.addfile(info)
    return stream.getvalue()


def write_tars(
    folder: Path,
    train_files: Mapping[str, bytes] | None = None,
    validation_files: Mapping[str, bytes] | None = None,
) -> Path:
    """Writes the two tars with these files, or with `train()` and `validation()`."""
    train_files = train() if train_files is None else train_files
    by_class: dict[str, dict[str, bytes]] = {}
    for name, data in train_files.items():
        by_class.setdefault(name.partition("_")[0], {})[name] = data
    folder.mkdir(parents=True, exist_ok=True)
    outer = {f"{name}.tar": tar(files) for name, files in by_class.items()}
    (folder / imagenet.TARS["train"]).write_bytes(tar(outer))
    (folder / imagenet.TARS["validation"]).write_bytes(
        tar(validation() if validation_files is None else validation_files)
    )
    return folder


def write_folders(folder: Path, *, flat: bool = True) -> Path:
    """Writes the same as extracted files."""
    for name, data in train().items():
        path = folder / "train" / name.partition("_")[0] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for name, data in validation().items():
        own = imagenet.classes()[imagenet.image_label(name, "")]
        path = folder / "val" / ("" if flat else own) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
