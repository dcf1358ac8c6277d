"""What figures depend on, asked for once."""

import sys
import time

import jax

from largebatch import environment


def test_absent_packages_are_left_out():
    found = environment.versions(["jax", "no-such-distribution"])
    assert found == {"jax": jax.__version__}


def test_a_command_that_is_absent_fails_or_hangs_says_nothing():
    assert environment.said(sys.executable, "-c", "print(' 7 ')") == "7"
    assert environment.said("no-such-command") is None
    assert environment.said(sys.executable, "-c", "raise SystemExit(3)") is None
    began = time.monotonic()
    sleeps = (sys.executable, "-c", "import time; time.sleep(60)")
    assert environment.said(*sleeps, limit_s=0.5) is None
    assert time.monotonic() - began < 30


def test_the_environment_of_a_run():
    found = environment.environment()
    assert found["devices"] == 8
    assert found["versions"]["jax"] == jax.__version__
    assert environment.cpu_model()
