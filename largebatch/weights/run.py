"""Reads the weights of our own runs from their checkpoints."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from largebatch.checkpoint import checkpoints, file
from largebatch.checkpoint.file import Manifest, OtherVersion, Rejected
from largebatch.checkpoint.place import Place
from largebatch.config import Config, freeze
from largebatch.config.resolution import resolve
from largebatch.data.source import MEAN, STD, is_photographs
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


def of_run(
    place: Place,
    *,
    step: int | None = None,
    best: bool = False,
    ema: bool = False,
    trust: Sequence[str] = (),
) -> Weights:
    """Read and verify a checkpoint of a run; invalid ones are left as they are.

    Args:
      place: the run directory.
      step: that of the checkpoint; None: the newest valid checkpoint.
      best: read the one with the greatest validation accuracy (``run.keep_best``). In a run with
        averaged weights, their accuracy chose it, and they are read.
      ema: read the averaged weights (``schedule.ema``) with their statistics.
      trust: modules of the user's own that may be imported (see `registry.check_trusted`).

    Raises:
      CheckpointError: there is none, or it cannot be used.
      ConfigError: its network is code that is not in ``trust``.
      WeightsError: it has no averaged weights.
    """
    if best:
        return _best(place, ema, trust)
    if step is not None:
        return _at_step(place, step, ema, trust)
    rejected = []
    for each in checkpoints.steps_in(place):
        try:
            found = _at_step(place, each, ema, trust)
        except CheckpointError as error:
            rejected.append(one_line(error))
            continue
        remark = f", since {len(rejected)} newer cannot be used" if rejected else ""
        return dataclasses.replace(found, origin=found.origin + remark)
    if rejected:
        raise CheckpointError(f"no checkpoint of {place.url} can be read: {rejected[0]}")
    raise CheckpointError(f"{place.url} holds no checkpoint yet; train first, or use another run")


def _best(place: Place, ema: bool, trust: Sequence[str]) -> Weights:
    found = checkpoints.best(place)
    if found is None:
        raise CheckpointError(
            f"{place.url} has no checkpoint of an evaluated step; train with run.keep_best=true, "
            "or use its newest checkpoint, without --best"
        )
    arrays = checkpoints.manifest_of(place, found.step).arrays
    averaged = any(name.startswith(_AVERAGES) for name in arrays)
    read = _at_step(place, found.step, ema or averaged, trust)
    chosen = ", by whose accuracy it is the best" if averaged else ""
    return dataclasses.replace(read, origin=read.origin + chosen)


def _at_step(place: Place, step: int, ema: bool, trust: Sequence[str]) -> Weights:
    path = checkpoints.path_of(step)
    try:
        content = place.read(path)
    except OSError as error:
        raise CheckpointError(f"{place.url}/{path} cannot be read ({error})") from error
    return of_checkpoint(content, f"{place.url}/{path}", place.logs, ema, trust)


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


def of_checkpoint(content: bytes, path: str, run: Path, ema: bool, trust: Sequence[str]) -> Weights:
    """Verify a checkpoint and return its weights; errors and other arguments as of `of_run`.

    Args:
      content: of the file.
      path: of the file, for messages.
      run: directory with the ``config.json`` of its run.
      ema: as of `of_run`.
      trust: likewise.
    """
    try:
        about, arrays = file.decode(content)
    except (Rejected, OtherVersion) as error:
        raise CheckpointError(f"checkpoint {path} cannot be used: {one_line(error)}") from error
    try:
        config, shape = _at_its_step(about)
    except UserError as error:
        raise CheckpointError(
            f"checkpoint {path} is of another version: {one_line(error)}"
        ) from error
    if is_reference(config.model.name):
        check_trusted(config.model.name, "model.name", path, trust)
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
        params, stats = names.trees(model, held, f"checkpoint {path}")
    except WeightsError as error:
        raise CheckpointError(one_line(error)) from error
    cropped = is_photographs(config.data.source)
    fields = {
        "model": model,
        **_of_data(path, run, shape[2]),
        "image_shape": shape,
        "evaluation_crop": config.data.evaluation_crop if cropped else 1.0,
        "resampling": config.data.resampling,
        "origin": f"{path}, averaged weights" if ema else path,
        "data": config.data.source,
    }
    read = checked(fields, path)
    return dataclasses.replace(read, params=params, stats=stats, options=config)


def _at_its_step(about: Manifest) -> tuple[Config, tuple[int, int, int]]:
    """Return the options of a run at the step of a checkpoint, and the shape of evaluation images.

    Raises:
      ConfigError: this version does not know one of the options.
    """
    facts = about.facts
    if about.config.get("batch", {}).get("stages") and about.progress.step:
        stage = resolve(freeze(about.config), facts).stage_at(about.progress.step)
        config, facts = stage.config, stage.facts
    else:
        config = freeze({name: about.config[name] for name in _SECTIONS if name in about.config})
    height, width, channels = facts.image_shape
    side = config.data.evaluation_size
    return config, (side or height, side or width, channels)


def _of_data(path: str, run: Path, channels: int) -> dict[str, Any]:
    """Return classes, mean and std of the data, which the ``config.json`` of a run has.

    Raises:
      CheckpointError: it is absent, and the images are no photographs.
    """
    try:
        stated = read_json(run / "config.json")["source"]
        return {name: stated[name] for name in ("classes", "mean", "std")}
    except (OSError, ValueError, LookupError, TypeError) as error:
        if channels != 3:
            raise CheckpointError(
                f"checkpoint {path} has images of {channels} channel(s), whose normalization only "
                "the config.json of its run states; put both back as RUN/config.json and "
                "RUN/checkpoints/STEP.safetensors"
            ) from error
    return {"classes": (), "mean": MEAN, "std": STD}
