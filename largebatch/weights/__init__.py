"""Weights of runs and checkpoints, and files of PyTorch, timm, Hugging Face and ONNX."""

from largebatch.weights.exporting import FORMATS, Format, Written, export, format_of
from largebatch.weights.fine_tuning import beginning, initial
from largebatch.weights.reading import read
from largebatch.weights.run import check_no_run
from largebatch.weights.verification import verify
from largebatch.weights.weights import Weights, WeightsError

__all__ = [
    "FORMATS",
    "Format",
    "Weights",
    "WeightsError",
    "Written",
    "beginning",
    "check_no_run",
    "export",
    "format_of",
    "initial",
    "read",
    "verify",
]
