"""What watches over a run: signals, time limits, hangs, and the other processes."""

from largebatch.guard.codes import FAILED, HUNG, MISTAKE, PEER, PREEMPTED
from largebatch.guard.guard import IDLE, Guard, Interrupted, PeerError, exit_code, leave
from largebatch.guard.limits import Section

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
