"""FLOPs and bytes of the instructions of a compiled module, and the traffic of all of them.

Estimates from shapes. They are good for the proportions of a step and not for its absolute time:
kernels reach ``Hardware.sustained`` of the roofline; caches, padding, workspaces of libraries and
launches are left out. ResNet-50's step is bound by memory on every current accelerator, so a change
of the network shows in the traffic first, without the device.
"""

import dataclasses
import functools
import math
import re

from largebatch.parallel.clusters import Hardware
from largebatch.planning.hlo import Array, Instruction, Module

_FORMATS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
BACKWARD = "transpose("  # JAX's name for operations of the backward pass
# Instructions that name, view or await the result of another one.
_FREE = re.compile(
    "parameter|constant|tuple|get-tuple-element|bitcast|after-all|partition-id|replica-id"
    "|opt-barrier|(copy|slice|async|call)-(start|update|done)"
    "|(all-reduce|reduce-scatter|all-gather)(-start|-done)?|(send|recv)(-done)?"
)


@dataclasses.dataclass(frozen=True)
class Product:
    """A convolution or matrix product."""

    is_convolution: bool
    """After compilation; a 1×1 convolution may have become a matrix product."""
    is_backward: bool | None
    """None if the compiler kept no trace of the origin."""
    flops: float
    dtype: str
    """float32, float16, bfloat16."""


def products(module: Module, instruction: Instruction) -> list[Product]:
    """Return the products of an instruction, itself or within a fusion; usually none or one."""
    found = []
    for inner in (instruction, *_fused(module, instruction)):
        labelled = inner.opcode == "convolution" or "conv" in inner.target.lower()
        if not labelled and inner.opcode != "dot" and not re.search("gemm|matmul", inner.target):
            continue
        # TPU writes a matrix product as a convolution without axes.
        is_convolution = labelled and any(map(str.isdigit, inner.attribute("dim_labels")))
        operands = module.operand_arrays(inner)[:2]
        arrays = [*operands, inner.arrays[0]]
        flops = convolution_flops if labelled else matmul_flops
        origin = inner.op_name or instruction.op_name
        found.append(
            Product(
                is_convolution=is_convolution,
                is_backward=BACKWARD in origin if origin else None,
                flops=flops(inner, *arrays),
                dtype=_FORMATS.get(operands[0].dtype, "float32"),
            )
        )
    return found


def matmul_flops(instruction: Instruction, left: Array, right: Array, out: Array) -> float:
    """Count two FLOPs per multiply-add: 2·b·m·n·k, from the sizes b·m·k, b·k·n and b·m·n."""
    batches = instruction.attribute("lhs_batch_dims") or _listed(
        instruction.attributes, "lhs_batch_dimensions"
    )
    count = math.prod(left.shape[int(d)] for d in batches.split(",") if d)
    return 2 * math.sqrt(left.size * right.size * out.size / max(1, count))


def convolution_flops(instruction: Instruction, left: Array, right: Array, out: Array) -> float:
    """Count two FLOPs per multiply-add with a pixel of the image; padding and dilation are free.

    cuDNN's backward calls keep the forward convolution's labels and window: the roles of their
    arrays are exchanged first.
    """
    if "BackwardInput" in instruction.target:
        left, out = out, left
    elif "BackwardFilter" in instruction.target:
        right, out = out, right
    labels = re.match(r"(\w+)_(\w+)->(\w+)", instruction.attribute("dim_labels"))
    image, kernel, result = labels.groups()
    window = dict(part.split("=") for part in instruction.attribute("window").split())
    pairs = 1
    for axis in (c for c in image if c.isdigit()):
        i = int(axis)
        pairs *= _pairs(
            left.shape[image.index(axis)],
            right.shape[kernel.index(axis)],
            out.shape[result.index(axis)],
            stride=_along(window, "stride", i, 1),
            padding=_along(window, "pad", i, 0),
            image_dilation=_along(window, "lhs_dilate", i, 1),
            kernel_dilation=_along(window, "rhs_dilate", i, 1),
        )
    channels = right.shape[kernel.index("i")]
    return 2.0 * out.shape[result.index("b")] * out.shape[result.index("f")] * channels * pairs


def moved_bytes(module: Module, instruction: Instruction) -> int:
    """Count bytes read and written; of an operand that a fusion only slices, the slices."""
    if _FREE.fullmatch(instruction.opcode):
        return 0
    if instruction.opcode != "fusion":
        read = sum(array.nbytes for array in module.operand_arrays(instruction))
        return read + instruction.nbytes
    body = module.computations[instruction.called[0]]
    return sum(_read(body, i) for i in body if i.opcode == "parameter") + instruction.nbytes


def seconds(module: Module, instruction: Instruction, hardware: Hardware) -> float:
    """Return the time on a device: the longer of computing and moving, at the sustained rate."""
    computing = sum(
        product.flops / hardware.flops[product.dtype] for product in products(module, instruction)
    )
    moving = moved_bytes(module, instruction) / hardware.bandwidth
    return max(computing, moving) / hardware.sustained


SMALL = 4 * 2**20
"""Bytes below which the launch of a kernel takes longer than its traffic: about 1 µs of an H200."""


@dataclasses.dataclass(frozen=True)
class KernelClass:
    """Kernels of one purpose."""

    kernels: int = 0
    nbytes: int = 0


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes read and written: operands and results of every kernel."""

    kernels: int
    products: int
    """By convolutions and matrix products, with their fusions."""
    forward: int
    """By other kernels of the forward pass."""
    backward: int
    """By other kernels of the backward pass."""
    rest: int
    """By the update, and by kernels without a name."""
    classes: dict[str, KernelClass] = dataclasses.field(default_factory=dict)
    """The same kernels by direction, apart from `SMALL` ones: *sums* reduce, *passes* do not."""

    @property
    def nbytes(self) -> int:
        """Bytes of all kernels."""
        return self.products + self.forward + self.backward + self.rest


def traffic(module: Module) -> Traffic:
    """Return the traffic of one execution of a module."""
    kernels, moved = 0, dict.fromkeys(("products", "forward", "backward", "rest"), 0)
    classes: dict[str, KernelClass] = {}
    for instruction in module.in_order():
        nbytes = moved_bytes(module, instruction)
        if nbytes:
            kind = _kind(module, instruction)
            name = _class(module, instruction, kind, nbytes)
            before = classes.get(name, KernelClass())
            classes[name] = KernelClass(before.kernels + 1, before.nbytes + nbytes)
            kernels += 1
            moved[kind] += nbytes
    return Traffic(kernels=kernels, **moved, classes=dict(sorted(classes.items())))


def _class(module: Module, instruction: Instruction, kind: str, nbytes: int) -> str:
    if kind == "products":
        return kind
    if nbytes < SMALL:
        return f"{kind} small"
    inner = (instruction, *_fused(module, instruction))
    return f"{kind} {'sums' if any(i.opcode == 'reduce' for i in inner) else 'passes'}"


def _kind(module: Module, instruction: Instruction) -> str:
    if products(module, instruction):
        return "products"
    if BACKWARD in instruction.op_name:
        return "backward"
    return "forward" if "jvp(" in instruction.op_name else "rest"


def _fused(module: Module, instruction: Instruction) -> list[Instruction]:
    return list(module.within(instruction)) if instruction.opcode == "fusion" else []


def _read(body: tuple[Instruction, ...], parameter: Instruction) -> int:
    """Count the bytes that a fusion reads of a parameter."""
    users = [i for i in body if parameter.name in i.operands]
    viewed = [
        _read(body, user) if user.opcode == "bitcast" else user.nbytes
        for user in users
        if user.opcode in ("bitcast", "slice", "dynamic-slice")
    ]
    whole = len(viewed) < len(users) or not users
    return parameter.nbytes if whole else min(parameter.nbytes, sum(viewed))


def _along(window: dict[str, str], key: str, axis: int, otherwise: int) -> int:
    """Return a window's number along an axis; of padding, that before the first pixel."""
    text = window.get(key)
    return int(text.split("x")[axis].split("_")[0]) if text else otherwise


@functools.cache
def _pairs(
    image: int,
    kernel: int,
    out: int,
    *,
    stride: int,
    padding: int,
    image_dilation: int,
    kernel_dilation: int,
) -> int:
    """Count the (output, kernel) positions along one axis that meet a pixel."""
    count = 0
    for o in range(out):
        for k in range(kernel):
            place = o * stride + k * kernel_dilation - padding
            count += place % image_dilation == 0 and 0 <= place // image_dilation < image
    return count


def _listed(text: str, key: str) -> str:
    match = re.search(rf'"{key}":\[([^\]]*)\]', text)
    return match[1].replace('"', "") if match else ""
