"""Weights as files of other libraries, each written whole or not at all."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from largebatch.files import check_parent, replacing
from largebatch.trees import flatten_paths, unflatten_paths
from largebatch.weights import hub, hub_files, metadata, names, onnx_file
from largebatch.weights.loading import Loading, loading
from largebatch.weights.run import check_no_run
from largebatch.weights.weights import Weights, WeightsError, by_path

Format = Literal["torchvision", "timm", "huggingface", "onnx", "flax"]
FORMATS: tuple[Format, ...] = get_args(Format)

EPSILON = 1e-5
"""Of every BatchNorm that PyTorch's constructors make; their files cannot say another."""
_SUFFIXES = {".safetensors": ("torchvision", "timm", "flax"), ".onnx": ("onnx",)}


@dataclasses.dataclass(frozen=True)
class Written:
    """What an export has left on the disk."""

    path: Path
    format: Format
    weights: Weights
    """As they are in the files; `read` gives them back to the bit, with another origin."""
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    """What a user should know, a line each."""
    loading: Loading


def format_of(target: Path, asked: str | None) -> Format:
    """The format for a path: by its suffix, where ``asked`` is None.

    Raises:
      WeightsError: the two do not fit, or the path says nothing.
    """
    fitting = _SUFFIXES.get(target.suffix, ("huggingface", "timm"))
    if asked is None:
        known_folder = target.suffix in _SUFFIXES or not target.suffix or target.is_dir()
        if not known_folder:
            raise WeightsError(
                f"--to={target} ends in {target.suffix!r}; use .safetensors, .onnx, or a folder "
                "with --format=huggingface or timm"
            )
        return fitting[0]
    if asked not in fitting:
        places = "a folder" if target.suffix not in _SUFFIXES else f"a {target.suffix} file"
        raise WeightsError(
            f"--format={asked} is not for {places}, which takes {' or '.join(fitting)}; give "
            f"--to={target.with_suffix(_suffix(asked))}"
        )
    return asked


def check_target(target: Path, force: bool) -> None:
    """See that the path is free, before any work.

    Raises:
      UserError: it is not, or cannot be written.
    """
    taken = target.is_file() or (target.is_dir() and any(target.iterdir()))
    check_no_run(target, "an export", "--to")
    if taken and not force:
        raise WeightsError(f"{target} exists; give another --to, or --force to replace it")
    if target.suffix not in _SUFFIXES and target.is_file():
        raise WeightsError(f"{target} is a file, not a folder; give another --to")
    check_parent(target / hub.CONFIG if target.is_dir() else target)


def export(weights: Weights, target: Path, form: Format, *, force: bool = False) -> Written:
    """Write weights for another library.

    Args:
      weights: what to write.
      target: the file, or the folder for Hugging Face's and timm's.
      form: whose.
      force: whether to replace what is there.

    Raises:
      WeightsError: the network is none that the format can hold, or a library is missing.
      UserError: the path is taken or cannot be written.
    """
    check_target(target, force)
    _check_expressible(weights, form)
    notes = []
    if form not in ("onnx", "flax") and weights.model.epsilon != EPSILON:
        notes.append(
            f"running variances hold norm.epsilon={weights.model.epsilon:g} − {EPSILON:g} besides, "
            "since these files cannot say an epsilon: the logits stay the same"
        )
        weights = _with_usual_epsilon(weights)
    arrays = by_path(weights)
    if form != "flax":
        style = "huggingface" if form == "huggingface" else "torchvision"
        arrays = {
            names.foreign_name(path, style): names.to_foreign(path, array)
            for path, array in arrays.items()
        }
    about = metadata.encode(weights)
    if form == "onnx":
        files = {target: onnx_file.encode(weights.model, arrays, about, weights.image_shape)}
    else:
        tensors = _safetensors(arrays, about, "flax" if form == "flax" else "pt")
        files = {target: tensors}
        if target.suffix not in _SUFFIXES:
            texts = hub_files.of(weights, form)
            # The tensors last: without them, a folder is visibly incomplete.
            files = {
                **{target / n: (json.dumps(x, indent=2) + "\n").encode() for n, x in texts.items()},
                target / hub.TENSORS: tensors,
            }
    try:
        if target.suffix not in _SUFFIXES:
            # Of another format: readers would take what it says beside the new tensors.
            for path in (target / hub.TENSORS, target / hub.CONFIG, target / hub.PREPROCESSOR):
                path.unlink(missing_ok=True)
        for path, content in files.items():
            with replacing(path) as stream:
                stream.write(content)
    except OSError as error:
        raise WeightsError(
            f"{path} cannot be written ({error.strerror}); free space or choose another place"
        ) from error
    if target.suffix not in _SUFFIXES and weights.resampling == "linear" and weights.data:
        notes.append(
            "the run's evaluation resized without antialiasing, Pillow's bilinear has it: accuracy "
            "may differ a little"
        )
    return Written(
        target, form, weights, tuple(files), tuple(notes), loading(weights, target, form)
    )


def _check_expressible(weights: Weights, form: Format) -> None:
    model, remedy = weights.model, "use --format=onnx, or torchvision's names in a .safetensors"
    if form != "flax" and not model.is_resnet:
        raise WeightsError(
            f"{weights.origin} has model.name={model.name}, and --format={form} is for ResNets; "
            "use --format=flax and a .safetensors file"
        )
    if model.blur_pool:
        raise WeightsError(
            f"{weights.origin} has model.blur_pool=True, which none of these formats can say; "
            "train without it to export"
        )
    if form == "huggingface" and model.stem == "small":
        raise WeightsError(f"Hugging Face's ResNet has no stem of 3×3 (model.stem=small); {remedy}")
    if form == "timm":
        for option, value, only in (("stem", model.stem, "conv7"), ("width", model.width, 64)):
            if value not in (only, "space_to_depth"):
                raise WeightsError(
                    f"timm's ResNets have model.{option}={only}, this is {value}; {remedy}"
                )


def _with_usual_epsilon(weights: Weights) -> Weights:
    """The same function with `EPSILON`: of variance and epsilon only the sum counts."""
    more = weights.model.epsilon - EPSILON
    flat = {
        path: (array.astype(np.float64) + more).astype(np.float32)
        if path.endswith("/var")
        else array
        for path, array in flatten_paths(weights.stats).items()
    }
    if least := [p for p, array in flat.items() if p.endswith("/var") and array.min() < 0]:
        raise WeightsError(
            f"{least[0]} has a variance below {-more:g}, which {EPSILON:g} cannot make up for; use "
            "--format=onnx"
        )
    model = dataclasses.replace(weights.model, epsilon=EPSILON)
    return dataclasses.replace(weights, model=model, stats=unflatten_paths(flat))


def _safetensors(arrays: Mapping[str, np.ndarray], about: Mapping[str, str], library: str) -> bytes:
    from safetensors.numpy import save

    # One counter a BatchNorm, as PyTorch's state dicts have: transformers tells of absent ones.
    norms = [name.rpartition(".")[0] for name in arrays if name.endswith(".running_var")]
    counters = {f"{norm}.{names.COUNTER}": np.zeros((), np.int64) for norm in norms}
    # transformers asks what wrote the file.
    return save({**arrays, **counters}, {"format": library, **about})


def _suffix(form: str) -> str:
    return {"onnx": ".onnx"}.get(form, ".safetensors" if form in ("torchvision", "flax") else "")
