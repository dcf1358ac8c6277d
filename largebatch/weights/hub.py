"""The configuration files of a folder for Hugging Face's hub, in timm's or transformers' format."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.errors import did_you_mean, one_line
from largebatch.files import read_json
from largebatch.models import DEPTHS
from largebatch.weights.names import module_name
from largebatch.weights.weights import Weights, WeightsError

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
TENSORS = "model.safetensors"
# Arguments of timm's constructor that change nothing, or what the arrays show.
_SHAPES = {"num_classes", "in_chans", "layers", "drop_rate", "drop_path_rate", "global_pool"}
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's, by number."""
_MAX_CHANNELS = 1024


def described(path: Path) -> dict[str, Any]:
    """Return the fields of `Weights` that a folder states beside its arrays, and ``origin``.

    Raises:
      WeightsError: a file is damaged, or describes an unknown network.
    """
    config = _json(path / CONFIG)
    timms = "architecture" in config or "pretrained_cfg" in config
    try:
        return _from_timm(path, config) if timms else _from_transformers(path, config)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise WeightsError(
            f"{path}: {CONFIG} or {PREPROCESSOR} holds a value of the wrong type or range "
            f"({one_line(error)})"
        ) from error


def files(weights: Weights, form: str) -> dict[str, dict[str, Any]]:
    """Return the configuration files of a folder by name, for ``timm`` or ``huggingface``."""
    if form == "timm":
        return {CONFIG: _to_timm(weights)}
    return {CONFIG: _to_transformers(weights), PREPROCESSOR: _to_preprocessor(weights)}


def timm_arguments(weights: Weights) -> tuple[str, dict[str, Any]]:
    """Return timm's name of the network, and further arguments of its constructor."""
    model = weights.model
    arguments: dict[str, Any] = {"in_chans": model.channels} if model.channels != 3 else {}
    if model.name == "resnet10":  # timm has no name for it
        return "resnet18", {"layers": list(DEPTHS[model.name][1]), **arguments}
    return model.name, arguments


def _from_timm(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    name = str(config.get("architecture", ""))
    if name not in DEPTHS:
        raise WeightsError(
            f"{path} is timm's {name!r}, which differs from the ResNets here; "
            f"{did_you_mean(name, DEPTHS)}"
        )
    arguments = config.get("model_args") or {}
    if other := sorted(set(arguments) - _SHAPES):
        raise WeightsError(
            f"{path}/{CONFIG} builds its network with {other[0]}={arguments[other[0]]!r}, which no "
            "network here has"
        )
    stated = config.get("pretrained_cfg") or config
    fields: dict[str, Any] = {}
    if "mean" in stated and "std" in stated:
        fields = {key: _scaled(stated[key], 255.0) for key in ("mean", "std")}
    if size := stated.get("test_input_size") or stated.get("input_size"):
        fields["image_shape"] = _shape(size)
    if crop := stated.get("test_crop_pct") or stated.get("crop_pct"):
        fields["evaluation_crop"] = crop
    names = config.get("label_names") or stated.get("label_names")
    if isinstance(names, list):
        fields["classes"] = names
    return fields | _resized(path, stated.get("interpolation", "bilinear"))


def _from_transformers(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration of ``ResNetForImageClassification`` and its preprocessor state."""
    for key, expected in (
        ("model_type", "resnet"),
        ("downsample_in_bottleneck", False),
        ("downsample_in_first_stage", False),
        ("hidden_act", "relu"),
    ):
        value = config.get(key, None if key == "model_type" else expected)
        if value != expected:
            raise WeightsError(
                f"{path}/{CONFIG} has {key}={str(value)[:80]!r}, which no network here has"
            )
    labels = config.get("id2label") or {}
    names = [labels.get(str(number)) for number in range(len(labels))]
    plain = all(name == f"LABEL_{number}" for number, name in enumerate(names))
    fields: dict[str, Any] = {"classes": () if plain else names, "origin": str(path)}
    return fields | _from_preprocessor(path, config.get("num_channels", 3))


def _from_preprocessor(path: Path, channels: Any) -> dict[str, Any]:
    """What the image processor of a folder states."""
    file = path / PREPROCESSOR
    if not file.exists():
        return {}
    if not 0 < channels <= _MAX_CHANNELS:
        raise ValueError(f"num_channels={channels}")
    stated, fields = _json(file), {}
    scale = stated.get("rescale_factor", 1 / 255) if stated.get("do_rescale", True) else 1
    means, deviations = stated.get("image_mean"), stated.get("image_std")
    if not stated.get("do_normalize", True):
        means, deviations = (0,) * channels, (1,) * channels
    if means is not None and deviations is not None:
        fields["mean"] = _scaled(means, 1 / scale)
        fields["std"] = _scaled(deviations, 1 / scale)
    size = stated.get("size")
    if side := size.get("shortest_edge", size.get("height")) if isinstance(size, dict) else size:
        fields["image_shape"] = _shape((channels, side, side))
    if stated.get("crop_pct"):
        fields["evaluation_crop"] = stated["crop_pct"]
    number = stated.get("resample", _FILTERS.index("bilinear"))
    known = isinstance(number, int) and 0 <= number < len(_FILTERS)
    return fields | _resized(path, _FILTERS[number] if known else str(number)[:80])


def _resized(path: Path, interpolation: str) -> dict[str, Any]:
    """Both libraries resize with Pillow, whose bilinear filter is our ``antialias``."""
    remark = "" if interpolation == "bilinear" else f" (trained with {interpolation} resizing)"
    return {"resampling": "antialias", "origin": f"{path}{remark}"}


def _to_timm(weights: Weights) -> dict[str, Any]:
    model = weights.model
    height, width, channels = weights.image_shape
    name, arguments = timm_arguments(weights)
    return {
        "architecture": name,
        "num_classes": model.classes,
        "num_features": _features(weights)[-1],
        "global_pool": "avg",
        **({"label_names": list(weights.classes)} if weights.classes else {}),
        **({"model_args": arguments} if arguments else {}),
        "pretrained_cfg": {
            "num_classes": model.classes,
            "input_size": [channels, height, width],
            "fixed_input_size": False,
            "pool_size": None,
            "crop_pct": weights.evaluation_crop,
            "crop_mode": "center",
            "interpolation": "bilinear",
            "mean": _fractions(weights.mean),
            "std": _fractions(weights.std),
            "first_conv": module_name("stem/conv", "torchvision"),
            "classifier": module_name("head", "torchvision"),
        },
    }


def _to_transformers(weights: Weights) -> dict[str, Any]:
    model = weights.model
    kind, depths = DEPTHS[model.name]
    names = weights.classes or [f"LABEL_{number}" for number in range(model.classes)]
    return {
        "architectures": ["ResNetForImageClassification"],
        "model_type": "resnet",
        "num_channels": model.channels,
        "embedding_size": model.width,
        "hidden_sizes": _features(weights),
        "depths": list(depths),
        "layer_type": kind,
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,  # v1.5: the 3×3 convolution has the stride
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "dtype": "float32",
    }


def _to_preprocessor(weights: Weights) -> dict[str, Any]:
    """ConvNeXt's, as of the published ResNets: shorter side to size / crop, then the centre."""
    return {
        "image_processor_type": "ConvNextImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": weights.image_shape[0]},
        "crop_pct": weights.evaluation_crop,
        "resample": _FILTERS.index("bilinear"),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": _fractions(weights.mean),
        "image_std": _fractions(weights.std),
    }


def _features(weights: Weights) -> list[int]:
    """Output channels of each stage."""
    kind, depths = DEPTHS[weights.model.name]
    factor = 4 if kind == "bottleneck" else 1
    return [factor * weights.model.width << stage for stage in range(len(depths))]


def _fractions(levels: tuple[float, ...]) -> list[float]:
    """Grey levels as fractions of 255, without the last digits of the division."""
    return [round(level / 255, 12) for level in levels]


def _scaled(values: Sequence[float], factor: float) -> tuple[float, ...]:
    return tuple(float(x) * factor for x in values)


def _shape(size: Sequence[int]) -> tuple[int, int, int]:
    """Height, width and channels, from channels, height and width."""
    channels, height, width = map(int, size)
    return height, width, channels


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise WeightsError(f"{path} is not a JSON object ({one_line(error)})") from error
