"""Recipe files: Python files with a ``get_config()`` or a ``get_config(argument)``.

``RECIPE:ARGUMENT`` passes an argument, like the config flags of ml_collections. One ``Path`` holds
the recipe and its argument.
"""

import difflib
import importlib.util
import inspect
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

# Path replaces '//' by '/': https:/host, gs:/bucket. A single letter is a Windows drive.
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_ARGUMENT = re.compile(r"(.+?\.py):(.*)|([\w-]{2,}):((?!/).*)", re.DOTALL)


def split_argument(name: str | Path) -> tuple[str, str | None]:
    """Split a recipe's name into its path or bare name and its argument or None.

    Args:
      name: ``configs/x.py``, ``configs/x.py:ARGUMENT``, ``x`` or ``x:ARGUMENT``. If the whole name
        is a file, there is no argument.
    """
    match = _ARGUMENT.fullmatch(str(name))
    if match is None or Path(name).is_file():
        return str(name), None
    file, argument = match.groups()[:2] if match[1] else match.groups()[2:]
    return file, argument


def label(path: Path) -> str:
    """Return the name of a recipe for display and directory names: ``x`` or ``x_ARGUMENT``."""
    file, argument = split_argument(path)
    words = [Path(file).stem, re.sub(r"[^\w=.,+-]+", "_", argument or "")]
    return "_".join(filter(None, words))


def find(name: str | Path) -> Path:
    """Find the file of a recipe.

    An unknown name is returned unchanged; `execute` raises an error for it.

    Args:
      name: a path, or a name such as ``digits`` for ``configs/digits.py`` in the working directory
        or the checkout, or for ``digits.py``; with or without ``:ARGUMENT``.

    Raises:
      ConfigError: a ``Path`` cannot represent the argument.
    """
    file, argument = split_argument(name)
    if argument is not None:
        found = f"{find(file)}:{argument}"
        if str(Path(found)) != found:
            raise ConfigError(
                f"--config={name}: the recipe's argument {argument!r} has empty or '.' parts "
                "between slashes; remove them"
            )
        return Path(found)
    path = Path(name).expanduser()
    if path.is_file():
        return path
    candidates = [path]
    if len(path.parts) == 1:
        candidates = [Path("configs") / path.with_suffix(".py"), Path(f"{path}.py")]
    for each in candidates:
        if each.is_file():
            return each
        if not each.is_absolute() and (ROOT / each).is_file():
            return ROOT / each
    return path


def execute(path: Path) -> tuple[Mapping[str, Any], types.ModuleType]:
    """Execute a recipe and return the result of its ``get_config()`` and the module.

    Args:
      path: a file or a bare name, with or without ``:ARGUMENT`` (see `find`).

    Raises:
      ConfigError: the file does not exist, raises an exception (the message has the line) or
        returns no configuration; or an argument is missing or unexpected.
    """
    file, argument = split_argument(path)
    path = find(file)
    _check_local(path)
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    add_directory(path.parent)  # for user modules in the recipe's directory
    # Write no __pycache__ beside the recipe.
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise ConfigError(
                f"{path} has no get_config(); add one that returns a modified default_config()"
            )
        _check_argument(path, module.get_config, argument)
        result = module.get_config(*([] if argument is None else [argument]))
    except ConfigError:
        raise
    except SyntaxError as error:
        raise ConfigError(f"{path} line {error.lineno}: {error.msg}; fix the file") from error
    except (Exception, SystemExit) as error:
        lines = [
            f.lineno
            for f in traceback.extract_tb(error.__traceback__)
            if f.filename == module.__file__
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
            f"{path}: expected a configuration from get_config(), got {type(result).__name__}; "
            "return a modified default_config()"
        )
    return result, module


def _check_argument(path: Path, function: Any, argument: str | None) -> None:
    """Raise a ConfigError if the recipe's argument is missing or unexpected."""
    try:
        inspect.signature(function).bind(*([] if argument is None else [argument]))
    except TypeError as error:
        given = "no argument" if argument is None else f"the argument {argument!r}"
        raise ConfigError(
            f"{path}: get_config{inspect.signature(function)} got {given} ({error}); use "
            f"--config={path}{':ARGUMENT' if argument is None else ''}"
        ) from None


def _check_local(path: Path) -> None:
    """Raise a ConfigError unless the path is a Python file on this machine."""
    if path.suffix == ".py" and path.is_file() and not _ELSEWHERE.match(str(path)):
        return
    recipes = [each.stem for each in (ROOT / "configs").glob("*.py")]
    near = difflib.get_close_matches(path.stem, recipes, n=1)
    hint = "use a local Python file with get_config(); a checkout has recipes in configs/"
    raise ConfigError(f"no recipe file {path}; {f'did you mean {near[0]!r}?' if near else hint}")
