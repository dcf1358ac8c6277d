"""How an option is declared: type, default, meaning, and whether it changes the numbers."""

import dataclasses
from typing import Any, Literal

Kind = Literal["conv", "fc", "bias", "bn"]
"""Kinds of parameter: convolution and head kernels, the head's bias, BatchNorm's scale and bias."""


Range = Literal["above 0", "at least 0", "at least 0 and below 1"]


def option(default: Any, doc: str, *, within: Range | None = None, mathematics: bool = True) -> Any:
    """A dataclass field that carries its documentation.

    Args:
      default: its value unless a recipe changes it.
      doc: what it means.
      within: what its number must be, whatever the other options are; words are not looked at.
      mathematics: whether it changes the numbers that training computes.
    """
    metadata = {"doc": doc, "within": within, "mathematics": mathematics}
    return dataclasses.field(default=default, metadata=metadata)
