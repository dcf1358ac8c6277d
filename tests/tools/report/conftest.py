"""One page for all tests that read one; writing it takes seconds."""

import pytest

from largebatch.tools.report.provenance import Origin
from largebatch.tools.report.trace import Kernel, Profile
from largebatch.tools.report.write import report
from tests.tools.report import made_up


@pytest.fixture(scope="session")
def profile():
    """Of one kernel."""
    origin = Origin("convolution", "", "models/<b>.py:1 f")
    return Profile((Kernel("conv.1", origin, 0.6, 3),), 1.0, 0.8, 0.1, 0.05)


@pytest.fixture(scope="session")
def page_path(tmp_path_factory, profile):
    """The page of a run with everything that there can be."""
    folder = made_up.write(tmp_path_factory.mktemp("whole") / "a run with a rather long name")
    path, _ = report([folder], profile=profile)
    return path
