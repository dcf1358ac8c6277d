"""Signals, time limits, hangs, lost processes and health checks of a run."""

from largebatch.fault_tolerance.exit_codes import FAILED, HUNG, MISTAKE, PEER, PREEMPTED
from largebatch.fault_tolerance.guard import IDLE, Guard, Interrupted, PeerError, exit_code, leave
from largebatch.fault_tolerance.limits import Section

__all__ = [
    "FAILED",
    "HUNG",
    "IDLE",
    "MISTAKE",
    "PEER",
    "PREEMPTED",
    "Guard",
    "Interrupted",
    "PeerError",
    "Section",
    "exit_code",
    "leave",
]
