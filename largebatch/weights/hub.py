"""What a folder of Hugging Face's hub says beside its tensors, in timm's words or transformers'."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from largebatch.errors import did_you_mean, one_line
from largebatch.files import read_json
from largebatch.models import DEPTHS
from largebatch.weights.weights import WeightsError

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
TENSORS = "model.safetensors"
_SHAPES = {"num_classes", "in_chans", "layers", "drop_rate", "drop_path_rate", "global_pool"}
"""Arguments of timm's constructor that change nothing, or what the arrays show."""
BILINEAR = 2
"""Of Pillow's filters."""
_MOST_CHANNELS = 1024
_MOST_JSON = 16 * 2**20


def described(path: Path) -> dict[str, Any]:
    """Fields of `metadata.About`, as far as the folder says them, and ``origin``.

    Raises:
      WeightsError: a file is damaged, or describes a network that this program does not have.
    """
    config = _json(path / CONFIG)
    timms = "architecture" in config or "pretrained_cfg" in config
    return _timm(path, config) if timms else _transformers(path, config)


def _timm(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What timm's configuration says; its keys are those of ``pretrained_cfg``."""
    name = str(config.get("architecture", ""))
    if name not in DEPTHS:
        raise WeightsError(
            f"{path} is timm's {name!r}, which differs from the ResNets here; "
            f"{did_you_mean(name, DEPTHS)}"
        )
    arguments = _mapping(config, "model_args", path)
    if other := sorted(set(arguments) - _SHAPES):
        raise WeightsError(
            f"{path}/{CONFIG} builds its network with {other[0]}={arguments[other[0]]!r}, which no "
            "network here has"
        )
    said = _mapping(config, "pretrained_cfg", path) or config
    seen: dict[str, Any] = {}
    if "mean" in said and "std" in said:
        seen = {key: _scaled(said[key], 255.0, path, key) for key in ("mean", "std")}
    size = said.get("test_input_size") or said.get("input_size")
    if size:
        seen["image_shape"] = _sides(size, path)
    crop = said.get("test_crop_pct") or said.get("crop_pct")
    if crop:
        seen["evaluation_crop"] = crop
    names = config.get("label_names") or said.get("label_names")
    if isinstance(names, list):
        seen["classes"] = names
    return seen | _resized(path, said.get("interpolation", "bilinear"))


def _transformers(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration of ``ResNetForImageClassification`` and its preprocessor say."""
    if config.get("model_type") != "resnet":
        raise WeightsError(
            f"{path}/config.json is of model_type {str(config.get('model_type'))!r}; only resnet "
            "is known"
        )
    other = {
        key: config[key]
        for key, only in (
            ("downsample_in_bottleneck", False),
            ("downsample_in_first_stage", False),
            ("hidden_act", "relu"),
        )
        if config.get(key, only) != only
    }
    if other:
        key, value = next(iter(other.items()))
        raise WeightsError(f"{path}/config.json has {key}={value!r}, which no network here has")
    labels = _mapping(config, "id2label", path)
    names = [labels.get(str(number)) for number in range(len(labels))]
    plain = all(name == f"LABEL_{number}" for number, name in enumerate(names))
    seen: dict[str, Any] = {"classes": () if plain else names, "origin": str(path)}
    return seen | _preprocessor(path, config.get("num_channels", 3))


def _preprocessor(path: Path, channels: Any) -> dict[str, Any]:
    """What transformers' image processor of a folder says."""
    file = path / PREPROCESSOR
    if not file.exists():
        return {}
    if type(channels) is not int or not 0 < channels <= _MOST_CHANNELS:
        raise WeightsError(f"{path}/{CONFIG} has num_channels={str(channels)[:80]}")
    said, seen = _json(file), {}
    factor = said.get("rescale_factor", 1 / 255) if said.get("do_rescale", True) else 1
    (scale,) = _scaled([factor], 1, file, "rescale_factor")
    if scale <= 0:
        raise WeightsError(f"{file}: rescale_factor is {scale}; it must be above 0")
    if not said.get("do_normalize", True):
        means, deviations = (0,) * channels, (1,) * channels
    else:
        means, deviations = said.get("image_mean"), said.get("image_std")
    if means is not None and deviations is not None:
        seen["mean"] = _scaled(means, 1 / scale, file, "image_mean")
        seen["std"] = _scaled(deviations, 1 / scale, file, "image_std")
    size = said.get("size")
    side = size.get("shortest_edge", size.get("height")) if isinstance(size, dict) else size
    if side:
        seen["image_shape"] = _sides((channels, side, side), file)
    if said.get("crop_pct"):
        seen["evaluation_crop"] = said["crop_pct"]
    number = said.get("resample", BILINEAR)
    filters = dict(enumerate(("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")))
    name = filters.get(number) if isinstance(number, int) else None
    return seen | _resized(path, name or str(number)[:80])


def _resized(path: Path, interpolation: str) -> dict[str, Any]:
    """Their libraries resize through Pillow, whose bilinear is our ``antialias``."""
    told = "" if interpolation == "bilinear" else f" (made for {interpolation} resizing)"
    return {"resampling": "antialias", "origin": f"{path}{told}"}


def _scaled(value: Any, factor: float, path: Path, name: str) -> tuple[float, ...]:
    try:
        found = tuple(float(x) * factor for x in value)
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{path}: {name} is {str(value)[:80]!r}, no list of numbers") from error
    if not all(map(math.isfinite, found)):
        raise WeightsError(f"{path}: {name} is {found}")
    return found


def _sides(size: Any, path: Path) -> tuple[int, int, int]:
    """Height, width and channels, from channels, height and width."""
    try:
        channels, height, width = (int(side) for side in size)
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{path}: its image size is {str(size)[:80]!r}") from error
    return height, width, channels


def _mapping(config: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    found = config.get(key) or {}
    if not isinstance(found, Mapping):
        raise WeightsError(f"{path}/{CONFIG} has {key}={str(found)[:80]!r}, no mapping")
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_JSON:
            raise WeightsError(f"{path} has {path.stat().st_size:,} bytes; it is no configuration")
        return read_json(path)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise WeightsError(f"{path} is no JSON object ({one_line(error)})") from error
