"""Reads the weights of our own runs from their checkpoints."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.checkpoint import checkpoints, file
from largebatch.checkpoint.file import Manifest, OtherVersion, Rejected
from largebatch.checkpoint.place import Place
from largebatch.config import Config, Facts, freeze
from largebatch.config.plan import StagePlan, resolve
from largebatch.config.recipe_file import split_argument
from largebatch.data.source import is_photographs, own_reference
from largebatch.environment import ROOT
from largebatch.errors import CheckpointError, UserError, one_line
from largebatch.files import read_json
from largebatch.models import Model
from largebatch.registry import check_trusted, is_reference
from largebatch.weights import names
from largebatch.weights.weights import Weights, WeightsError, checked

# What determines the network and its evaluation. Options of other sections may change between
# versions of this program; old checkpoints stay readable.
_SECTIONS = ("model", "norm", "data", "loss")
_AVERAGES = "ema/"  # their arrays in a checkpoint: the field of TrainState
_LOGS = ("metrics.jsonl", "events.jsonl")  # of a run without checkpoints too


def is_run(path: Path) -> bool:
    """Return whether a directory is that of a run."""
    return (path / "checkpoints").is_dir()


def check_no_run(path: Path, flag: str) -> None:
    """Refuse to write into the directory of a run.

    Args:
      path: the directory, which may be absent.
      flag: names it on the command line.

    Raises:
      WeightsError: it is a run, its ``checkpoints``, or one of them.
    """
    run = path.parent if path.name == "checkpoints" else path
    if (
        is_run(run)
        or path.parent.name == "checkpoints"
        or any((path / name).is_file() for name in _LOGS)
    ):
        raise WeightsError(f"{path} is a run, which is never overwritten; use another {flag}")


def newest(place: Place, *, ema: bool = False, trust: Sequence[str] = ()) -> Weights:
    """Read the newest valid checkpoint of a run; invalid ones are left as they are.

    Args:
      place: the run directory.
      ema: as in `checkpoint`.
      trust: as in `checkpoint`.

    Raises:
      CheckpointError: there is none.
      WeightsError: the run has no averaged weights.
    """
    rejected = []
    for step in checkpoints.steps_in(place):
        try:
            found = at_step(place, step, ema=ema, trust=trust)
        except CheckpointError as error:
            rejected.append(one_line(error))
            continue
        remark = f", since {len(rejected)} newer cannot be used" if rejected else ""
        return dataclasses.replace(found, origin=found.origin + remark)
    if rejected:
        raise CheckpointError(f"no checkpoint of {place.url} can be read: {rejected[0]}")
    raise CheckpointError(f"{place.url} holds no checkpoint yet; train first, or use another run")


def best(place: Place, *, ema: bool = False, trust: Sequence[str] = ()) -> Weights:
    """Read the checkpoint of a run with the greatest validation accuracy (``run.keep_best``).

    Of a run with averaged weights, it is their accuracy that chose the checkpoint; they are read.

    Args:
      place: the run directory.
      ema: as in `checkpoint`.
      trust: as in `checkpoint`.

    Raises:
      CheckpointError: no checkpoint has been evaluated, or the best one cannot be used.
      WeightsError: the run has no averaged weights.
    """
    found = checkpoints.best(place)
    if found is None:
        raise CheckpointError(
            f"{place.url} has no checkpoint of an evaluated step; train with run.keep_best=true, "
            "or use its newest checkpoint, without --best"
        )
    arrays = checkpoints.manifest_of(place, found.step).arrays
    averaged = any(name.startswith(_AVERAGES) for name in arrays)
    read = at_step(place, found.step, ema=ema or averaged, trust=trust)
    chosen = ", by whose accuracy it is the best" if averaged else ""
    return dataclasses.replace(read, origin=read.origin + chosen)


def is_checkpoint(path: Path) -> bool:
    """Return whether a file is a checkpoint of this program, without verification."""
    try:
        with path.open("rb") as stream:
            size = file.header_length(stream.read(file.HEADER_BYTES))
            file.manifest_in(stream.read(size))
    except OSError:
        return False
    except Rejected:
        return path.parent.name == checkpoints.FOLDER
    except OtherVersion:
        return True
    return True


def checkpoint(path: Path, *, ema: bool = False, trust: Sequence[str] = ()) -> Weights:
    """Read and verify one checkpoint.

    Args:
      path: the file.
      ema: read the averaged weights (``schedule.ema``) with their statistics.
      trust: modules of the user's own that may be imported (see `registry.check_trusted`).

    Raises:
      CheckpointError: it is damaged, or of another version of this program.
      ConfigError: its network is code that is not in ``trust``.
      WeightsError: it has no averaged weights.
    """
    return _decoded(path.read_bytes(), str(path), path.parent.parent, ema, trust)


def at_step(place: Place, step: int, *, ema: bool, trust: Sequence[str]) -> Weights:
    """Read and verify the checkpoint of a step; see `checkpoint`."""
    path = checkpoints.path_of(step)
    try:
        content = place.read(path)
    except OSError as error:
        raise CheckpointError(f"{place.url}/{path} cannot be read ({error})") from error
    return _decoded(content, f"{place.url}/{path}", place.logs, ema, trust)


def _decoded(content: bytes, path: str, run: Path, ema: bool, trust: Sequence[str]) -> Weights:
    """Return the weights of a checkpoint; see `checkpoint`.

    Args:
      content: of the file.
      path: of the file, for messages.
      run: directory with the ``config.json`` of its run.
      ema: as in `checkpoint`.
      trust: as in `checkpoint`.
    """
    try:
        about, arrays = file.decode(content)
    except (Rejected, OtherVersion) as error:
        raise CheckpointError(f"checkpoint {path} cannot be used: {one_line(error)}") from error
    try:
        config = _options(about)
        shape = _image_shape(about, config)
    except UserError as error:
        raise CheckpointError(
            f"checkpoint {path} is of another version: {one_line(error)}"
        ) from error
    written = _written(run)
    if is_reference(config.model.name):
        hint = _beside(written.get("recipe"), config.model.name)
        check_trusted(config.model.name, "model.name", str(path), trust, hint)
    classes, channels = about.facts.classes, about.facts.image_shape[-1]
    model = Model.of_options(config.model, config.norm, classes=classes, channels=channels)
    model = model.for_evaluation()
    if ema and not any(name.startswith(_AVERAGES) for name in arrays):
        raise WeightsError(
            f"checkpoint {path} has no averaged weights, since its run had schedule.ema=''; "
            "use its weights, without --ema"
        )
    prefix = _AVERAGES if ema else ""
    parts = (f"{prefix}params/", f"{prefix}stats/")
    held = {
        n.removeprefix(part): x for part in parts for n, x in arrays.items() if n.startswith(part)
    }
    try:
        trees = names.trees(model, held, f"checkpoint {path}")
    except WeightsError as error:
        raise CheckpointError(one_line(error)) from error
    cropped = is_photographs(config.data.source)
    fields = {
        "model": model,
        **_of_data(path, written, config, about.facts, shape, trust),
        "image_shape": shape,
        "evaluation_crop": config.data.evaluation_crop if cropped else 1.0,
        "resampling": config.data.resampling,
        "origin": f"{path}, averaged weights" if ema else str(path),
        "data": config.data.source,
    }
    return dataclasses.replace(checked(fields, str(path)).weights(*trees), options=config)


def _options(about: Manifest) -> Config:
    """Return the options of a run at the step of one of its checkpoints.

    Raises:
      ConfigError: this version does not know one of the options.
    """
    if _is_staged(about):
        return _stage(about).config
    return freeze({name: about.config[name] for name in _SECTIONS if name in about.config})


def _image_shape(about: Manifest, config: Config) -> tuple[int, int, int]:
    """Height, width and channels of the images that evaluation uses at the checkpoint's step."""
    shape = _stage(about).facts.image_shape if _is_staged(about) else about.facts.image_shape
    side = config.data.evaluation_size
    return (side, side, shape[2]) if side else shape


def _is_staged(about: Manifest) -> bool:
    return bool(about.config.get("batch", {}).get("stages") and about.progress.step)


def _stage(about: Manifest) -> StagePlan:
    return resolve(freeze(about.config), about.facts).stage_at(about.progress.step)


def _written(run: Path) -> Mapping[str, Any]:
    """The ``config.json`` of a run; empty if there is none."""
    try:
        return read_json(run / "config.json")
    except (OSError, ValueError):
        return {}


def _beside(recipe: Any, reference: str) -> str:
    """The path of a module, or of its package, beside the recipe of a run; '' without one."""
    top = reference.partition(":")[0].partition(".")[0]
    with contextlib.suppress(OSError):  # the text may be anything
        folder = (ROOT / split_argument(str(recipe))[0]).parent
        for path in (folder / f"{top}.py", folder / top):
            if path.exists():
                return str(path)
    return ""


def _of_data(
    path: Path,
    written: Mapping[str, Any],
    config: Config,
    facts: Facts,
    shape: tuple[int, int, int],
    trust: Sequence[str],
) -> Mapping[str, Any]:
    """Classes and normalization: what the run recorded, else what its data say.

    Without the data, the normalization of photographs is still known, and classes have no names.
    """
    try:
        return {name: written["source"][name] for name in ("classes", "mean", "std")}
    except (LookupError, TypeError):
        pass
    from largebatch.data.open import open_split
    from largebatch.data.source import MEAN, STD

    try:
        if own := own_reference(config.data.source):
            check_trusted(own, "data.source", str(path), trust)
        source = open_split(config, "validation")
    except UserError as error:
        if shape[2] != 3:
            raise CheckpointError(
                f"checkpoint {path} needs its data for their normalization: {one_line(error)}"
            ) from error
        return {"classes": (), "mean": MEAN, "std": STD}
    # Other data may have been put in the same place since.
    names = tuple(source.classes) if len(source.classes) == facts.classes else ()
    return {"classes": names, "mean": source.mean, "std": source.std}
