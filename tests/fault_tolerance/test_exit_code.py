"""How a command that fails ends."""

import subprocess
import sys

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


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        # More than a pipe holds, so that the second print meets the end of the reader.
        ("sys.exit(exit_code(lambda: [print('x' * 70_000) for _ in range(3)] and None))", 141),
        ("c = Console()\nfor _ in range(3): c.note('x' * 70_000)\nsys.exit(7)", 7),
    ],
    ids=["a command ends", "a run goes on"],
)
def test_output_that_nothing_reads(code, ends):
    imports = (
        "import sys\nfrom largebatch.fault_tolerance import exit_code\n"
        "from largebatch.tracking import Console\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", imports + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", ends)
