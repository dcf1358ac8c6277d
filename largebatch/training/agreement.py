"""Check that all processes of a run have one program, one configuration and one dataset.

Processes that differ would train a network of neither configuration, or wait for each other in
different collectives. They compare twice: their commands before any of them uses a device, and
their data before the first compilation.

A comparison needs neither a device nor a compiled program. Each process writes a digest to the
key-value store of JAX's coordinator, process 0 reads all digests at once and writes its verdict,
and the others wait for the verdict. These are two requests of at most 200 bytes for each process. A
coordinator answers 8,000 requests a second on two cores, so 2,048 processes take
2 × 2,048 / 8,000 = 0.5 s. Only if digests differ, one process of each kind writes what its digest
covers. Then all processes raise one error that names the hosts, the option or the split, and the
values.
"""

import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import platform
import re
import socket
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import jax
import numpy as np

from largebatch import __version__, data
from largebatch.config import Config
from largebatch.config.schema import common, options
from largebatch.config.sections import Health
from largebatch.environment import versions
from largebatch.errors import ConfigError, DataError, UserError, one_line
from largebatch.fault_tolerance import Watchdog
from largebatch.fault_tolerance.peers import distributed_state, peers_of
from largebatch.parallel.processes import initialise
from largebatch.registry import add_directory, is_reference
from largebatch.training.setup import OpenedRun

if TYPE_CHECKING:  # weights are read by few runs
    from largebatch.weights import Weights

Facts = Mapping[str, str]
"""What a process has: a text for each option, version, split or image."""

_PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "numpy", "pillow", "libtpu"),
    *("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin"),
)
_XLA = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_OTHER_VARIABLES = ("NVIDIA_TF32_OVERRIDE",)
_OWN_TO_A_HOST = re.compile(
    r"(^|_)(cache|dir|dump|log|logging|path|addresse?s?|visible|tracebacks?|pprint|explain|"
    r"default_device)(_|$)"
)
"""In names of JAX's settings and XLA's options: places, devices of a host and printing."""
_SAME_COMMAND = "give all processes the same command, code and environment"
_SAME_DATA = "give all hosts the same copy of the dataset"
_OF = " of the "  # between what is compared and its split
_FILES, _CLASS, _IMAGE = f"files{_OF}", "class ", "image "

_MOST_KINDS = 32
"""Kinds of processes of which process 0 reads what they have, some 30 KB each without names."""
_MOST_VALUES = 3
_SHOWN = 200
_WAIT_MS = 10_000
_numbers = itertools.count()
T = TypeVar("T")


class Store(Protocol):
    """The part of JAX's distributed client that is used."""

    def key_value_set(self, key: str, value: str) -> None: ...
    def key_value_set_bytes(self, key: str, value: bytes) -> None: ...
    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...
    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...
    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes: ...


def check(config: Config, asked: Mapping[str, str]) -> None:
    """Compare program, environment, configuration and command with all other processes.

    Call it after the processes have joined and before any of them uses a device.

    Args:
      config: configuration of this process.
      asked: flags of its command, such as `Request.shared`.

    Raises:
      ConfigError: a process differs or has failed; raised on all processes.
    """
    meeting = _meeting()
    if meeting is None:
        return
    if line := meeting.compare(command_facts(config) | asked, _SAME_COMMAND):
        raise ConfigError(line)


def refuse(
    error: UserError,
    *,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> None:
    """Join the other processes, which would wait for this one, and report its error to them.

    Args:
      error: why this process ends before `check`.
      coordinator: as of ``parallel.processes.initialise``, like the others.
      processes: as above.
      process: as above.
    """
    with contextlib.suppress(UserError), Watchdog().watching() as watchdog:
        initialise(coordinator=coordinator, processes=processes, process=process)
        watchdog.join(peers_of(Health().peer_timeout_s))
        if (meeting := _meeting()) is not None:
            meeting.fail(error)
        raise error


def opened_by_all(
    open_data: Callable[[], OpenedRun], weights: "Weights | None" = None
) -> OpenedRun:
    """Open the data on each process and compare every split with all other processes.

    Args:
      open_data: opens the data of a run.
      weights: the initial weights, which are compared too.

    Raises:
      UserError: the error of ``open_data`` on this process.
      DataError: a process differs or has failed; raised on all processes.
    """
    meeting = _meeting()
    if meeting is None:
        return open_data()
    try:
        opened = open_data()
        facts = data_facts(opened, weights)
    except UserError as error:
        meeting.fail(error)
        raise
    if line := meeting.compare(facts, _SAME_DATA, lambda: _names(opened)):
        raise DataError(line)
    return opened


class Meeting:
    """One comparison of all processes; each process uses it once."""

    def __init__(self, store: Store, process: int, processes: int, name: str) -> None:
        """Write nothing yet.

        Args:
          store: key-value store that all processes share.
          process: number of this process.
          processes: number of processes.
          name: the same on all processes, and different for each comparison.
        """
        self._store, self._process, self._processes = store, process, processes
        self._prefix = f"largebatch/agreement/{name}/"

    def fail(self, error: UserError) -> None:
        """Report that this process ends with an error instead of comparing."""
        self._enter("", one_line(error))
        if self._process == 0:
            self._decide([self._own("", one_line(error))])

    def compare(
        self,
        facts: Facts,
        remedy: str,
        names: Callable[[], Mapping[str, Sequence[str]]] = dict,
    ) -> str:
        """Return how the processes differ, in one line; an empty text if they do not.

        Args:
          facts: what this process has.
          remedy: what to do about a difference.
          names: called only after a difference; returns the names that facts are digests of.
        """
        text = json.dumps(facts)
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self._enter(digest)
        if self._process == 0:
            self._decide(self._entries())
        verdict = json.loads(self._get("verdict"))
        if (asked := verdict.get("asked")) is None:
            return verdict["line"]
        if self._process in asked:
            own = json.dumps([facts, dict(names()) if self._process in asked[:2] else {}])
            self._store.key_value_set_bytes(
                f"{self._prefix}facts/{self._process}", zlib.compress(own.encode())
            )
        if self._process == 0:
            self._explain(asked)
        return f"{self._get('line')}; {remedy}"

    def _enter(self, digest: str, failure: str = "") -> None:
        entry = json.dumps(self._own(digest, failure)[1:])
        self._store.key_value_set(f"{self._prefix}entries/{self._process}", entry)

    def _own(self, digest: str, failure: str) -> tuple[int, str, str, str]:
        return self._process, socket.gethostname(), digest, failure

    def _entries(self) -> list[tuple[int, str, str, str]]:
        """Process 0: return the entries of all processes, or of fewer if one of them failed."""
        began = time.monotonic()
        while True:
            found = sorted(
                (int(key.rpartition("/")[2]), *json.loads(value))
                for key, value in self._store.key_value_dir_get(f"{self._prefix}entries/")
            )
            if len(found) == self._processes or any(failure for *_, failure in found):
                return found
            time.sleep(min(0.5, 0.002 + 0.1 * (time.monotonic() - began)))

    def _decide(self, entries: Sequence[tuple[int, str, str, str]]) -> None:
        """Process 0: write the verdict."""
        self._hosts = {process: host for process, host, *_ in entries}
        failed = [process for process, *_, failure in entries if failure]
        self._alike = alike({process: digest for process, _, digest, _ in entries})
        verdict: dict[str, object] = {"line": ""}
        if failed:
            line = next(failure for *_, failure in entries if failure)
            who = _who(failed, self._hosts, self._processes)
            verdict = {"line": f"{who} did not get this far: {line}"}
        elif len(self._alike) > 1:
            verdict = {"asked": [same[0] for same in self._alike[:_MOST_KINDS]]}
        self._store.key_value_set(f"{self._prefix}verdict", json.dumps(verdict))

    def _explain(self, asked: Sequence[int]) -> None:
        """Process 0: read what one process of each kind has, and write the line."""
        kinds = []
        for process, same in zip(asked, self._alike, strict=False):
            stored = self._get_bytes(f"facts/{process}")
            kinds.append(Kind(same, *json.loads(zlib.decompress(stored))))
        self._store.key_value_set(f"{self._prefix}line", explain(kinds, self._hosts))

    def _get(self, key: str) -> str:
        return _patiently(self._store.blocking_key_value_get, f"{self._prefix}{key}")

    def _get_bytes(self, key: str) -> bytes:
        return _patiently(self._store.blocking_key_value_get_bytes, f"{self._prefix}{key}")


@dataclass(frozen=True)
class Kind:
    """Processes that have the same facts."""

    processes: tuple[int, ...]
    facts: Facts
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The names that a fact is a digest of, by fact."""


def alike(values: Mapping[int, Any]) -> list[tuple[int, ...]]:
    """Return the processes that have the same value, the most frequent value first.

    Args:
      values: by process; in equal numbers, the value of the first process comes first.
    """
    found: dict[Any, list[int]] = {}
    for process, value in sorted(values.items()):
        found.setdefault(value, []).append(process)
    return sorted(map(tuple, found.values()), key=lambda same: (-len(same), same[0]))


def explain(kinds: Sequence[Kind], hosts: Mapping[int, str]) -> str:
    """Return in one line how processes differ: which hosts, in what, and the values.

    Args:
      kinds: the processes by what they have; the most frequent kind first.
      hosts: name of the host of each process.
    """
    keys = dict.fromkeys(key for kind in kinds for key in kind.facts)
    first, *others = [key for key in keys if len({kind.facts.get(key) for kind in kinds}) > 1]
    what, _, split = first.partition(_OF)
    files = _FILES + split
    lines = [_values_that_differ(first, kinds, hosts)]
    if what.startswith(_IMAGE):
        if name := dict(enumerate(kinds[0].names.get(files, ()))).get(int(what.split()[1])):
            lines.append(f"its file is {name!r}")
    elif not what.startswith(_CLASS) and (names := _names_that_differ(files, kinds, hosts)):
        lines = [*lines, names] if first != files else [names]
        others = [key for key in others if key != files]
    if rest := [key for key in others if not key.startswith((_CLASS, _IMAGE))]:
        more = f" and {len(rest) - _MOST_VALUES:,} more" if len(rest) > _MOST_VALUES else ""
        lines.append(f"also different: {', '.join(rest[:_MOST_VALUES])}{more}")
    return "; ".join(lines)


def _values_that_differ(key: str, kinds: Sequence[Kind], hosts: Mapping[int, str]) -> str:
    by_value: dict[str, list[int]] = {}
    for kind in kinds:
        by_value.setdefault(kind.facts.get(key, "nothing"), []).extend(kind.processes)
    # The most frequent value comes last; that of the first process if there is a tie.
    *others, (usual, have) = sorted(
        by_value.items(), key=lambda each: (len(each[1]), -min(each[1]))
    )
    words = [
        f"{_who(processes, hosts)} {_have(processes)} {_short(value)}"
        for value, processes in others[:_MOST_VALUES]
    ]
    if len(others) > _MOST_VALUES:
        words.append(f"{len(others) - _MOST_VALUES:,} more values")
    who = f"{len(have):,} others" if len(have) > 1 else _who(have, hosts)
    return f"{key}: {', '.join(words)}, {who} {_have(have)} {_short(usual)}"


def _names_that_differ(files: str, kinds: Sequence[Kind], hosts: Mapping[int, str]) -> str:
    """Return which names one kind of processes lacks or has alone; '' if that is not known."""
    usual, other = kinds[0], next((kind for kind in kinds[1:] if files in kind.names), None)
    if other is None or files not in usual.names:
        return ""
    mine, theirs = Counter(usual.names[files]), Counter(other.names[files])
    parts = []
    if lacking := mine - theirs:
        parts.append(f"{'lacks' if len(other.processes) == 1 else 'lack'} {_first_of(lacking)}")
    if only := theirs - mine:
        parts.append(f"{_have(other.processes)} {_first_of(only)} alone")
    return f"{files}: {_who(other.processes, hosts)} {' and '.join(parts)}" if parts else ""


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _first_of(names: Mapping[str, int]) -> str:
    first, *others = sorted(names)
    return f"{first!r}" + (f" and {len(others):,} more" if others else "")


def _who(processes: Sequence[int], hosts: Mapping[int, str], total: int | None = None) -> str:
    first = min(processes)
    if len(processes) == 1:
        return f"{hosts[first]} (process {first})"
    return (
        f"{len(processes):,} of {total or len(hosts):,} processes (the first is {hosts[first]}, "
        f"process {first})"
    )


def _have(processes: Sequence[int]) -> str:
    return "has" if len(processes) == 1 else "have"


def command_facts(config: Config) -> dict[str, str]:
    """Return what a process would run: program, versions, environment and options.

    Options that may differ between hosts are left out; see ``config.values.option``.
    """
    facts = {"largebatch": __version__} | _sources() | {"Python": platform.python_version()}
    facts |= versions(_PACKAGES)
    facts |= _settings()
    facts |= {key: repr(value) for key, value in common(config).items()}
    return facts | _own_modules(config)


def data_facts(opened: OpenedRun, weights: "Weights | None" = None) -> dict[str, str]:
    """Return the devices of this process and what identifies each split of the data.

    These are number of examples, class names, names of files, and a sample of the images and
    labels, see `data.sampled`.
    """
    own = [each for each in opened.devices if each.process_index == jax.process_index()]
    facts = {"devices": f"{len(own)} × {own[0].device_kind if own else 'none'}"}
    if weights is not None:
        facts["model.init_from"] = _digest(weights.params, weights.stats)
    for split, source in _splits(opened).items():
        of = _OF + split
        facts[f"examples{of}"] = f"{len(source):,}"
        facts[f"number of classes{of}"] = f"{len(source.classes):,}"
        facts |= {f"{_CLASS}{i}{of}": repr(name) for i, name in enumerate(source.classes)}
        facts[f"mean and deviation{of}"] = f"{source.mean} and {source.std}"
        facts[_FILES + split] = f"those of hash {data.identity(source)}"
        for example, text in data.sampled(source, opened.config.run.seed):
            facts[f"{_IMAGE}{example}{of}"] = text
    return facts


def _splits(opened: OpenedRun) -> dict[str, data.Source]:
    """Return the splits by name; all stages read the same."""
    train, validation = opened.splits[0]
    further = {f"validation set {name}": each for name, each in opened.further_sets[0].items()}
    return {"train split": train, "validation split": validation} | further


def _names(opened: OpenedRun) -> dict[str, Sequence[str]]:
    """Return the names of the files of each split that can list them."""
    return {
        _FILES + split: source.names()
        for split, source in _splits(opened).items()
        if hasattr(source, "names")
    }


def _sources() -> dict[str, str]:
    """Return a hash of each source file of the package."""
    package = Path(data.__file__).parents[1]
    return {
        path.relative_to(package.parent).as_posix(): _hash(path.read_bytes())
        for path in sorted(package.rglob("*.py"))
    }


def _settings() -> dict[str, str]:
    """Return JAX's settings and XLA's options in the environment, without places on a host."""
    facts = {
        name: str(value)
        for name, value in sorted(jax.config.values.items())
        if not _OWN_TO_A_HOST.search(name)
    }
    for variable in _XLA:
        for word in os.environ.get(variable, "").split():
            name, _, value = word.partition("=")
            if not _OWN_TO_A_HOST.search(name):
                facts[f"{variable} {name}"] = repr(value)
    return facts | {name: os.environ[name] for name in _OTHER_VARIABLES if name in os.environ}


def _own_modules(config: Config) -> dict[str, str]:
    """Return a hash of the file of each module that the options name as MODULE:FUNCTION."""
    facts = {}
    for key, value, _ in options(config):
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and is_reference(":".join(text.split(":")[:2])):
                module = text.partition(":")[0]
                add_directory(Path.cwd())
                if (file := _file_of(module)) is not None:
                    facts[f"module {module} of {key}"] = _hash(file.read_bytes())
    return facts


def _file_of(module: str) -> Path | None:
    """Return the file of a module; None if there is no such module, as for ``tfds:NAME``."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # the import of its package may raise anything, and is reported later
        return None
    file = Path(spec.origin) if spec is not None and spec.origin else None
    return file if file is not None and file.is_file() else None


def _digest(*trees: object) -> str:
    """Return a hash of all bits of trees of arrays."""
    digest = hashlib.blake2b(digest_size=8)
    for leaf in jax.tree.leaves(trees):
        digest.update(np.ascontiguousarray(leaf))
    return digest.hexdigest()


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _meeting() -> Meeting | None:
    """Return the next comparison; None if this process is the only one."""
    joined = distributed_state()
    if joined.client is None or joined.num_processes == 1:
        return None
    return Meeting(joined.client, joined.process_id, joined.num_processes, str(next(_numbers)))


def _patiently(get: Callable[[str, int], T], key: str) -> T:
    """Wait for a value as long as it takes: another process may index its data for an hour."""
    while True:
        try:
            return get(key, _WAIT_MS)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
