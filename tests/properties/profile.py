"""How Hypothesis tries examples here: the same ones every time, with no folder in the tree."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, configuration, settings

# It keeps tables of characters there; the working tree stays as it is.
configuration.set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "largebatch-hypothesis")
PROPERTIES = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
