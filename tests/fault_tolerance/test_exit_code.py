"""How a command that fails ends, and what it says."""

import pytest

from largebatch.errors import ConfigError
from largebatch.fault_tolerance import Interrupted, PeerError, exit_code
from largebatch.fault_tolerance import exit_codes as codes


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (None, 0, ""),
        (ConfigError("a.b=3 is wrong"), codes.MISTAKE, "error: a.b=3 is wrong\n"),
        (PeerError("process 1 ended"), codes.PEER, "error: process 1 ended\n"),
        (KeyboardInterrupt(), codes.INTERRUPTED, "interrupted\n"),
    ],
)
def test_one_line_and_a_code(failure, code, said, capsys):
    def run():
        if failure is not None:
            raise failure

    assert exit_code(run) == code
    assert capsys.readouterr().err == said


def test_a_command_may_have_a_code_of_its_own():
    assert exit_code(lambda: 3) == 3


def test_a_run_that_was_asked_to_stop_resumes(capsys):
    def run():
        raise Interrupted("SIGTERM")

    assert exit_code(run) == codes.PREEMPTED
    assert capsys.readouterr().err.startswith("stopped (SIGTERM); ")


def test_a_defect_has_its_traceback(capsys):
    def run():
        raise ZeroDivisionError("a defect")

    assert exit_code(run) == codes.FAILED
    assert "Traceback" in capsys.readouterr().err
