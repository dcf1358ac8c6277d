"""The directory of a run: making it, and putting an earlier run out of the way."""

from pathlib import Path

from largebatch.errors import UserError
from largebatch.train.checkpoint_directories import has_checkpoints

OWN = (
    "checkpoints",
    "config.json",
    "evaluation.json",
    "events.jsonl",
    "layers.jsonl",
    "metrics.jsonl",
    "result_*.txt",
    "stacks_*.txt",
    "summary.json",
    "tensorboard",
    "unreadable_*.jsonl",
)
"""What a run writes into its directory: names, or patterns of names."""


def prepare(workdir: Path, *, anew: bool) -> Path | None:
    """Make ``workdir`` and see that it can be written to.

    Args:
      workdir: the directory.
      anew: move what an earlier run left there to ``previous/N/``. Without a checkpoint to resume
        from, that is done in any case. Nothing is deleted, and nothing else is touched.

    Returns:
      Where the earlier run went, or None.

    Raises:
      UserError: it cannot be made or written to.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be written to ({error.strerror}); choose another directory"
        ) from error
    old = sorted(path for name in OWN for path in workdir.glob(name))
    if not old or not (anew or not _has_checkpoint(workdir)):
        return None
    kept = workdir / "previous"
    number = 1 + max((int(p.name) for p in kept.glob("*") if p.name.isdigit()), default=0)
    target = kept / str(number)
    target.mkdir(parents=True)
    for path in old:
        path.rename(target / path.name)
    return target


def _has_checkpoint(workdir: Path) -> bool:
    return has_checkpoints(workdir / "checkpoints")
