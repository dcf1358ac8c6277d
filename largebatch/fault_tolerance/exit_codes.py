"""Exit codes, for launchers that requeue, and how a process ends with one."""

import contextlib
import os
import select
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from largebatch.environment import discard
from largebatch.errors import UserError

FAILED = 1
"""A defect of the program; the traceback shows where."""
MISTAKE = 2
"""An error that the user can fix; one line names the fix."""
PEER = 69
"""Another process of the run ended first (EX_UNAVAILABLE); the same command resumes."""
HUNG = 70
"""No progress within the limit of a section (EX_SOFTWARE); the same command resumes."""
PREEMPTED = 75
"""Stopped by a signal or a time limit (EX_TEMPFAIL); the same command resumes."""
INTERRUPTED = 130
"""Ctrl-C in a command that has nothing to save (128 + SIGINT)."""
UNREAD = 141
"""What read the output of a command, such as ``head``, has ended (128 + SIGPIPE)."""

RESUMES = "the same command resumes"
_SHOW_CURSOR = "\x1b[?25h"


class Interrupted(Exception):
    """The run was asked to stop; raised at a point where nothing is lost."""

    def __init__(self, reason: str, then: str = RESUMES) -> None:
        """Store the ``reason``; ``then`` says what to do next."""
        super().__init__(reason)
        self.then = then


class PeerError(UserError):
    """Another process of the run has ended."""


def exit_code(run: Callable[[], int | None]) -> int:
    """Call ``run`` and return the exit code of the process; print its error, if any.

    Args:
      run: what the process does; may return an exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # paths may have bytes that are not UTF-8
            stream.reconfigure(errors="backslashreplace")
    try:
        return run() or 0
    except Interrupted as reason:
        report(f"stopped ({reason}); {reason.then}")
        return PREEMPTED
    except KeyboardInterrupt:  # in a command without a watchdog
        report("interrupted")
        return INTERRUPTED
    except UserError as error:
        report(f"error: {error}")
        return PEER if isinstance(error, PeerError) else MISTAKE
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            return UNREAD
        # Caught so that `leave` ends this process: one of several must not wait for the others.
        traceback.print_exc()
        return FAILED


def leave(code: int) -> NoReturn:
    """End this process; one of several that fails does not wait for the other processes."""
    jax = sys.modules.get("jax")  # absent if the command line was refused
    if code and jax is not None and jax.distributed.is_initialized():
        end_now(code)
    sys.exit(code)


def end_now(code: int) -> NoReturn:
    """End this process from any thread, without waiting for another one."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            if stream.isatty():
                stream.write(_SHOW_CURSOR)  # a live display may have hidden it
            stream.flush()
    os._exit(code)


def _is_unread() -> bool:
    """Return whether standard output is a pipe that nothing reads; nothing is printed then."""
    output = select.poll()
    output.register(sys.stdout.fileno())
    unread = any(event & select.POLLERR for _, event in output.poll(0))
    if unread:
        discard(sys.stdout)
    return unread


def report(text: str) -> None:
    """Print a line on standard error, if that is possible."""
    with contextlib.suppress(Exception):
        print(text, file=sys.stderr, flush=True)
