"""Writes weights as files of other libraries, each complete or not at all."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from largebatch.files import check_parent, replacing
from largebatch.models import DEPTHS
from largebatch.trees import flatten_paths, unflatten_paths
from largebatch.weights import hub, onnx_file
from largebatch.weights.names import COUNTER, foreign_name, to_foreign
from largebatch.weights.run import check_no_run
from largebatch.weights.weights import Weights, WeightsError, by_path, encode

Format = Literal["torchvision", "timm", "huggingface", "onnx", "flax"]
FORMATS: tuple[Format, ...] = get_args(Format)

EPSILON = 1e-5
"""ε of every BatchNorm of PyTorch's constructors; their files cannot state another."""
_FOLDER = ("huggingface", "timm")
_BY_SUFFIX = {".safetensors": ("torchvision", "timm", "flax"), ".onnx": ("onnx",)}


@dataclasses.dataclass(frozen=True)
class Written:
    """What an export wrote."""

    path: Path
    weights: Weights
    """As they are in the files; `read` returns them bitwise identical, with another origin."""
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    """Remarks for the user."""
    library: str
    """The package that loads the files; '' if the format's library cannot build the network."""
    loading: tuple[str, str]
    """Lines of Python that load the files; with a ``library``, they define ``model``, the network
    in evaluation mode."""


def format_of(target: Path, requested: str | None) -> Format:
    """Return the format for a path: the requested one, or the default of its suffix.

    Raises:
      WeightsError: the format does not fit the path, or the path's suffix is unknown.
    """
    fitting = _BY_SUFFIX.get(target.suffix, _FOLDER)
    if requested is None:
        if target.suffix and target.suffix not in _BY_SUFFIX and not target.is_dir():
            raise WeightsError(
                f"--to={target}: unknown suffix {target.suffix!r}; use .safetensors, .onnx, or a "
                "folder with --format=huggingface or timm"
            )
        return fitting[0]
    if requested not in fitting:
        suffix = next((s for s, forms in _BY_SUFFIX.items() if requested in forms), "")
        raise WeightsError(
            f"--format={requested} does not fit --to={target}, which takes {' or '.join(fitting)}; "
            f"use --to={target.with_suffix(suffix)}"
        )
    return requested


def _check_target(target: Path, force: bool) -> None:
    """Raise a UserError unless the path is free and can be written."""
    check_no_run(target, "--to")
    taken = target.is_file() or (target.is_dir() and any(target.iterdir()))
    if taken and not force:
        raise WeightsError(f"{target} exists; use another --to, or --force to replace it")
    if target.suffix not in _BY_SUFFIX and target.is_file():
        raise WeightsError(f"{target} is a file, not a folder; use another --to")
    check_parent(target / hub.CONFIG if target.is_dir() else target)


def export(weights: Weights, target: Path, form: Format, *, force: bool = False) -> Written:
    """Write weights for another library.

    Args:
      weights: what to write.
      target: the file, or the folder for Hugging Face or timm.
      form: the format.
      force: whether to replace what is there.

    Raises:
      WeightsError: the format cannot hold the network, or a package is missing.
      UserError: the path is taken or cannot be written.
    """
    _check_target(target, force)
    _check_expressible(weights, form)
    notes = []
    if form not in ("onnx", "flax") and weights.model.epsilon != EPSILON:
        notes.append(
            f"norm.epsilon={weights.model.epsilon:g} − {EPSILON:g} is added to the running "
            "variances, since these files cannot state an epsilon; the logits stay the same"
        )
        weights = _with_pytorch_epsilon(weights)
    style = form if form in ("flax", "huggingface") else "torchvision"
    arrays = {
        foreign_name(path, style): to_foreign(path, x, style)
        for path, x in by_path(weights).items()
    }
    about = encode(weights)
    folder = target.suffix not in _BY_SUFFIX
    if form == "onnx":
        contents = {target: onnx_file.encode(weights.model, arrays, about, weights.image_shape)}
    elif not folder:
        contents = {target: _safetensors(arrays, about, "flax" if form == "flax" else "pt")}
    else:
        configurations = hub.files(weights, form).items()
        contents = {target / n: f"{json.dumps(x, indent=2)}\n".encode() for n, x in configurations}
        # The tensors last: without them, a folder is visibly incomplete.
        contents[target / hub.TENSORS] = _safetensors(arrays, about, "pt")
        if weights.resampling == "linear" and weights.data:
            notes.append(
                "the run's evaluation resized without antialiasing, Pillow's bilinear has it: "
                "accuracy may differ a little"
            )
    path = target
    try:
        if folder:  # a file of another format would be read beside the new tensors
            for path in (target / hub.TENSORS, target / hub.CONFIG, target / hub.PREPROCESSOR):
                path.unlink(missing_ok=True)
        for path, content in contents.items():
            with replacing(path) as stream:
                stream.write(content)
    except OSError as error:
        raise WeightsError(
            f"{path} cannot be written ({error.strerror}); free space or use another --to"
        ) from error
    library, lines = _loading(weights, target, form)
    return Written(target, weights, tuple(contents), tuple(notes), library, lines)


def _check_expressible(weights: Weights, form: Format) -> None:
    model, remedy = weights.model, "use --format=onnx, or torchvision with a .safetensors file"
    if form != "flax" and not model.is_resnet:
        raise WeightsError(
            f"{weights.origin} has model.name={model.name}, and --format={form} is for ResNets; "
            "use --format=flax with a .safetensors file"
        )
    if model.blur_pool:
        raise WeightsError(
            f"{weights.origin} has model.blur_pool=True, which no format can hold; train without "
            "it to export"
        )
    if form == "huggingface" and model.stem == "small":
        raise WeightsError(
            f"--format=huggingface cannot hold the 3×3 stem (model.stem=small); {remedy}"
        )
    if form == "timm" and (model.stem == "small" or model.width != 64):
        raise WeightsError(
            "--format=timm: expected model.stem=conv7 and model.width=64, got "
            f"model.stem={model.stem} and model.width={model.width}; {remedy}"
        )


def _with_pytorch_epsilon(weights: Weights) -> Weights:
    """The same function with `EPSILON`: only the sum of variance and epsilon counts."""
    more = weights.model.epsilon - EPSILON
    flat = flatten_paths(weights.stats)
    for path, array in flat.items():
        if path.endswith("/var"):
            flat[path] = (array.astype(np.float64) + more).astype(np.float32)
            if flat[path].min() < 0:
                raise WeightsError(
                    f"{path} has a variance below {-more:g}, which cannot hold the difference of "
                    f"norm.epsilon to {EPSILON:g}; use --format=onnx"
                )
    model = dataclasses.replace(weights.model, epsilon=EPSILON)
    return dataclasses.replace(weights, model=model, stats=unflatten_paths(flat))


def _safetensors(arrays: Mapping[str, np.ndarray], about: Mapping[str, str], library: str) -> bytes:
    from safetensors.numpy import save

    # PyTorch's state dicts have a counter for each BatchNorm; transformers warns of absent ones.
    norms = [name.rpartition(".")[0] for name in arrays if name.endswith(".running_var")]
    counters = {f"{norm}.{COUNTER}": np.zeros((), np.int64) for norm in norms}
    # transformers requires the format.
    return save({**arrays, **counters}, {"format": library, **about})


def _loading(weights: Weights, path: Path, form: Format) -> tuple[str, tuple[str, str]]:
    """The package that loads a file, and the lines that do it."""
    place, model = repr(str(path)), weights.model
    if form == "onnx":
        return _lines("onnxruntime", f"onnxruntime.InferenceSession({place})")
    if form == "huggingface":
        loader = "transformers.AutoModelForImageClassification.from_pretrained"
        return _lines("transformers", f"{loader}({place})")
    if form == "timm" and path.is_dir():
        return _lines("timm", f"timm.create_model({f'local-dir:{path}'!r}, pretrained=True).eval()")
    if form == "timm":
        name, arguments = hub.timm_arguments(weights)
        more = "".join(f", {key}={value!r}" for key, value in arguments.items())
        settings = f"num_classes={model.classes}{more}, checkpoint_path={place}"
        return _lines("timm", f"timm.create_model({name!r}, {settings}).eval()")
    if form == "flax":
        remark = "# NumPy arrays by the '/'-joined paths of Flax's state"
        load = f"arrays = safetensors.numpy.load_file({place})  {remark}"
        return "", ("import safetensors.numpy", load)
    load = f"safetensors.torch.load_file({place})"
    if model.width != 64 or model.stem == "small" or model.channels != 3:
        remark = "# torchvision's names; its constructors have width 64, a 7×7 stem and RGB only"
        return "", ("import safetensors.torch", f"state = {load}  {remark}")
    build = f"{model.name}("
    if model.name == "resnet10":  # torchvision has no name for it
        _, depths = DEPTHS[model.name]
        build = f"ResNet(torchvision.models.resnet.BasicBlock, {list(depths)}, "
    build = f"torchvision.models.{build}num_classes={model.classes})"
    load = f"model = {build}.eval(); model.load_state_dict({load})"
    return "torchvision", ("import safetensors.torch, torchvision", load)


def _lines(library: str, build: str) -> tuple[str, tuple[str, str]]:
    return library, (f"import {library}", f"model = {build}")
