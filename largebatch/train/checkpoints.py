"""Checkpoints: what a run needs to go on exactly where it was. The only module that knows Orbax."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from largebatch.config import Plan, differences, freeze, table
from largebatch.errors import CheckpointError, ConfigError

PyTree = Any
_FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run is, and its timers."""

    step: int = 0
    """Steps done."""
    samples: int = 0
    """Training samples consumed: the sample position."""
    wall_s: float = 0.0
    """Seconds, all turns at this run together."""
    compile_s: float = 0.0
    train_s: float = 0.0
    """Seconds of training alone: without compilation, evaluation and checkpoints."""


class Checkpoints:
    """The checkpoints of a run, ``DIRECTORY/STEP/``, written asynchronously."""

    def __init__(self, directory: Path, *, keep: int) -> None:
        self._manager = ocp.CheckpointManager(
            directory.absolute(),
            item_names=("state", "run"),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, enable_async_checkpointing=True, create=True
            ),
        )
        self._directory = directory

    def path(self, step: int) -> Path:
        """Where the checkpoint of ``step`` lies."""
        return self._directory / str(step)

    def latest_step(self) -> int | None:
        """The newest complete checkpoint, or None."""
        return self._manager.latest_step()

    def save(self, state: PyTree, progress: Progress, plan: Plan) -> None:
        """Start to save; ``state`` is copied before this returns and may be donated then."""
        described = {
            "format": _FORMAT,
            "progress": dataclasses.asdict(progress),
            "config": dataclasses.asdict(plan.config),
            "facts": dataclasses.asdict(plan.facts),
        }
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(state), run=ocp.args.JsonSave(described)
        )
        with self._writing():
            self._manager.save(progress.step, args=arguments)

    def restore(self, step: int, like: PyTree) -> PyTree:
        """The state saved at ``step``, with the shapes, types and shardings of ``like``.

        Raises:
          CheckpointError: the checkpoint cannot be read.
        """
        try:
            return self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like))
            ).state
        except Exception as error:
            raise self._unreadable(step, error) from error

    def check(self, step: int, plan: Plan) -> tuple[Progress, str]:
        """Compare the run that wrote the checkpoint of ``step`` to ``plan``.

        Returns:
          Its progress, and a table of the differences that do not change the mathematics ('' if
          none).

        Raises:
          CheckpointError: unreadable, or the mathematics differs; the message holds the table.
        """
        try:
            stored = self._manager.restore(
                step, args=ocp.args.Composite(run=ocp.args.JsonRestore())
            ).run
            if stored["format"] != _FORMAT:
                raise ConfigError(f"its format is {stored['format']}, this one reads {_FORMAT}")
            progress = Progress(**stored["progress"])
            config = freeze(stored["config"])
            facts = stored["facts"]
        except ConfigError as error:
            raise CheckpointError(
                f"checkpoint {self.path(step)} is of another version: {error}; "
                "start anew with --resume=never"
            ) from error
        except Exception as error:
            raise self._unreadable(step, error) from error
        found = differences(config, plan.config)
        if any(d.mathematics for d in found):
            raise CheckpointError(
                f"checkpoint {self.path(step)} is of a run with other mathematics; restore its "
                "options, give another --workdir, or start anew with --resume=never\n"
                + table(found)
            )
        _check_data(self.path(step), facts, plan)
        return progress, table(found) if found else ""

    def wait(self) -> None:
        """Until what was saved is on disk.

        Raises:
          CheckpointError: it could not be written.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Release what Orbax holds, when it has written what it was given."""
        self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What fails while a checkpoint is written may also be an earlier one, found out late."""
        try:
            yield
        except Exception as error:
            raise CheckpointError(
                f"a checkpoint in {self._directory} could not be written: {_first_line(error)}; "
                "check free space and permissions"
            ) from error

    def _unreadable(self, step: int, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"checkpoint {self.path(step)} cannot be read ({_first_line(error)}); move it away to "
            "resume from the one before"
        )


def abstract(tree: PyTree) -> PyTree:
    """Shapes, types and shardings of a tree of arrays."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def _check_data(path: Path, stored: dict[str, Any], plan: Plan) -> None:
    for name in ("train_examples", "classes", "image_shape"):
        now = getattr(plan.facts, name)
        then = tuple(stored[name]) if isinstance(stored[name], list) else stored[name]
        if then != now:
            raise CheckpointError(
                f"checkpoint {path} was trained with {name}={then}, the data now has {now}; "
                "restore the data or start anew with --resume=never"
            )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
