"""The watchdog in processes of its own: it ends them."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from largebatch.config.sections import Health
from largebatch.fault_tolerance import Interrupted, Watchdog

ROOT = Path(__file__).parent.parent.parent

CHILD = """
import ctypes, json, os, sys, time
from pathlib import Path
from largebatch.config.sections import Health
from largebatch.fault_tolerance import Watchdog, Interrupted

def blocked_in_c():  # as in a compiler: Python's own handlers cannot run
    while True:  # a signal cuts it short
        ctypes.CDLL(None).sleep(60)

def write(status, reason):
    Path("end.json").write_text(json.dumps([status, reason]))

with Watchdog(Health(**json.loads(sys.argv[1]))).watching() as watchdog:
    watchdog.finally_do("first", lambda *_: Path("last").touch())
    watchdog.finally_do("summary", write)
    watchdog.keep_stacks(Path("."))
    def ready():
        print("ready", flush=True)
"""


def start(body, where, **options):
    """Run lines within the watchdog's body until they print that they are ready."""
    script = CHILD + textwrap.indent(textwrap.dedent(body), "    ")
    process = subprocess.Popen(
        [sys.executable, "-c", script, json.dumps(options)],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def ended(process, within=300):
    _, errors = process.communicate(timeout=within)
    return process.returncode, errors


@pytest.mark.parametrize(
    ("section", "number", "options"),
    [
        ("compile", signal.SIGTERM, {}),
        ("compile", signal.SIGINT, {}),
        ("compile", signal.SIGUSR1, {}),
        ("step", signal.SIGTERM, {"grace_s": 0.5}),  # which does not save within the grace
    ],
)
def test_a_signal_ends_a_process_that_cannot_save(tmp_path, section, number, options):
    body = f"with watchdog.section('{section}'): ready(); blocked_in_c()"
    process = start(body, tmp_path, **options)
    process.send_signal(number)
    code, errors = ended(process)
    assert code == 75
    assert signal.Signals(number).name in errors
    assert json.loads((tmp_path / "end.json").read_text())[0] == "preempted"
    assert (tmp_path / "last").exists()


def test_a_signal_in_a_step_only_asks_and_a_second_ends_at_once(tmp_path):
    process = start("with watchdog.section('step'): ready(); blocked_in_c()", tmp_path)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    code, errors = ended(process)
    assert code == 128 + signal.SIGTERM
    assert "SIGTERM" in errors
    assert not (tmp_path / "end.json").exists()


def test_no_progress_ends_with_the_stacks_of_all_threads(tmp_path):
    body = """
    import threading
    def waits_for_ever():
        threading.Event().wait()
    threading.Thread(target=waits_for_ever, daemon=True).start()
    with watchdog.section('evaluation'):
        ready()
        for _ in range(4):
            time.sleep(0.4)
            watchdog.alive()  # 1.6 s in all, more than the limit
        blocked_in_c()
    """
    code, errors = ended(start(body, tmp_path, limit_s=1.0))
    assert code == 70
    assert "health.limit_s=1" in errors
    assert json.loads((tmp_path / "end.json").read_text())[0] == "failed"
    (stacks,) = tmp_path.glob("stacks_*.txt")
    assert str(stacks.name) in errors
    for name in ("blocked_in_c", "waits_for_ever"):
        assert name in stacks.read_text()
        assert name not in errors


def test_only_one_process_may_stop_where_it_is():
    watchdog = Watchdog()
    watchdog.poll()
    with watchdog.watching(), watchdog.section("step"):  # in setup it would end this very process
        signal.raise_signal(signal.SIGTERM)
        limit = time.monotonic() + 300
        while not watchdog.requested and time.monotonic() < limit:
            time.sleep(0.05)
        assert watchdog.requested == "SIGTERM"
        with pytest.raises(Interrupted, match="SIGTERM"):
            watchdog.poll()
        watchdog.join(object())
        watchdog.poll()  # several stop together
        watchdog.join(None)


def test_limits_count_from_the_last_progress(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("largebatch.fault_tolerance.watchdog.time.monotonic", lambda: now[0])
    watchdog = Watchdog(Health(limit_s=10))
    with watchdog.section("step"):
        now[0] = 10.5
        assert "step" in watchdog.overdue()
        watchdog.alive()
        assert watchdog.overdue() is None
    with watchdog.section("compile"):
        now[0] = 50.0
        assert watchdog.overdue() is None  # a compilation may take four times as long
        now[0] = 51.0
        assert "compile" in watchdog.overdue()
    never = Watchdog(Health(limit_s=0))
    now[0] = 1e6
    assert never.overdue() is None
