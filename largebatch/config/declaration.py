"""Declaration of an option: default, documentation, range, and effect on the mathematics."""

import dataclasses
from typing import Any, Literal

Kind = Literal["conv", "fc", "bias", "bn"]
"""Kinds of parameter: convolution kernels, head kernel, head bias, BatchNorm scale and bias."""

Range = Literal["above 0", "at least 0", "at least 0 and below 1"]


def option(default: Any, doc: str, *, within: Range | None = None, mathematics: bool = True) -> Any:
    """Return a dataclass field with documentation.

    Args:
      default: default value.
      doc: description of the option.
      within: allowed range of a number; texts are not checked.
      mathematics: whether the option changes the numbers that training computes.
    """
    metadata = {"doc": doc, "within": within, "mathematics": mathematics}
    return dataclasses.field(default=default, metadata=metadata)
