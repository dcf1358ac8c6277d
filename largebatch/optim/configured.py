"""What the rules take from the options of the section ``optimizer``."""

from collections.abc import Collection
from typing import Any

from largebatch.optim.momentum import Mask
from largebatch.optim.norms import Total
from largebatch.optim.parameters import mask

_SKIPPED = ("bn", "bias")  # where neither an option nor a flavour says otherwise


def chosen(value: Any, otherwise: Any) -> Any:
    """Return ``value``, or ``otherwise`` where it is ``auto``."""
    return otherwise if value == "auto" else value


def skipping(kinds: Collection[str] | str) -> Mask:
    """Return the mask that skips some kinds of parameter; ``auto``: BatchNorm and biases."""
    skipped = chosen(kinds, _SKIPPED)
    return lambda params: mask(params, skipped)


def shared(options: Any, total: Total | None, decay_skip: Collection[str]) -> dict[str, Any]:
    """Return the arguments that all rules have.

    Args:
        options: The section.
        total: As of `norms_in`.
        decay_skip: Kinds that are not decayed, or ``auto``.
    """
    return {
        # Without any decay nothing is read for it.
        "decay_mask": skipping(decay_skip) if options.weight_decay else False,
        "layout": options.layout,
        "total": total,
    }
