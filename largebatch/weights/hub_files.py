"""The configurations that stand beside the tensors in a folder for Hugging Face's hub."""

from typing import Any

from largebatch.models import DEPTHS
from largebatch.weights import hub
from largebatch.weights.weights import Weights

# timm has no shallower one, but its depths can be given.
_TIMM = {"resnet10": "resnet18"}


def of(weights: Weights, form: str) -> dict[str, dict[str, Any]]:
    """Files by name, as JSON can hold them, for ``timm`` or ``huggingface``."""
    if form == "timm":
        return {hub.CONFIG: _timm(weights)}
    return {hub.CONFIG: _transformers(weights), hub.PREPROCESSOR: _preprocessor(weights)}


def timm_arguments(weights: Weights) -> tuple[str, dict[str, Any]]:
    """The name the network in timm, and what its constructor is told besides."""
    model = weights.model
    name = _TIMM.get(model.name, model.name)
    arguments: dict[str, Any] = {}
    if name != model.name:
        arguments["layers"] = list(DEPTHS[model.name][1])
    if model.channels != 3:
        arguments["in_chans"] = model.channels
    return name, arguments


def features(weights: Weights) -> tuple[int, ...]:
    """Channels that each stage ends with."""
    kind, depths = DEPTHS[weights.model.name]
    factor = 4 if kind == "bottleneck" else 1
    return tuple(factor * weights.model.width << stage for stage in range(len(depths)))


def labels(weights: Weights) -> list[str]:
    """Names of the classes, or the ones that transformers gives to nameless ones."""
    return list(weights.classes) or [f"LABEL_{i}" for i in range(weights.model.classes)]


def shares(values: tuple[float, ...]) -> list[float]:
    """Values of 0..255 as shares of 1, without the last digits that this division makes up."""
    return [round(value / 255, 12) for value in values]


def _timm(weights: Weights) -> dict[str, Any]:
    model = weights.model
    height, width, channels = weights.image_shape
    name, arguments = timm_arguments(weights)
    return {
        "architecture": name,
        "num_classes": model.classes,
        "num_features": features(weights)[-1],
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
            "mean": shares(weights.mean),
            "std": shares(weights.std),
            "first_conv": "conv1",
            "classifier": "fc",
        },
    }


def _transformers(weights: Weights) -> dict[str, Any]:
    kind, depths = DEPTHS[weights.model.name]
    names = labels(weights)
    return {
        "architectures": ["ResNetForImageClassification"],
        "model_type": "resnet",
        "num_channels": weights.model.channels,
        "embedding_size": weights.model.width,
        "hidden_sizes": list(features(weights)),
        "depths": list(depths),
        "layer_type": kind,
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,  # v1.5: the 3×3 convolution has the stride
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "dtype": "float32",
    }


def _preprocessor(weights: Weights) -> dict[str, Any]:
    """ConvNeXt's, as the published ResNets have: the shorter side to size / crop, the middle."""
    return {
        "image_processor_type": "ConvNextImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": weights.image_shape[0]},
        "crop_pct": weights.evaluation_crop,
        "resample": hub.BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": shares(weights.mean),
        "image_std": shares(weights.std),
    }
