"""The names of networks, all-reduce schemes, wire formats, trackers and optimizers.

An entry makes a name known to the options, the planner and the documentation. Data
sources are in `largebatch.data.source`. This module does not import JAX.
"""

import dataclasses
import math
from collections.abc import Callable

DEPTHS: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "resnet10": ("basic", (1, 1, 1, 1)),
    "resnet18": ("basic", (2, 2, 2, 2)),
    "resnet34": ("basic", (3, 4, 6, 3)),
    "resnet50": ("bottleneck", (3, 4, 6, 3)),
    "resnet101": ("bottleneck", (3, 4, 23, 3)),
    "resnet152": ("bottleneck", (3, 8, 36, 3)),
}
"""Block type and number of blocks per stage of the ResNets."""

MODELS = {name: f"largebatch.models.resnet:{name}" for name in DEPTHS}
"""Factories ``factory(classes=…, rngs=…, dtype=…)`` that return an ``nnx.Module``."""


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A rule that groups gradients into buckets; each bucket is one reduction in backward."""

    least: Callable[[float], float]
    """Maps ``comm.bucket_mib`` in elements to the number of elements that completes a bucket."""
    separate: bool = True
    """Whether XLA options prevent that reductions are merged."""
    planned: bool = False
    """Whether ``comm.bucket_mib=auto`` chooses the buckets with a model of the network."""


@dataclasses.dataclass(frozen=True)
class WireFormat:
    """A number format of gradients on the wire."""

    dtype: str
    """Name of the JAX dtype; empty: the dtype of the gradients."""
    itemsize: int
    """Bytes of a gradient."""
    narrow: bool = False
    """Whether gradients can overflow because the range is much smaller than that of float32."""


SCHEMES = {
    "bucket": Scheme(lambda elements: elements, planned=True),
    "leaf": Scheme(lambda elements: 0),
    "tree": Scheme(lambda elements: math.inf, separate=False),
}
WIRE_FORMATS = {
    "float32": WireFormat("", 4),
    "bfloat16": WireFormat("bfloat16", 2),
    "float16": WireFormat("float16", 2, narrow=True),
}

TRACKERS = {
    "wandb": "largebatch.tracking.trackers:WandbTracker",
    "mlflow": "largebatch.tracking.trackers:MlflowTracker",
}
"""Factories ``factory(workdir, identity, config, warn)`` that return a `tracking.Tracker`; users'
own are ``package.module:factory`` (see `tracking.trackers.hosted_tracker`)."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule and the options that it uses.

    All rules use ``momentum``, ``momentum_at_peak``, ``weight_decay``, ``clip_norm``,
    ``decay_skip``, ``lr_mults`` and ``update``.
    """

    title: str
    """Display name; a format string for options such as ``{flavour}``."""
    make: str
    """``package.module:function`` of ``options``, ``decay_mask`` and ``norms`` (from
    `optim.norms_in`); an option with the value ``auto`` is not passed, and ``trust_mask`` takes the
    place of ``trust_skip``. The function returns an optax transformation; its update takes
    ``rates`` and its state has a ``report``."""
    options: tuple[str, ...] = ()
    """Further options of the section ``optimizer`` that this rule uses."""


OPTIMIZERS = {
    "lars": Rule(
        "LARS ({flavour})",
        "largebatch.optim.lars:lars",
        ("flavour", "trust_coefficient", "epsilon", "rate", "trust_skip", "nesterov"),
    ),
    "sgd": Rule("SGD", "largebatch.optim.sgd:sgd", ("rate", "nesterov")),
    "lamb": Rule(
        "LAMB",
        "largebatch.optim.lamb:lamb",
        ("second_momentum", "epsilon", "trust_skip"),
    ),
    "rmsprop_sgd": Rule(
        "RMSprop → SGD",
        "largebatch.optim.sgd:rmsprop_sgd",
        ("second_momentum", "epsilon", "rmsprop_rate", "nesterov"),
    ),
}
"""Built-in rules. Other names are ``package.module:factory`` of an optax transformation."""

OF_FACTORIES = (
    "name",
    "options",
    "weight_decay",
    "clip_norm",
    "decay_skip",
    "lr_mults",
    "update",
)
"""The options of the section ``optimizer`` that apply to a factory of an optax transformation."""
