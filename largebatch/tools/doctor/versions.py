"""Whether the installed packages fit together, by what each of them says that it needs."""

import importlib.metadata
import platform
import re
import sys
from collections.abc import Mapping, Sequence

from largebatch.environment import versions
from largebatch.tools.doctor.lines import Line, judged

NAME = "versions"
SHOWN = ("jax", "jaxlib", "flax", "optax")
_PLUGINS = {
    "jax-cuda12-plugin": "cuda12",
    "jax-cuda13-plugin": "cuda13",
    "libtpu": "tpu",
    "jax-rocm7-plugin": "rocm7",
}
"""Distribution to the extra of jax that states its version."""
_PYTHON = (3, 11)


def check() -> Line:
    """What is installed here, and what does not fit."""
    installed = versions((*SHOWN, *_PLUGINS))
    extras = [extra for plugin, extra in _PLUGINS.items() if plugin in installed]
    needs = {"jax": requirements("jax", extras)}
    needs |= {name: requirements(name) for name in ("flax", "optax", "largebatch")}
    known = installed | versions({_name(need) for each in needs.values() for need in each})
    return judge(sys.version_info[:2], platform.python_version(), installed, needs, known)


def requirements(name: str, extras: Sequence[str] = ()) -> list[str]:
    """What an installed distribution needs here, with these of its extras; [] if it is absent."""
    from packaging.requirements import Requirement

    try:
        stated = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = []
    for text in stated:
        need = Requirement(text)
        wanted = ("", *extras)
        if need.marker is None or any(need.marker.evaluate({"extra": each}) for each in wanted):
            found.append(f"{need.name}{need.specifier}")
    return found


def judge(
    python: tuple[int, ...],
    python_text: str,
    shown: Mapping[str, str],
    needs: Mapping[str, Sequence[str]],
    installed: Mapping[str, str],
) -> Line:
    """The line.

    Args:
        python: Major and minor version.
        python_text: The whole version.
        shown: Distribution to version, for people.
        needs: Distribution to its requirements, such as `jaxlib<=0.10.2,>=0.10.1`.
        installed: Distribution to version of all that are needed; a missing one is absent.
    """
    from packaging.requirements import Requirement

    problems = []
    if python < _PYTHON:
        problems.append((f"Python {python_text}", "use Python 3.11 or newer"))
    for name, wanted in needs.items():
        for text in wanted:
            need = Requirement(text)
            have = installed.get(need.name)
            if have is None:
                what = f"{need.name}, which {name} needs, is not installed"
            elif need.specifier.contains(have, prereleases=True):
                continue
            else:
                what = f"{need.name} {have}, but {name} needs {need.specifier}"
            problems.append((what, f"pip install '{need}'"))
    words = [f"Python {python_text}", *(f"{name} {version}" for name, version in shown.items())]
    return judged(NAME, ", ".join(words), list(dict.fromkeys(problems)))


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].rstrip(".")
