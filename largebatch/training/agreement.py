"""Check that all processes of a run have one program, one configuration and one dataset.

Processes that differ would train a network of neither configuration, or wait for each other in
different collectives. They compare twice: their commands before any of them uses a device, and
their data before the first compilation.

A comparison needs neither a device nor a compiled program. Process 0 writes what it has, and a
digest of it, to the key-value store of JAX's coordinator. Every process compares its own with that,
which takes the digest alone if they are equal, and writes how it differs. Process 0 reads these
entries and writes the verdict. These are three requests of at most 300 bytes for each process. A
coordinator answers 8,000 requests a second on two cores, so 2,048 processes take
3 × 2,048 / 8,000 = 0.8 s.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from largebatch.training.run import Run

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
_SHOWN = 200  # characters of a value
_WAIT_MS = 10_000
_numbers = itertools.count()


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


def opened_by_all(open_data: Callable[[], Run], weights: "Weights | None" = None) -> Run:
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
    if line := meeting.compare(facts, _SAME_DATA):
        raise DataError(line)
    return opened


class Meeting:
    """One comparison of all processes; each process uses it once."""

    def __init__(self, store: Any, process: int, processes: int, name: str) -> None:
        """Write nothing yet.

        Args:
          store: JAX's distributed client, whose key-value store all processes share.
          process: number of this process.
          processes: number of processes.
          name: the same on all processes, and different for each comparison.
        """
        self._store, self._process, self._processes = store, process, processes
        self._prefix = f"largebatch/agreement/{name}/"
        self._who = f"{socket.gethostname()} (process {process})"

    def fail(self, error: UserError) -> None:
        """Report that this process ends with an error instead of comparing."""
        line = f"{self._who} did not get this far: {one_line(error)}"
        if self._process == 0:
            self._set("facts", json.dumps([self._who, {}]))
            self._set("digest", "")
            self._set("verdict", line)
        else:
            self._enter(failure=line)

    def compare(self, facts: Facts, remedy: str) -> str:
        """Return how the processes differ, in one line; an empty text if they do not.

        Args:
          facts: what this process has.
          remedy: what to do about a difference.
        """
        text = json.dumps(facts)
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        if self._process == 0:
            self._set("facts", json.dumps([self._who, facts]))
            self._set("digest", digest)
            self._set("verdict", _verdict(self._entries(), self._processes, remedy))
        elif self._get("digest") == digest:
            self._enter()
        else:
            first, others = json.loads(self._get("facts"))
            self._enter(difference=explain(facts, self._who, others, first))
        return self._get("verdict")

    def _enter(self, difference: str = "", failure: str = "") -> None:
        self._set(f"entries/{self._process}", json.dumps([difference, failure]))

    def _entries(self) -> Sequence[tuple[str, str]]:
        """Return the entries of all other processes, or of fewer if one of them failed."""
        began = time.monotonic()
        while True:
            stored = self._store.key_value_dir_get(f"{self._prefix}entries/")
            stored = sorted(stored, key=lambda item: int(item[0].rpartition("/")[2]))
            found = [json.loads(value) for _, value in stored]
            if len(found) == self._processes - 1 or any(failure for _, failure in found):
                return found
            time.sleep(min(0.5, 0.002 + 0.1 * (time.monotonic() - began)))

    def _set(self, key: str, value: str) -> None:
        self._store.key_value_set(f"{self._prefix}{key}", value)

    def _get(self, key: str) -> str:
        """Wait for a value as long as it takes: another process may index data for an hour."""
        while True:
            try:
                return self._store.blocking_key_value_get(f"{self._prefix}{key}", _WAIT_MS)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise


def explain(own: Facts, who: str, others: Facts, first: str) -> str:
    """Return in one line how a process differs from process 0; '' if it does not.

    Args:
      own: facts of the process.
      who: names the process.
      others: facts of process 0.
      first: names process 0.
    """
    differing = [key for key in {**others, **own} if own.get(key) != others.get(key)]
    if not differing:
        return ""
    key = differing[0]
    values = [facts.get(key, "nothing") for facts in (own, others)]
    one, other = (v if len(v) <= _SHOWN else f"{v[:_SHOWN]}…" for v in values)
    return f"{key}: {who} has {one}, {first} has {other}"


def _verdict(entries: Sequence[tuple[str, str]], processes: int, remedy: str) -> str:
    """Return the line that all processes raise; '' if none has failed and none differs."""
    failures = [failure for _, failure in entries if failure]
    if failures:
        return failures[0]
    differing = [difference for difference, _ in entries if difference]
    if not differing:
        return ""
    count = ""
    if processes > 2:
        count = f"; {len(differing):,} of {processes:,} processes differ from process 0"
    return f"{differing[0]}{count}; {remedy}"


def command_facts(config: Config) -> dict[str, str]:
    """Return what a process would run: program, versions, environment and options.

    Options that may differ between hosts are left out; see ``config.values.option``.
    """
    facts = {"largebatch": __version__} | _sources() | {"Python": platform.python_version()}
    facts |= versions(_PACKAGES)
    facts |= _settings()
    facts |= {key: repr(value) for key, value in common(config).items()}
    return facts | _own_modules(config)


def data_facts(opened: Run, weights: "Weights | None" = None) -> dict[str, str]:
    """Return the devices of this process and what identifies each split of the data.

    These are number of examples, class names, names of files, and a sample of the images and
    labels, see `data.sampled`.
    """
    own = [each for each in opened.devices if each.process_index == jax.process_index()]
    facts = {"devices": f"{len(own)} × {own[0].device_kind if own else 'none'}"}
    if weights is not None:
        facts["model.init_from"] = _digest(weights.params, weights.stats)
    for split, dataset in _splits(opened).items():
        source = dataset.source
        of = f" of the {split}"
        facts[f"examples{of}"] = f"{len(source):,}"
        facts[f"number of classes{of}"] = f"{len(source.classes):,}"
        facts |= {f"class {i}{of}": repr(name) for i, name in enumerate(source.classes)}
        facts[f"mean and deviation{of}"] = f"{source.mean} and {source.std}"
        facts[f"files{of}"] = f"those of hash {data.identity(source)}"
        for example, text in data.sampled(source, opened.config.run.seed):
            name = "/".join(source.where(example).split("/")[-2:])  # the directory may differ
            facts[f"image {example}{of}"] = f"{name}, {text}"
    return facts


def _splits(opened: Run) -> dict[str, data.Dataset]:
    """Return the splits by name; all stages read the same."""
    train, validation, further = opened.splits[0]
    sets = {f"validation set {name}": each for name, each in further.items()}
    return {"train split": train, "validation split": validation} | sets


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
