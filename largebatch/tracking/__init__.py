"""Console, JSONL log, summary, TensorBoard, MLPerf log and hosted trackers.

This package uses neither models, data nor JAX: plain Python values go in, files and lines come out.
Only process 0 of a run has trackers and a real console; every other process has none and
`Console(quiet=True)`.
"""

from largebatch.tracking.callbacks import Callback, CallbackTracker
from largebatch.tracking.console import Console
from largebatch.tracking.jsonl import JsonlTracker, read_rows
from largebatch.tracking.mlperf import MlperfTracker
from largebatch.tracking.summary import Summary, Target
from largebatch.tracking.trackers import (
    TensorBoardTracker,
    Tracker,
    check_installed,
    hosted_tracker,
)

__all__ = [
    "Callback",
    "CallbackTracker",
    "Console",
    "JsonlTracker",
    "MlperfTracker",
    "Summary",
    "Target",
    "TensorBoardTracker",
    "Tracker",
    "check_installed",
    "hosted_tracker",
    "read_rows",
]
