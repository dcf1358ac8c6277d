"""The same network in other libraries, in both directions.

    python -m tests.weights.libraries --out records/DATE_export_equality_cpu.json

keeps a record of the differences on this machine, with what is installed here.
"""

import argparse
import contextlib
import datetime
import importlib.machinery
import importlib.util
import platform
import sys
import tempfile
import types
from pathlib import Path

import numpy as np

from largebatch.files import write_json
from largebatch.models import Model
from largebatch.training.description import environment
from largebatch.weights import export, read
from largebatch.weights.verification import (
    LIMIT,
    compared,
    foreign_logits,
)
from tests.weights.samples import SMALL, TINY, sample

SIDE = 64
NETWORKS = {
    "small": SMALL,
    "tiny": TINY,
    "resnet18": Model("resnet18", classes=1000),
    "resnet50": Model("resnet50", classes=1000),
}


class Standing(type):
    """Any attribute of a class is there."""

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class Absent(types.ModuleType):
    """A module in which any name is an empty class."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return Standing(name, (), {})


class Finder:
    """Finds torchvision where there is none."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        pass


@contextlib.contextmanager
def without_torchvision():
    """timm imports torchvision for datasets and transforms; its ResNets need nothing of it."""
    if importlib.util.find_spec("torchvision"):
        yield
        return
    finder = Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def import_timm():
    with without_torchvision():
        import timm
    return timm


def reference(model):
    from tests.weights.torch_reference import ResNet

    depth = int(model.name.removeprefix("resnet"))
    return ResNet(depth, model.classes, model.channels, model.width, model.stem == "small")


def timm_model(model):
    return import_timm().create_model(model.name, num_classes=model.classes)


def transformers_model(model):
    import transformers

    kind, depths, factor = {
        "resnet18": ("basic", (2, 2, 2, 2), 1),
        "resnet50": ("bottleneck", (3, 4, 6, 3), 4),
    }[model.name]
    config = transformers.ResNetConfig(
        num_channels=model.channels,
        embedding_size=model.width,
        hidden_sizes=[factor * model.width * 2**i for i in range(4)],
        depths=depths,
        layer_type=kind,
        num_labels=model.classes,
    )
    return transformers.ResNetForImageClassification(config)


MAKERS = {"torch": reference, "timm": timm_model, "transformers": transformers_model}
"""By the package that must be installed."""
FORMATS = {
    "torch": ("torchvision", "exported.safetensors"),
    "timm": ("timm", "timm"),
    "transformers": ("huggingface", "huggingface"),
    "onnxruntime": ("onnx", "exported.onnx"),
}
CASES = [
    ("small", "torch"),
    ("small", "onnxruntime"),
    ("tiny", "torch"),
    ("tiny", "transformers"),
    ("tiny", "onnxruntime"),
    ("resnet18", "timm"),
    ("resnet50", "timm"),
    ("resnet50", "transformers"),
    ("resnet50", "onnxruntime"),
]


def randomised(module, seed=0):
    """Every array random, as `samples.drawn`; in evaluation mode."""
    import torch

    torch.manual_seed(seed)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(part.weight, 0.5, 1.0)
            torch.nn.init.normal_(part.bias, std=0.1)
            part.running_mean.normal_(std=0.1)
            part.running_var.uniform_(0.5, 1.5)
            part.num_batches_tracked.fill_(17)
        elif isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight, mode="fan_in", nonlinearity="relu")
    return module.eval()


def save(module, library, folder):
    """The module in a file or folder, as its own library keeps it."""
    import torch

    if library == "transformers":
        module.save_pretrained(folder / "foreign")
        return folder / "foreign"
    path = folder / f"foreign_{library}.pth"
    torch.save(module.state_dict(), path)
    return path


def images_of(model, seed=1):
    side = 16 if model.stem == "small" else SIDE
    rng = np.random.default_rng(seed)
    return rng.standard_normal((2, side, side, model.channels), np.float32)


def theirs_to_ours(library, model, folder):
    """Random weights of the library, read by us: weights, the module, the comparison of logits."""
    module = randomised(MAKERS[library](model))
    weights = read(save(module, library, folder))
    images = images_of(model)
    return weights, module, compared(weights, images, foreign_logits(module, images), library)


def ours_to_theirs(library, model, folder):
    """Ours, exported and loaded by the library: what was written, and the comparison."""
    weights = sample(model)
    form, name = FORMATS[library]
    written = export(weights, folder / name, form)
    images = images_of(model)
    if library == "torch":
        from safetensors.torch import load_file

        module = reference(model).eval()
        module.load_state_dict(load_file(written.path))
    else:
        space = {}
        exec("\n".join(written.loading), space)
        module = space["model"]
    return written, compared(weights, images, foreign_logits(module, images), library)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args(arguments).out
    rows = []
    for network, library in CASES:
        if library == "timm":
            import_timm()
        model = NETWORKS[network]
        with tempfile.TemporaryDirectory() as folder:
            found = {"ours to theirs": ours_to_theirs(library, model, Path(folder))[1]}
            if library in MAKERS:
                found["theirs to ours"] = theirs_to_ours(library, model, Path(folder))[2]
        for direction, seen in found.items():
            rows.append(
                {
                    "network": f"{model.name}, width {model.width}, stem {model.stem}, "
                    f"{model.classes} classes",
                    "library": "torch, a module with torchvision's names"
                    if library == "torch"
                    else library,
                    "version": seen.version,
                    "direction": direction,
                    "max_abs_difference": seen.difference,
                    "max_abs_logit": seen.largest,
                    "limit": seen.limit,
                }
            )
            print(rows[-1])
    record = {
        "date": datetime.date.today().isoformat(),
        "command": f"python -m tests.weights.libraries --out {out}",
        "environment": environment() | {"system": platform.system()},
        "images": f"2 of {SIDE}×{SIDE} (small stem: 16×16), normal deviates",
        "limit": f"{LIMIT:g} × max(1, largest logit)",
        "timm": "imported beside a stand-in for torchvision"
        if not importlib.util.find_spec("torchvision")
        else "",
        "comparisons": rows,
    }
    write_json(out, record)


if __name__ == "__main__":
    import jax

    jax.config.update("jax_platforms", "cpu")
    main(sys.argv[1:])
