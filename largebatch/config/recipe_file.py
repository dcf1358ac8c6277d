"""A recipe is a Python file with a ``get_config()``."""

import difflib
import importlib.util
import re
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from largebatch.environment import ROOT
from largebatch.errors import ConfigError
from largebatch.registry import add_directory

# A Path has made one slash of two: https:/host, gs:/bucket. A single letter is a drive.
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_FEW = 3  # recipes that a hint names


def find(name: str | Path) -> Path:
    """The file of a recipe, from its path or its bare name.

    A file that exists is taken as it is. What exists neither here nor in the checkout comes back
    unchanged, for `execute` to refuse with a hint.

    Args:
      name: a path, or a name such as ``digits``: ``configs/digits.py`` here or in the checkout.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    candidates = [path]
    if len(path.parts) == 1:
        candidates = [Path("configs") / path.with_suffix(".py")]
    for each in candidates:
        if each.is_file():
            return each
        if not each.is_absolute() and (ROOT / each).is_file():
            return ROOT / each
    return path


def execute(path: Path) -> tuple[Mapping[str, Any], types.ModuleType]:
    """Run a recipe; what its ``get_config()`` returns, and the module.

    Args:
      path: a file, or a bare name as of `find`.

    Raises:
      ConfigError: no such file, or it raises, with the line; or it has no configuration.
    """
    path = find(path)
    _check_local(path)
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    add_directory(path.parent)  # for the user's own modules beside it
    # A recipe leaves no cache behind.
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise ConfigError(
                f"{path} has no get_config(); add one that returns default_config() changed"
            )
        result = module.get_config()
    except ConfigError:
        raise
    except SyntaxError as error:
        raise ConfigError(f"{path} line {error.lineno}: {error.msg}; fix the file") from error
    except (Exception, SystemExit) as error:
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"{path} line {lines[-1] if lines else '?'} raised {type(error).__name__}: {first}; "
            "fix the file"
        ) from error
    finally:
        sys.dont_write_bytecode = written
    if not isinstance(result, Mapping | ConfigDict):
        raise ConfigError(
            f"{path}: get_config() returned {type(result).__name__}, not a configuration"
        )
    return result, module


def _check_local(path: Path) -> None:
    """Raises a ConfigError unless a path is that of a Python file on this machine."""
    form = "give a local Python file with get_config()"
    if _ELSEWHERE.match(str(path)):
        raise ConfigError(
            f"{path} is no file of this machine, and a recipe is run: get it, read it, and {form}"
        )
    if path.suffix == ".py" and path.is_file():
        return
    if path.is_symlink() and not path.exists():
        raise ConfigError(f"{path} is a link to {path.readlink()}, which is not there; {form}")
    if path.exists():
        kind = "a folder" if path.is_dir() else "a file" if path.is_file() else "a pipe or a device"
        name = "" if path.suffix == ".py" else " without the suffix .py"
        raise ConfigError(f"{path} is {kind}{name}; {form}")
    named = str(path.parent) != "." and path.parent.is_dir()
    folder = path.parent if named else Path("configs")
    if not folder.is_dir():
        folder = ROOT / "configs"
    recipes = {p.stem: p for p in sorted(folder.glob("*.py"))}
    alike = [str(p) for stem, p in recipes.items() if path.stem and path.stem in stem]
    if alike:
        hint = f"did you mean {' or '.join(alike[:_FEW])}?"
    elif recipes and (near := difflib.get_close_matches(path.stem, recipes, n=1)):
        hint = f"did you mean {recipes[near[0]]}?"
    else:
        hint = f"{form}; python scripts/recipes.py lists those that are here" if recipes else form
    raise ConfigError(f"no recipe file {path}; {hint}")
