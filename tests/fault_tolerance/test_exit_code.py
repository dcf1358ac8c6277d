"""How a command that fails ends."""

import pytest

from largebatch.errors import ConfigError
from largebatch.fault_tolerance import Interrupted, PeerError, exit_code
from largebatch.fault_tolerance import exit_codes as codes


@pytest.mark.parametrize(
    ("failure", "code", "printed"),
    [
        (None, 0, ""),
        (ConfigError("a.b=3 is wrong"), codes.MISTAKE, "error: a.b=3 is wrong\n"),
        (PeerError("process 1 ended"), codes.PEER, "error: process 1 ended\n"),
        (Interrupted("SIGTERM"), codes.PREEMPTED, "SIGTERM"),
        (ZeroDivisionError("a defect"), codes.FAILED, "Traceback"),
        (KeyboardInterrupt(), codes.INTERRUPTED, "interrupted\n"),
    ],
)
def test_each_failure_has_its_code(failure, code, printed, capsys):
    def run():
        if failure is not None:
            raise failure

    assert exit_code(run) == code
    assert printed in capsys.readouterr().err
