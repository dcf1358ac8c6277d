"""How other libraries load what was written, as lines to paste that make ``model``."""

import dataclasses
from pathlib import Path

from largebatch.models import DEPTHS
from largebatch.weights.hub_files import timm_arguments
from largebatch.weights.weights import Weights


@dataclasses.dataclass(frozen=True)
class Loading:
    """How one library loads a file."""

    library: str
    """The package; '' where no constructor of the format's own library makes the network."""
    lines: tuple[str, str]
    """Python; ``model`` is then the network in evaluation mode."""


def loading(weights: Weights, path: Path, form: str) -> Loading:
    """How the library of a format loads ``path``."""
    place = repr(str(path))
    match form:
        case "flax":
            said = "# NumPy arrays by the '/'-joined paths of Flax's state"
            made = f"arrays = safetensors.numpy.load_file({place})  {said}"
            return Loading("", ("import safetensors.numpy", made))
        case "onnx":
            return _lines("onnxruntime", f"onnxruntime.InferenceSession({place})")
        case "huggingface":
            made = f"transformers.AutoModelForImageClassification.from_pretrained({place})"
            return _lines("transformers", made)
        case "timm":
            return _lines("timm", f"timm.create_model({_timm(weights, path)}).eval()")
    state = f"safetensors.torch.load_file({place})"
    made = _torchvision(weights)
    if not made:
        said = "# torchvision's names; its constructors make width 64, a 7×7 stem and RGB only"
        return Loading("", ("import safetensors.torch", f"state = {state}  {said}"))
    return Loading(
        "torchvision",
        (
            "import safetensors.torch, torchvision",
            f"model = {made}.eval(); model.load_state_dict({state})",
        ),
    )


def _lines(library: str, made: str) -> Loading:
    return Loading(library, (f"import {library}", f"model = {made}"))


def _timm(weights: Weights, path: Path) -> str:
    if path.is_dir():
        return f"{'local-dir:' + str(path)!r}, pretrained=True"
    name, arguments = timm_arguments(weights)
    said = "".join(f", {key}={value!r}" for key, value in arguments.items())
    return f"{name!r}, num_classes={weights.model.classes}{said}, checkpoint_path={str(path)!r}"


def _torchvision(weights: Weights) -> str:
    """The call that makes the network; '' where torchvision has none."""
    model = weights.model
    if model.width != 64 or model.stem == "small" or model.channels != 3:
        return ""
    kind, depths = DEPTHS[model.name]
    if model.name == "resnet10":  # which torchvision has no name for
        block = {"basic": "BasicBlock", "bottleneck": "Bottleneck"}[kind]
        made = f"ResNet(torchvision.models.resnet.{block}, {list(depths)}, "
    else:
        made = f"{model.name}("
    return f"torchvision.models.{made}num_classes={model.classes})"
