"""Names that options select: registered entries and users' own ``package.module:name``."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from largebatch.errors import ConfigError, did_you_mean, one_line

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """What users add one of: a model, an optimizer, a data source, a wire format, a tracker.

    An entry is a value, or the text ``package.module:name`` of one that is imported on first use,
    for entries that bring heavy packages.
    """

    def __init__(
        self,
        option: str,
        entries: Mapping[str, T | str] | None = None,
        *,
        own: str = "package.module:function",
    ) -> None:
        """Make a registry.

        Args:
          option: the option that selects an entry, for messages: ``optimizer.name``.
          entries: the first entries.
          own: how users name an object of their own, for messages.
        """
        self.option = option
        self._own = own
        self._entries: dict[str, T | str] = dict(entries or {})

    def register(self, name: str, entry: T) -> T:
        """Add an entry and return it.

        Raises:
          ValueError: the name is taken.
        """
        if name in self._entries:
            raise ValueError(f"{self.option}: {name!r} is registered already")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> T:
        """Return the entry of that name, or the user's own object ``package.module:name``.

        Raises:
          ConfigError: no entry has that name, or the module cannot be imported.
        """
        if name in self._entries:
            entry = self._entries[name]
            return imported(entry, self.option) if isinstance(entry, str) else entry
        self.check(name)
        return imported(name, self.option)

    def check(self, name: str) -> None:
        """Refuse a name that is neither registered nor a ``package.module:name``; import nothing.

        Raises:
          ConfigError: with the nearest registered name.
        """
        if name not in self._entries and not is_reference(name):
            raise ConfigError(
                f"{self.option}={name!r}: {did_you_mean(name, self._entries)}; or name your own as "
                f"{self._own}"
            )

    def __iter__(self) -> Iterator[str]:
        """Iterate over the registered names."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Return the number of registered names."""
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        """Return whether the name is registered; a user's own reference is not."""
        return name in self._entries


def is_reference(name: str) -> bool:
    """Return whether ``name`` has the form ``package.module:name``, all of it identifiers."""
    module, colon, attribute = name.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def imported(reference: str, option: str) -> Any:
    """Import ``package.module:name`` and return the object.

    Modules are found in the working directory, beside the recipe (see `add_directory`) and on
    ``PYTHONPATH``.

    Args:
      reference: the object.
      option: the option that names it, for messages.

    Raises:
      ConfigError: the module or the object does not exist, or importing it fails.
    """
    module, _, attribute = reference.partition(":")
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
            f"{option}={reference!r}: no module {error.name!r}; put its directory on PYTHONPATH or "
            "the module beside the recipe"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{option}={reference!r}: importing {module!r} raised {type(error).__name__}: "
            f"{one_line(error)}; fix the module"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in vars(found) if not name.startswith("_")]
            raise ConfigError(f"{option}={reference!r}: no {part!r}; {did_you_mean(part, names)}")
        found = getattr(found, part)
    return found


def add_directory(directory: Path) -> None:
    """Let modules in ``directory`` be imported, after all others."""
    text = str(directory.resolve())
    if text not in sys.path:
        sys.path.append(text)
