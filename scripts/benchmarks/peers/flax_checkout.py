"""Flax's ImageNet example in a checkout: it is in no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

from benchmarks.workload import Absent


def example(examples: str, name: str) -> ModuleType:
    """A module of the example.

    Args:
        examples: A checkout of google/flax, its folder `examples`, or that of the example.
        name: Of the module, `input_pipeline` or `models`.

    Raises:
        Absent: It is not there.
    """
    if not examples:
        raise Absent("its code is in no package: give a checkout of google/flax, --flax_examples")
    for inside in ("examples/imagenet", "imagenet", "."):
        path = Path(examples, inside, f"{name}.py")
        if path.is_file():
            spec = importlib.util.spec_from_file_location(f"flax_{name}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise Absent(f"--flax_examples {examples} holds no imagenet/{name}.py")
