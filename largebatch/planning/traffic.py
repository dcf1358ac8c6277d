"""What a compiled step moves through device memory, and in how many kernels.

From the scheduled module alone. ResNet-50's step is bound by memory on every current accelerator,
so that a change to the network shows here first, without noise and without the device. Workspaces
of libraries, and what caches save, are not seen.
"""

import dataclasses

from largebatch.planning import costs
from largebatch.planning.hlo import Instruction, Module


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes read and written, operands and results of every kernel."""

    kernels: int
    products: int
    """By convolutions and matrix products, with what is fused into them."""
    forward: int
    """By other kernels of the forward pass."""
    backward: int
    """By other kernels of the backward pass."""
    rest: int
    """By the update, and by what has no name."""

    @property
    def nbytes(self) -> int:
        """All of them."""
        return self.products + self.forward + self.backward + self.rest


def traffic(module: Module) -> Traffic:
    """Of one execution of a module."""
    kernels, moved = 0, dict.fromkeys(("products", "forward", "backward", "rest"), 0)
    for instruction in module.in_order():
        nbytes = costs.moved_bytes(module, instruction)
        if nbytes:
            kernels += 1
            moved[_kind(module, instruction)] += nbytes
    return Traffic(kernels=kernels, **moved)


def _kind(module: Module, instruction: Instruction) -> str:
    if costs.products(module, instruction):
        return "products"
    if costs.BACKWARD in instruction.op_name:
        return "backward"
    return "forward" if "jvp(" in instruction.op_name else "rest"
