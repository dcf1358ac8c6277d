"""Signals, time limits, hangs, lost processes and health checks of a run."""

from largebatch.fault_tolerance.exit_codes import (
    FAILED,
    HUNG,
    MISTAKE,
    PEER,
    PREEMPTED,
    Interrupted,
    PeerError,
    exit_code,
    leave,
)
from largebatch.fault_tolerance.watchdog import IDLE, Section, Watchdog

__all__ = [
    "FAILED",
    "HUNG",
    "IDLE",
    "MISTAKE",
    "PEER",
    "PREEMPTED",
    "Interrupted",
    "PeerError",
    "Section",
    "Watchdog",
    "exit_code",
    "leave",
]
