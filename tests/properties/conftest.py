"""Statements of mathematics, tried on some hundred examples each, the same ones every time."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, configuration, settings

# It keeps tables of characters there; the working tree stays as it is.
configuration.set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "largebatch-hypothesis")
settings.register_profile(
    "properties",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("properties")
