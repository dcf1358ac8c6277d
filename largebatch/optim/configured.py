"""Helpers that convert options of the section ``optimizer`` to arguments of optimizers."""

from collections.abc import Collection
from typing import Any

from largebatch.optim.momentum import Mask
from largebatch.optim.norms import Total
from largebatch.optim.parameters import mask

_SKIPPED = ("bn", "bias")  # default kinds without weight decay


def chosen(value: Any, otherwise: Any) -> Any:
    """Return ``value``, or ``otherwise`` if ``value`` is ``auto``."""
    return otherwise if value == "auto" else value


def skipping(kinds: Collection[str] | str) -> Mask:
    """Return a mask that excludes kinds of parameter; ``auto``: BatchNorm and biases."""
    skipped = chosen(kinds, _SKIPPED)
    return lambda params: mask(params, skipped)


def shared(options: Any, total: Total | None, decay_skip: Collection[str]) -> dict[str, Any]:
    """Return the arguments that all optimizers have in common.

    Args:
        options: The section ``optimizer``.
        total: See `norms_in`.
        decay_skip: Kinds of parameter without weight decay, or ``auto``.
    """
    return {
        # With a weight decay of 0, updates do not read the parameters for it.
        "decay_mask": skipping(decay_skip) if options.weight_decay else False,
        "layout": options.layout,
        "total": total,
    }
