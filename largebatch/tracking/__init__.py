"""Console, JSONL log, summary, TensorBoard, MLPerf log and hosted trackers.

This package knows nothing of models, data or JAX: plain Python values go in, files and lines come
out. Only process 0 of a run makes trackers and a real console; every other process gets
`Composite(())` and `Console(quiet=True)`.
"""

from largebatch.tracking.console import Console
from largebatch.tracking.hosted import check_installed, hosted_tracker
from largebatch.tracking.jsonl import JsonlTracker, read_rows
from largebatch.tracking.mlperf import MlperfTracker
from largebatch.tracking.progress import Progress
from largebatch.tracking.summary import Summary
from largebatch.tracking.target import Target
from largebatch.tracking.tensorboard import TensorBoardTracker
from largebatch.tracking.tracker import Composite, Tracker

__all__ = [
    "Composite",
    "Console",
    "JsonlTracker",
    "MlperfTracker",
    "Progress",
    "Summary",
    "Target",
    "TensorBoardTracker",
    "Tracker",
    "check_installed",
    "hosted_tracker",
    "read_rows",
]
