"""Whether a run may continue from a checkpoint: the same mathematics and the same data."""

import dataclasses
import os
from typing import Any

from largebatch.checkpoint.manifest import Manifest, OtherVersion, Progress
from largebatch.config import Config, Facts, Plan, differences, freeze, norm_statistics, table
from largebatch.config.schema import Difference
from largebatch.errors import CheckpointError, one_line

PyTree = Any
_IDENTITIES = ("identity", "validation_identity", "content")


@dataclasses.dataclass
class Stored:
    """A verified checkpoint."""

    progress: Progress
    state: PyTree
    """NumPy arrays in the tree of the stored state; None once they are on the devices."""
    table: str
    """Table of options that differ from this run without effect on the mathematics; '' if none."""
    schedule: tuple[Difference, ...] = ()
    """Options of the schedule that differ, of a run that is extended."""

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self.progress.step


def check_resumable(
    path: str, about: Manifest, plan: Plan, *, extends: bool = False, trains: bool = True
) -> tuple[str, tuple[Difference, ...]]:
    """Check that a run may continue from a checkpoint.

    Args:
      path: of the checkpoint, for messages.
      about: its manifest.
      plan: plan of the run that resumes from it.
      extends: whether the run may continue with another schedule.
      trains: whether the run trains, so that its validation set must be the same.

    Returns:
      A table of options that differ without effect, '' if none; the options of the schedule that
      differ, of a run that is extended.

    Raises:
      CheckpointError: its mathematics or dataset differs from this run.
      OtherVersion: its options are those of a different version.
    """
    try:
        config = freeze(about.config)
    except Exception as error:
        raise OtherVersion(f"its options cannot be read ({one_line(error)})") from error
    found = option_differences(config, about.facts, plan)
    schedule = tuple(d for d in found if d.mathematics and d.key.startswith("schedule."))
    changes = [d for d in found if d.mathematics]
    if changes and not (extends and len(changes) == len(schedule)):
        extending = ""
        if len(changes) == len(schedule):
            extending = ", continue with the new schedule by --resume=extend"
        raise CheckpointError(
            f"checkpoint {path} has different options that change the mathematics; restore "
            f"them{extending}, use another --workdir, or start a new run with --resume=never\n"
            f"{table(found)}"
        )
    if schedule:
        _check_extension(about.progress, plan)
    _check_statistics(path, config, plan)
    _check_data(path, about, plan, trains=trains)
    others = [d for d in found if d not in schedule]
    return table(others) if others else "", schedule


def option_differences(stored: Config, facts: Facts, plan: Plan) -> tuple[Difference, ...]:
    """Return the options in which a run differs from a checkpoint.

    A dataset with the same `Facts.content` is the same data in another place, such as an object
    store: its path does not change the mathematics. Nor does another spelling of the path of the
    initial weights.

    Args:
      stored: Options of the checkpoint.
      facts: Facts of the checkpoint.
      plan: Plan of the run.
    """
    same = set()
    sources = [config.data.source.partition(":")[0] for config in (stored, plan.config)]
    identities = [tuple(getattr(f, each) for each in _IDENTITIES) for f in (facts, plan.facts)]
    if facts.content and sources[0] == sources[1] and identities[0] == identities[1]:
        same.add("data.source")
    weights = [config.model.init_from for config in (stored, plan.config)]
    if all(weights) and len({os.path.realpath(os.path.expanduser(path)) for path in weights}) == 1:
        same.add("model.init_from")
    return tuple(
        dataclasses.replace(each, mathematics=each.mathematics and each.key not in same)
        for each in differences(stored, plan.config)
    )


def _check_extension(done: Progress, plan: Plan) -> None:
    """Check that another schedule leaves the steps that are done where they were.

    Raises:
      CheckpointError: it ends before the checkpoint, or moves a stage that has begun.
    """
    length = plan.config.schedule.length
    if plan.steps < done.step:
        raise CheckpointError(
            f"schedule.length={length!r} ends at step {plan.steps:,}, and the run has done "
            f"{done.step:,}; use a longer one"
        )
    if plan.position(done.step) != done.samples:
        raise CheckpointError(
            f"schedule.length={length!r} moves the begin of a stage that the run has reached "
            f"(batch.stages={plan.config.batch.stages}); give the begins of the stages in epochs"
        )


def _check_statistics(path: str, config: Config, plan: Plan) -> None:
    """Check that the checkpoint has the requested BatchNorm statistics, or can recompute them."""
    stored, asked = norm_statistics(config, plan.steps), plan.norm_statistics
    if asked not in (stored, "precise"):
        raise CheckpointError(
            f"norm.statistics={asked}: checkpoint {path} holds statistics of norm.statistics="
            f"{stored}; use --config.norm.statistics={stored}"
            + ("" if stored == "precise" else ", or precise, which recomputes them from data")
        )


def _check_data(path: str, about: Manifest, plan: Plan, *, trains: bool) -> None:
    """Check that the run has the dataset of the checkpoint.

    A training compares its evaluations, so the validation set must be the same too.
    """
    for name in ("train_examples", "classes", "image_shape") + ("validation_examples",) * trains:
        then, now = getattr(about.facts, name), getattr(plan.facts, name)
        if then != now:
            raise CheckpointError(
                f"checkpoint {path}: expected a dataset with {name}={then}, got {now}; restore the "
                "dataset or start a new run with --resume=never"
            )
    splits = {"training set": "identity"}
    if trains:
        splits["validation set"] = "validation_identity"
        if about.facts.validation_identity:  # an earlier version hashed the content differently
            splits["content"] = "content"
    for what, name in splits.items():
        then, now = getattr(about.facts, name), getattr(plan.facts, name)
        if then and now not in (0, then):
            raise CheckpointError(
                f"checkpoint {path} was trained with a different {what} of "
                f"{plan.config.data.source}: the number of examples is equal, but "
                f"{'images or labels' if what == 'content' else 'names, classes or files'} differ; "
                "restore the dataset or start a new run with --resume=never"
            )
