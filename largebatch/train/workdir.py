"""The directory of a run: making it, and putting an earlier run out of the way."""

from pathlib import Path

from largebatch.errors import UserError


def prepare(workdir: Path, *, anew: bool) -> Path | None:
    """Make ``workdir`` and see that it can be written to.

    Args:
      workdir: the directory.
      anew: move what an earlier run left there to ``previous/N/``; nothing is deleted.

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
    kept = workdir / "previous"
    old = [path for path in workdir.iterdir() if path != kept]
    if not anew or not old:
        return None
    number = 1 + max((int(p.name) for p in kept.glob("*") if p.name.isdigit()), default=0)
    target = kept / str(number)
    target.mkdir(parents=True)
    for path in old:
        path.rename(target / path.name)
    return target
