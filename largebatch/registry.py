"""Objects that options select by name, or as ``package.module:name``."""

import ast
import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.errors import ConfigError, did_you_mean, one_line, shown


def check(
    name: str, known: Iterable[str], option: str, *, own: str = "package.module:function"
) -> None:
    """Check that a name is known or has the form ``package.module:name``, without import.

    Args:
      name: the name.
      known: the names of the program.
      option: the option that has this value, for messages.
      own: how users refer to their own objects, for messages; empty: they cannot.

    Raises:
      ConfigError: it is neither; the message gives the nearest known name.
    """
    known = list(known)
    if name in known or (own and is_reference(name)):
        return
    hint = did_you_mean(name, known)
    if own:
        asks = "?" * hint.endswith("?")
        hint = f"{hint.removesuffix('?')}, or your own as {own}{asks}"
    raise ConfigError(f"{option}={name!r}: {hint}")


def resolve(name: str, entries: Mapping[str, str], option: str) -> Any:
    """Import the object of a name.

    Args:
      name: a name of ``entries``, or the user's own ``package.module:name``.
      entries: ``package.module:name`` by name. A name is imported on first use, since its module
        may import heavy packages.
      option: the option that has this value, for messages.

    Raises:
      ConfigError: there is no such name, or the module cannot be imported.
    """
    check(name, entries, option)
    return imported(entries.get(name, name), option)


def is_reference(name: str) -> bool:
    """Return whether ``name`` has the form ``package.module:name``."""
    module, colon, attribute = name.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def reference_of(value: Any, option: str) -> str:
    """Return ``package.module:name`` of a function or class, by which a run imports it.

    Args:
      value: a function or class at the top level of a module, which may be ``__main__``.
      option: the option that gets it, for messages.

    Raises:
      ConfigError: it has no such name.
    """
    name = getattr(value, "__qualname__", "")
    full = getattr(value, "__module__", None) or ""
    for module in (full.partition(".")[0], full):  # optax:sgd, not optax._src.alias:sgd
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is value:
            return f"{module}:{name}"
    raise ConfigError(
        f"{option}: expected a text, a number, or a function or class at the top level of a "
        f"module, got {value!r}; give it a name there"
    )


def imported(reference: str, option: str) -> Any:
    """Import ``package.module:name`` and return the object.

    For users' own objects, the search path is ``sys.path`` with the working directory and the
    directory of the recipe (see `add_directory`).

    Args:
      reference: ``package.module:name``.
      option: the option that has this value, for messages.

    Raises:
      ConfigError: the module or the object does not exist, or the import fails.
    """
    module, _, attribute = reference.partition(":")
    if not module.startswith(f"{__package__}."):
        add_directory(Path.cwd())
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{option}={reference!r}: importing {module!r} needs the missing package "
                f"{error.name!r}; install it"
            ) from error
        raise ConfigError(
            f"{option}={reference!r}: no module {error.name!r}; add its directory to PYTHONPATH, "
            "or move the module to the recipe's directory"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{option}={reference!r}: importing {module!r} raised {type(error).__name__}: "
            f"{one_line(error)}; fix the module"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            # What the module itself defines, not what it imports.
            names = [
                name
                for name, value in vars(found).items()
                if not name.startswith("_") and getattr(value, "__module__", None) == module
            ]
            raise ConfigError(f"{option}={reference!r}: no {part!r}; {did_you_mean(part, names)}")
        found = getattr(found, part)
    return found


def check_trusted(reference: str, option: str, where: str, trust: Sequence[str]) -> None:
    """Check that the user has named the module of an object that a file names.

    Files may come from anywhere, so a module is never imported only because a file names it.

    Args:
      reference: ``package.module:name``.
      option: the option that has this value in the file, for messages.
      where: the file, for messages.
      trust: what the user has named: modules, their packages, or paths of either (``a/mine.py``),
        whose directory is then added to the import path.

    Raises:
      ConfigError: the user has not named it.
    """
    module = reference.partition(":")[0]
    for word in trust:
        path = Path(word if os.sep in word else word.partition(":")[0]).expanduser()
        is_file = path.suffix == ".py" or len(path.parts) > 1
        if f"{module}.".startswith(f"{path.stem if is_file else path}."):
            if is_file:
                add_directory(path.parent)
            return
    raise ConfigError(
        f"{option}={reference} is code that {where} names, and code is never imported because a "
        f"file names it; review it, then add --trust={module} or the path of that module (with "
        f"train.py, --config.{option}={reference})"
    )


def add_directory(directory: Path) -> None:
    """Append ``directory`` to the import path."""
    text = str(directory.resolve())
    if text not in sys.path:
        sys.path.append(text)


def parse_options(text: str, option: str = "optimizer.options") -> dict[str, Any]:
    """Parse arguments in an option.

    Args:
      text: ``name=value name=value``; the values are Python literals.
      option: the option, for messages.

    Returns:
      The values by name.

    Raises:
      ConfigError: the text does not have this form, or a name occurs twice.
    """
    found: dict[str, Any] = {}
    for part in filter(None, re.split(r"[\s,]+(?=[A-Za-z_]\w*=)", text.strip().rstrip(","))):
        name, equals, value = part.partition("=")
        form = "use name=value name=value"
        if not equals or not name.isidentifier():
            raise ConfigError(f"{option}: got {shown(part)}; {form}")
        if name in found:
            raise ConfigError(f"{option}: {name} is given twice; give it once")
        try:
            found[name] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise ConfigError(
                f"{option}: expected a Python literal for {name}, got {shown(value)}; "
                f'{form}, with quotes around a string: {name}="…"'
            ) from None
    return found
