"""One training step of a ResNet of basic blocks, written plainly; the trainer must equal it.

Nothing is shared with the package. Spans are computed one by one in a Python loop; the optimizer
and all averages are NumPy float64. The network computes in the dtype of the parameters given; for
float64 call everything inside `with jax.enable_x64(True):`.

Trees are nested dicts: `stem/{conv,bn}`, `stages/{0..3}/blocks/{0..}/{conv1,bn1,…,downsample_conv,
downsample_bn}` and `head`, with leaves `kernel`, `scale`, `bias`; in statistics `mean`, `var`.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax import lax

Tree = dict[str, Any]

BLOCKS = {6: (1, 1), 10: (1, 1, 1, 1), 18: (2, 2, 2, 2)}


class StepResult(NamedTuple):
    """State after a step and what the step saw; every tree has the dtype of the parameters."""

    params: Tree
    stats: Tree
    velocity: Tree
    gradients: Tree
    loss: float  # mean over the images of the global batch
    correct: int  # images whose label has the largest logit


def flatten(tree: Tree) -> dict[str, Any]:
    """A nested dict as `{"a/b/c": leaf}`."""
    return traverse_util.flatten_dict(tree, sep="/")


def unflatten(flat: dict[str, Any], dtype: Any) -> Tree:
    """Undo `flatten`, casting every leaf."""
    cast = {path: leaf.astype(dtype) for path, leaf in flat.items()}
    return traverse_util.unflatten_dict(cast, sep="/")


def convolve(x: Any, kernel: Any, stride: int, padding: int) -> Any:
    """Cross-correlation of (N, H, W, C) with (kH, kW, C, O); the same zero padding on all sides."""
    layout = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "precision": lax.Precision.HIGHEST}
    return lax.conv_general_dilated(x, kernel, (stride, stride), [(padding, padding)] * 2, **layout)


def relu(x: Any) -> Any:
    """max(x, 0) with derivative 0 at 0, where `jnp.maximum` has one half."""
    # Met in practice: behind a zero-initialised scale a block adds 0 to an identity full of zeros.
    return jnp.where(x > 0, x, 0)


class _Net:
    """Parameters and statistics of one forward pass, and the batch statistics it met."""

    def __init__(
        self,
        params: Tree,
        stats: Tree,
        epsilon: float,
        train: bool,
        frozen: tuple[str, ...] = (),
    ) -> None:
        self.params, self.stats = flatten(params), flatten(stats)
        self.epsilon, self.train, self.frozen = epsilon, train, frozen
        self.batch_stats: dict[str, tuple[Any, Any, int]] = {}

    def conv_bn(self, x: Any, module: str, suffix: str, stride: int, padding: int) -> Any:
        x = convolve(x, self.params[f"{module}conv{suffix}/kernel"], stride, padding)
        path = f"{module}bn{suffix}"
        if self.train and path not in self.frozen:
            mean = jnp.mean(x, axis=(0, 1, 2))
            var = jnp.mean((x - mean) ** 2, axis=(0, 1, 2))
            self.batch_stats[path] = (mean, var, math.prod(x.shape[:3]))
        else:
            mean, var = self.stats[f"{path}/mean"], self.stats[f"{path}/var"]
        x = (x - mean) / jnp.sqrt(var + self.epsilon)
        return x * self.params[f"{path}/scale"] + self.params[f"{path}/bias"]

    def block(self, x: Any, path: str, stride: int) -> Any:
        y = relu(self.conv_bn(x, f"{path}/", "1", stride, padding=1))
        y = self.conv_bn(y, f"{path}/", "2", 1, padding=1)
        if stride != 1 or x.shape[-1] != y.shape[-1]:
            x = self.conv_bn(x, f"{path}/downsample_", "", stride, padding=0)
        return relu(x + y)


def blocks(depth: int) -> Iterator[tuple[str, int, int]]:
    """Path, stage number and stride of every residual block, from input to output."""
    for stage, count in enumerate(BLOCKS[depth], start=1):
        for block in range(count):
            stride = 2 if stage > 1 and block == 0 else 1
            yield f"stages/{stage - 1}/blocks/{block}", stage, stride


def forward(
    params: Tree,
    stats: Tree,
    images: Any,
    *,
    depth: int,
    epsilon: float,
    train: bool,
    frozen: tuple[str, ...] = (),
) -> tuple[Any, dict[str, tuple[Any, Any, int]]]:
    """Logits (N, classes) of already normalised images (N, H, W, C).

    In training BatchNorm uses the mean and biased variance of exactly these images, returned as
    `{path: (mean, variance, values per channel)}`; else, and in `frozen` layers, it uses `stats`.
    """
    net = _Net(params, stats, epsilon, train, frozen)
    x = relu(net.conv_bn(images, "stem/", "", 1, padding=1))
    for path, _, stride in blocks(depth):
        x = net.block(x, path, stride)
    features = jnp.mean(x, axis=(1, 2))
    logits = jnp.dot(features, net.params["head/kernel"], precision=lax.Precision.HIGHEST)
    return logits + net.params["head/bias"], net.batch_stats


def cross_entropy(logits: Any, labels: Any, label_smoothing: float) -> Any:
    """−Σ_c q_c log softmax(z)_c of each image, with q = (1 − s)·onehot + s / classes."""
    one_hot = (labels[:, None] == np.arange(logits.shape[-1])).astype(logits.dtype)
    target = (1 - label_smoothing) * one_hot + label_smoothing / logits.shape[-1]
    return -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)


def normalise(images_uint8: Any, mean: Any, std: Any, params: Tree) -> Any:
    """(x − mean) / std by channel, in units of 0 to 255, computed in the dtype of `params`."""
    dtype = np.result_type(*flatten(params).values())
    return (jnp.asarray(images_uint8, dtype) - jnp.asarray(mean, dtype)) / jnp.asarray(std, dtype)


def in_top(logits: Any, labels: Any, k: int) -> int:
    """How many images have their label among the k largest logits; of equals the first wins."""
    best = np.argsort(-np.asarray(logits), axis=-1, kind="stable")[:, :k]
    return int(np.sum(np.any(best == np.asarray(labels)[:, None], axis=-1)))


def update(
    path: str,
    w: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    *,
    optimizer: str,
    learning_rate: float,
    trust_coefficient: float,
    lars_epsilon: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """New weight and velocity of one parameter, float64.

    Scales and biases are skipped: no weight decay, no trust ratio. `lars_mlperf` is You et al. 2017
    (arXiv:1708.03888, Algorithm 1), with a sum of norms below the fraction; `lars_optax` has the
    norm of the sum. A norm of zero gives ratio 1. LARS' velocity contains the learning rate.
    """
    skipped = path.rsplit("/", 1)[-1] in ("scale", "bias")
    decay = 0.0 if skipped else weight_decay
    direction = g + decay * w
    if optimizer == "sgd":
        v = momentum * v + direction
        return w - learning_rate * (direction + momentum * v if nesterov else v), v
    w_norm, g_norm, direction_norm = (np.sqrt(np.sum(x**2)) for x in (w, g, direction))
    terms = {"lars_mlperf": (g_norm, decay * w_norm), "lars_optax": (direction_norm, 0.0)}
    norm, more = terms[optimizer]
    plain = skipped or w_norm == 0 or norm == 0
    trust = 1.0 if plain else trust_coefficient * w_norm / (norm + more + lars_epsilon)
    v = momentum * v + learning_rate * trust * direction
    return w - v, v


@functools.partial(jax.jit, static_argnums=(4, 5, 6, 7, 8))
@functools.partial(jax.value_and_grad, has_aux=True)
def _span_gradients(
    params: Tree,
    stats: Tree,
    images: Any,
    labels: Any,
    batch: int,
    depth: int,
    epsilon: float,
    label_smoothing: float,
    frozen: tuple[str, ...],
) -> tuple[Any, Any]:
    """Loss of one span, its logits and statistics, and the gradients."""
    net = {"depth": depth, "epsilon": epsilon, "frozen": frozen}
    logits, batch_stats = forward(params, stats, images, train=True, **net)
    # A sum over the span divided by the whole batch: the spans' losses and gradients add up.
    loss = jnp.sum(cross_entropy(logits, labels, label_smoothing)) / batch
    return loss, (logits, batch_stats)


def step(
    params: Tree,
    stats: Tree,
    velocity: Tree,
    images_uint8: Any,
    labels: Any,
    *,
    workers: int,
    span: int,
    depth: int,
    mean: Any,
    std: Any,
    epsilon: float,
    norm_momentum: float,
    unbiased: bool,
    label_smoothing: float,
    factors: Callable[[str], float] = lambda path: 1.0,
    **hyper: Any,
) -> StepResult:
    """One step on `workers` × n images, BatchNorm over `span` workers at a time.

    `hyper` are the keyword arguments of `update`; running statistics are m·r + (1 − m)·(average of
    the spans' batch statistics), the variances times N / (N − 1) when `unbiased`. `factors` gives
    the factor of the learning rate by path; parameters and statistics with 0 stay, and their
    layers normalise as in evaluation.
    """
    batch = len(images_uint8)
    spans, size = workers // span, batch // workers * span

    loss, correct = 0.0, 0
    still = {path for path in (*flatten(params), *flatten(stats)) if not factors(path)}
    frozen = tuple(sorted(path[: -len("/mean")] for path in still if path.endswith("/mean")))
    gradients = {path: np.zeros(np.shape(leaf)) for path, leaf in flatten(params).items()}
    average = {path: np.zeros(np.shape(leaf)) for path, leaf in flatten(stats).items()}
    for first in range(0, batch, size):
        images = normalise(images_uint8[first : first + size], mean, std, params)
        truth = np.asarray(labels[first : first + size])
        (part, (logits, batch_stats)), grads = _span_gradients(
            params, stats, images, truth, batch, depth, epsilon, label_smoothing, frozen
        )
        loss += float(part)
        correct += in_top(logits, truth, 1)
        for path, g in flatten(grads).items():
            if path not in still:
                gradients[path] += np.asarray(g, np.float64)
        for path, (batch_mean, batch_var, n) in batch_stats.items():
            correction = int(n) / (int(n) - 1) if unbiased else 1.0
            average[f"{path}/mean"] += np.asarray(batch_mean, np.float64) / spans
            average[f"{path}/var"] += np.asarray(batch_var, np.float64) * correction / spans

    new_stats, new_params, new_velocity, old_velocity = {}, {}, {}, flatten(velocity)
    for path, r in flatten(stats).items():
        old = np.asarray(r, np.float64)
        moved = norm_momentum * old + (1 - norm_momentum) * average[path]
        new_stats[path] = old if path in still else moved
    for path, leaf in flatten(params).items():
        w, v = np.asarray(leaf, np.float64), np.asarray(old_velocity[path], np.float64)
        new_params[path], new_velocity[path] = w, v
        if path not in still:
            own = hyper | {"learning_rate": factors(path) * hyper["learning_rate"]}
            new_params[path], new_velocity[path] = update(path, w, v, gradients[path], **own)
    results = (new_params, new_stats, new_velocity, gradients)
    return StepResult(*(unflatten(flat, images.dtype) for flat in results), loss, correct)


def evaluate(
    params: Tree, stats: Tree, images_uint8: Any, labels: Any, *, mean, std, label_smoothing, **net
) -> tuple[float, int, int]:
    """Sum of the losses, top-1 and top-5 counts; `net` is depth and epsilon of `forward`."""
    images = normalise(images_uint8, mean, std, params)
    compiled = jax.jit(functools.partial(forward, train=False, **net))
    logits, _ = compiled(params, stats, images)
    losses = np.asarray(cross_entropy(logits, np.asarray(labels), label_smoothing), np.float64)
    return float(losses.sum()), in_top(logits, labels, 1), in_top(logits, labels, 5)


def random_params(
    seed: int, *, depth: int, width: int, channels: int, classes: int, dtype: Any
) -> tuple[Tree, Tree]:
    """Parameters and statistics, none trivially 0 or 1: kernels normal with variance 2 / fan-in
    (head: 1 / fan-in), scales and variances around 1, biases and means around 0.
    """
    rng = np.random.default_rng(seed)
    params, stats = {}, {}

    def conv(module: str, suffix: str, size: int, inputs: int, outputs: int) -> None:
        shape, bn = (size, size, inputs, outputs), f"{module}bn{suffix}"
        kernel = rng.normal(0, math.sqrt(2 / (size * size * inputs)), shape)
        params[f"{module}conv{suffix}/kernel"] = kernel
        params[f"{bn}/scale"] = rng.uniform(0.5, 1.5, outputs)
        params[f"{bn}/bias"] = rng.normal(0, 0.2, outputs)
        stats[f"{bn}/mean"] = rng.normal(0, 0.2, outputs)
        stats[f"{bn}/var"] = rng.uniform(0.5, 1.5, outputs)

    conv("stem/", "", 3, channels, width)
    inputs = width
    for path, stage, stride in blocks(depth):
        outputs = width * 2 ** (stage - 1)
        conv(f"{path}/", "1", 3, inputs, outputs)
        conv(f"{path}/", "2", 3, outputs, outputs)
        if stride != 1 or inputs != outputs:
            conv(f"{path}/downsample_", "", 1, inputs, outputs)
        inputs = outputs
    params["head/kernel"] = rng.normal(0, math.sqrt(1 / inputs), (inputs, classes))
    params["head/bias"] = rng.normal(0, 0.2, classes)
    return unflatten(params, dtype), unflatten(stats, dtype)
