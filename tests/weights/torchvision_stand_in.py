"""Import timm without torchvision, which timm imports for datasets and transforms only."""

import contextlib
import importlib.machinery
import importlib.util
import sys
import types


class AnyName(type):
    """A class that has any attribute."""

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class StandIn(types.ModuleType):
    """A module in which any name is an empty class."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return AnyName(name, (), {})


class Finder:
    """Finds a `StandIn` for each module of torchvision."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def import_timm():
    """Import timm, if necessary with a stand-in that is removed afterwards."""
    if importlib.util.find_spec("timm") is None or importlib.util.find_spec("torchvision"):
        return
    finder = Finder()
    sys.meta_path.append(finder)
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module("timm")
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
