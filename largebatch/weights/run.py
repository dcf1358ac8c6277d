"""The weights of a run of our own, from its checkpoints."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from largebatch.checkpoint import arrays as stored_arrays
from largebatch.checkpoint import directories as checkpoint_directories
from largebatch.checkpoint import manifest
from largebatch.checkpoint.manifest import Manifest, OtherVersion, Rejected
from largebatch.config import Config, Facts, StagePlan, freeze, resolve
from largebatch.data.openers import is_photographs
from largebatch.errors import CheckpointError, UserError, one_line
from largebatch.files import read_json
from largebatch.models import Model
from largebatch.trees import unflatten_paths
from largebatch.weights import architecture, metadata
from largebatch.weights.weights import Weights, WeightsError, few

# What decides the network and what evaluation sees. Options of other sections may come and go with
# versions of this program; old checkpoints stay readable.
_SECTIONS = ("model", "norm", "data")
_LOGS = ("metrics.jsonl", "events.jsonl")
"""Of a run, whether or not it has come to a checkpoint."""


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run."""
    return (path / "checkpoints").is_dir()


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is that of one checkpoint."""
    return (path / manifest.NAME).is_file()


def check_no_run(path: Path, what: str, flag: str) -> None:
    """See that a folder to write to is not what training has written.

    Args:
      path: the folder, or where it is to be made.
      what: would be written there, for the message.
      flag: names the folder on the command line.

    Raises:
      WeightsError: it is a run, its ``checkpoints``, or one of them.
    """
    run = path.parent if path.name == "checkpoints" else path
    if is_run(run) or is_checkpoint(path) or any((path / file).is_file() for file in _LOGS):
        raise WeightsError(f"{path} is a run, which {what} must not touch; give another {flag}")


def newest(path: Path) -> Weights:
    """The newest sound checkpoint of a run; those that are not are left alone.

    Raises:
      CheckpointError: there is none.
    """
    directory = path / "checkpoints"
    rejected = []
    for step in checkpoint_directories.numbered(directory):
        try:
            found = checkpoint(directory / str(step))
        except CheckpointError as error:
            rejected.append(one_line(error))
            continue
        told = f", since {len(rejected)} newer cannot be used" if rejected else ""
        return dataclasses.replace(found, origin=found.origin + told)
    if rejected:
        raise CheckpointError(f"no checkpoint of {path} can be read: {rejected[0]}")
    raise CheckpointError(f"{path} holds no checkpoint yet; train first, or give another run")


def checkpoint(path: Path) -> Weights:
    """One checkpoint, all of it verified.

    Raises:
      CheckpointError: it is not as it was written, or of another version of this program.
    """
    try:
        about = checkpoint_directories.read_manifest(path)
        # All arrays, since a checkpoint is verified as a whole.
        like = {
            name: jax.ShapeDtypeStruct(array.shape, jnp.dtype(array.dtype))
            for name, array in about.arrays.items()
        }
        arrays = stored_arrays.read(path, about, like)
    except (Rejected, OtherVersion, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be used: {one_line(error)}") from error
    try:
        config = options_at(about, _SECTIONS)
        shape = _image_shape(about, config)
    except UserError as error:
        raise CheckpointError(
            f"checkpoint {path} is of another version: {one_line(error)}"
        ) from error
    model = Model.of_options(
        config.model,
        config.norm,
        classes=about.facts.classes,
        channels=about.facts.image_shape[-1],
    ).for_evaluation()
    names = architecture.shapes(model)
    trees = []
    for part, shapes in zip(("params", "stats"), names, strict=True):
        found = {
            n.removeprefix(f"{part}/"): x for n, x in arrays.items() if n.startswith(f"{part}/")
        }
        wrong = [n for n in shapes.keys() | found.keys() if shapes.get(n) != np.shape(found.get(n))]
        if wrong:
            raise CheckpointError(
                f"checkpoint {path} does not hold the network of its options: {few(sorted(wrong))}"
            )
        trees.append(unflatten_paths({n: np.asarray(found[n], np.float32) for n in shapes}))
    seen = _seen(path, config, about.facts, shape)
    described = metadata.checked(
        {
            "model": model,
            **seen,
            "image_shape": shape,
            # Other sources have nothing to crop.
            "evaluation_crop": (
                config.data.evaluation_crop if is_photographs(config.data.source) else 1.0
            ),
            "resampling": config.data.resampling,
            "origin": str(path),
            "data": config.data.source,
        },
        str(path),
    )
    return dataclasses.replace(described.weights(*trees), manifest=about)


def options_at(about: Manifest, sections: Sequence[str]) -> Config:
    """The options of a run at the step of one of its checkpoints.

    Args:
      about: what the checkpoint says of itself.
      sections: those that are needed; others may be of another version of this program, and are
        at their defaults unless the run has stages.

    Raises:
      ConfigError: this program does not know an option of them.
    """
    if _is_staged(about):
        return _stage(about).config
    return freeze({name: about.config[name] for name in sections if name in about.config})


def _image_shape(about: Manifest, config: Config) -> tuple[int, int, int]:
    """What evaluation sees at the checkpoint's step: height, width, channels."""
    shape = _stage(about).facts.image_shape if _is_staged(about) else about.facts.image_shape
    side = config.data.evaluation_size
    return (side, side, shape[2]) if side else shape


def _is_staged(about: Manifest) -> bool:
    return bool(about.config.get("batch", {}).get("stages") and about.progress.step)


def _stage(about: Manifest) -> StagePlan:
    return resolve(freeze(about.config), about.facts).stage_at(about.progress.step)


def _seen(
    path: Path, config: Config, facts: Facts, shape: tuple[int, int, int]
) -> Mapping[str, Any]:
    """Classes and normalisation: what the run has written down, or what its data say.

    Where the data are not here, photographs' normalisation is still known, and classes have no
    names.
    """
    try:
        written = read_json(path.parent.parent / "config.json")["source"]
        return {name: written[name] for name in ("classes", "mean", "std")}
    except (OSError, ValueError, LookupError, TypeError):
        pass
    from largebatch.data.open import open_source
    from largebatch.data.photos import MEAN, STD  # brings the image libraries

    try:
        source = open_source(config, "validation")
    except UserError as error:
        if shape[2] != 3:
            raise CheckpointError(
                f"checkpoint {path} needs its data for their normalisation: {one_line(error)}"
            ) from error
        return {"classes": (), "mean": MEAN, "std": STD}
    # Other data in the same place say nothing of this network.
    names = tuple(source.classes) if len(source.classes) == facts.classes else ()
    return {"classes": names, "mean": source.mean, "std": source.std}
