"""What an invocation of the trainer asks for, and checks that need no data.

Imports no JAX, so that these errors are reported within a second.
"""

import contextlib
import dataclasses
from pathlib import Path
from typing import Literal

from largebatch.config import Config
from largebatch.errors import CheckpointError, ConfigError
from largebatch.files import read_json
from largebatch.store_urls import url_of
from largebatch.tracking.callbacks import Callback


@dataclasses.dataclass(frozen=True)
class Request:
    """The command line, or the arguments of a call from Python."""

    recipe: Path | None
    """Recipe file; None if a configuration was given from Python."""
    workdir: Path
    overrides: tuple[tuple[str, str], ...] = ()
    resume: Literal["auto", "never", "must", "extend"] = "auto"
    """What to do with a run in ``workdir``; ``extend`` resumes it with another schedule."""
    dry_run: bool = False
    eval_only: bool = False
    quiet: bool = False
    """Print only warnings and the last line."""
    callbacks: tuple[Callback, ...] = ()
    """Objects to call during a training; see `largebatch.tracking.callbacks`."""
    notes: tuple[str, ...] = ()
    """Lines to print about what the options have changed in the recipe."""

    @property
    def given(self) -> frozenset[str]:
        """The options that the user gave."""
        return frozenset(key for key, _ in self.overrides)

    @property
    def place(self) -> str:
        """The run directory as the user knows it."""
        return url_of(self.workdir) or str(self.workdir)

    @property
    def trains(self) -> bool:
        """Whether the run is trained, which needs its lock."""
        return not (self.eval_only or self.dry_run)

    @property
    def shared(self) -> dict[str, str]:
        """The flags that all processes of a run must share."""
        return {
            "--resume": self.resume,
            "--dry_run": str(self.dry_run),
            "--eval_only": str(self.eval_only),
            "--workdir": url_of(self.workdir) or "a local directory",
        }

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the request cannot be met without a checkpoint."""
        return self.eval_only or self.resume in ("must", "extend")

    def no_checkpoint(self) -> CheckpointError:
        """Return the error of a request that needs a checkpoint where there is none."""
        return CheckpointError(
            f"--workdir={self.place} holds no checkpoint; train first, use another --workdir"
            + ("" if self.eval_only else f", or drop --resume={self.resume}")
        )


def check(config: Config, request: Request) -> None:
    """Check the request against the file system.

    Raises:
      CheckpointError: the run to evaluate or resume does not exist.
      ConfigError: the initial weights do not exist, or would be moved away first.
    """
    if url := url_of(request.workdir):
        begin = url_of(config.model.init_from)
        if request.resume == "never" and f"{begin}/".startswith(f"{url}/"):
            raise _moved(config, request)
        return
    if request.needs_checkpoint and not (request.workdir / "checkpoints").is_dir():
        raise request.no_checkpoint()
    weights = config.model.init_from
    if not weights or url_of(weights):
        return
    path, workdir = Path(weights).resolve(), request.workdir.resolve()
    if request.resume == "never" and path.is_relative_to(workdir):
        raise _moved(config, request)
    if not path.exists() and not _began_with(weights, request):
        raise ConfigError(
            f"model.init_from={weights}: no such file or folder; expected a run, a checkpoint or a "
            "file of weights"
        )


def _moved(config: Config, request: Request) -> ConfigError:
    return ConfigError(
        f"model.init_from={config.model.init_from} lies in --workdir={request.place}, which "
        "--resume=never moves to previous/; use another --workdir"
    )


def _began_with(weights: str, request: Request) -> bool:
    """Return whether this run started with these weights; it has its own checkpoints now."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        stored = read_json(request.workdir / "config.json")["config"]["model"]["init_from"]
        return stored == weights and request.resume != "never"
    return False
