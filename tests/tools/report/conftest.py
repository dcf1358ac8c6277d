"""One page for all tests that read one; writing it takes seconds."""

import pytest

from largebatch.tools.report.page import report
from tests.tools.report import made_up


@pytest.fixture(scope="session")
def page_path(tmp_path_factory):
    """The page of a run with everything that there can be."""
    folder = made_up.write(tmp_path_factory.mktemp("whole") / "a run with a rather long name")
    path, _ = report([folder])
    return path
