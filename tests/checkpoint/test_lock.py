"""Two runs in one directory: one of them is refused, whatever moment and host it comes from."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from largebatch.checkpoint import lock
from largebatch.checkpoint import run_directory as workdir
from largebatch.checkpoint.lock import hold
from largebatch.checkpoint.lock_holder import state
from largebatch.errors import UserError
from largebatch.files import replacing

FAST = {"every_s": 0.02, "patience_s": 0.4}
HOLDER = """
import sys
from pathlib import Path
from largebatch.errors import UserError
from largebatch.checkpoint.lock import hold
patience_s = float(sys.argv[1])
for line in sys.stdin:
    try:
        with hold(Path(line.strip()), note=lambda m: None, lost=lambda m: print("lost", m),
                  every_s=0.02, patience_s=patience_s):
            print("won", flush=True)
            sys.stdin.readline()
    except UserError as error:
        print(f"refused: {error}", flush=True)
        sys.stdin.readline()
    print("free", flush=True)
"""


class Holder:
    """Another process, which takes a lock and lets it go when told."""

    def __init__(self, patience_s=0.4):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(patience_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def holders():
    with contextlib.ExitStack() as stack:

        def make(count, patience_s=0.4):
            return [
                stack.enter_context(contextlib.closing(Holder(patience_s))) for _ in range(count)
            ]

        yield make


def taken(directory, **options):
    """Holds the lock; what was noted."""
    said = []
    with hold(directory, note=said.append, lost=said.append, **FAST | options):
        assert stored(directory)["pid"] == os.getpid()
    assert not list(directory.iterdir())
    return said


def stored(directory):
    return json.loads((directory / lock.NAME).read_text())


def leave(directory, **changes):
    """A lock file as a process of this system would leave it, with changes."""
    (directory / lock.NAME).unlink(missing_ok=True)
    with hold(directory, note=print, lost=print):
        content = stored(directory)
    (directory / lock.NAME).write_text(json.dumps(content | changes))
    return content | changes


def test_a_lock_names_its_holder_beats_and_goes(tmp_path):
    directory = tmp_path / "new" / "run"
    with hold(directory, note=pytest.fail, lost=pytest.fail, **FAST):
        first = stored(directory)
        assert first["pid"] == os.getpid()
        limit = time.monotonic() + 300
        while stored(directory)["beat"] < 3 and time.monotonic() < limit:
            time.sleep(0.01)
        later = stored(directory)
        assert later.pop("beat") >= 3
        assert first.pop("beat") < 3
        assert later == first
        # `prepare` puts an earlier run aside, not the lock of this one.
        (directory / "metrics.jsonl").touch()
        assert workdir.prepare(directory, archive=True) == directory / "previous" / "1"
        assert stored(directory)["token"] == first["token"]
    assert not (directory / lock.NAME).exists()
    with pytest.raises(KeyError), hold(directory, note=pytest.fail, lost=pytest.fail):
        raise KeyError
    assert not (directory / lock.NAME).exists()
    assert not [t for t in threading.enumerate() if t.name == "largebatch-lock"]


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path, holders):
    (other,) = holders(1)
    other.ask(tmp_path)
    assert other.answer() == "won"
    with pytest.raises(UserError) as caught:
        taken(tmp_path, patience_s=60.0)
    for words in (str(tmp_path), f"process {other.process.pid}", "--workdir"):
        assert words in str(caught.value)
    # Stopped, it does not beat, and lives.
    other.process.send_signal(signal.SIGSTOP)
    with pytest.raises(UserError, match="--workdir"):
        taken(tmp_path)
    other.process.kill()
    while state(other.process.pid)[0] not in ("Z", ""):
        time.sleep(0.01)
    # Killed, though nobody has waited for it: a zombie.
    (said,) = taken(tmp_path, patience_s=60.0)
    assert f"process {other.process.pid}" in said


def test_a_process_of_the_same_number_is_another(tmp_path):
    mine = leave(tmp_path)
    if mine["started"] is None:
        pytest.skip("this system does not tell when a process started")
    with pytest.raises(UserError, match="--workdir"):
        taken(tmp_path)
    leave_started = mine | {"started": mine["started"] - 1}
    (tmp_path / lock.NAME).write_text(json.dumps(leave_started))
    assert len(taken(tmp_path)) == 1


@pytest.mark.parametrize("changed", ["host", "system"])
def test_elsewhere_a_heartbeat_that_stands_still_is_stale(tmp_path, changed):
    leave(tmp_path, **{changed: "elsewhere", "pid": 1})
    began = time.monotonic()
    assert len(taken(tmp_path)) == 2  # it waits, then takes over
    assert time.monotonic() - began >= FAST["patience_s"]


def test_elsewhere_a_heartbeat_that_moves_is_alive(tmp_path):
    left = leave(tmp_path, host="elsewhere")
    path = tmp_path / lock.NAME
    ended = threading.Event()

    def beat():
        while not ended.wait(0.02):
            left["beat"] += 1
            with replacing(path) as stream:
                stream.write(json.dumps(left).encode())

    other = threading.Thread(target=beat)
    other.start()
    try:
        with pytest.raises(UserError, match="elsewhere"):
            taken(tmp_path, patience_s=30.0)
    finally:
        ended.set()
        other.join()
    assert stored(tmp_path)["token"] == left["token"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff",
        b"null",
        b'{"host":"a","system":"","pid":-1,"started":1,"taken":"","token":"%s"}' % (b"a" * 32),
        b'{"host":"a","system":"","pid":7,"started":1,"taken":"","token":"../../x"}',
    ],
)
def test_a_damaged_lock_is_judged_by_its_age(tmp_path, content):
    (tmp_path / lock.NAME).write_bytes(content)
    began = time.monotonic()
    assert len(taken(tmp_path)) == 2
    assert time.monotonic() - began >= FAST["patience_s"]


def test_who_loses_its_lock_is_told_and_leaves_it(tmp_path):
    said = []
    told = threading.Event()
    with hold(tmp_path, note=pytest.fail, lost=lambda m: (said.append(m), told.set()), **FAST):
        other = stored(tmp_path) | {"token": "b" * 32, "pid": 4242, "host": "elsewhere"}
        (tmp_path / "other").write_text(json.dumps(other))  # not the temporary file of a heartbeat
        (tmp_path / "other").replace(tmp_path / lock.NAME)
        assert told.wait(300)
        time.sleep(5 * FAST["every_s"])
    assert len(said) == 1
    assert "process 4242" in said[0]
    assert stored(tmp_path) == other


def test_who_died_while_taking_over_is_in_nobodys_way(tmp_path):
    dead = {"started": 1} if leave(tmp_path)["started"] else {"pid": 2**22 + 1}
    first = leave(tmp_path, **dead)
    second = leave(tmp_path, **dead)
    third = leave(tmp_path, **dead)
    # The second died about to replace the first, the third about to replace the second.
    (tmp_path / lock.NAME).write_text(json.dumps(first))
    (tmp_path / f".lock.json.{first['token']}").write_text(json.dumps(second))
    (tmp_path / f".lock.json.{second['token']}").write_text(json.dumps(third))
    assert len(taken(tmp_path)) == 3  # and nothing is left in the directory


def test_a_directory_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "run" / lock.NAME).mkdir(parents=True)
    for directory in (tmp_path / "file" / "run", tmp_path / "run"):
        with pytest.raises(UserError, match="--workdir"):
            taken(directory)


ROUNDS = 10


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", ["none", "dead", "damaged", "elsewhere"])
def test_of_many_that_come_at_once_exactly_one_wins(tmp_path, holders, kind):
    rounds = ROUNDS if kind in ("none", "dead") else ROUNDS // 5
    # A process may write its lock long after it created the file, on a busy machine.
    others = holders(4, patience_s=1.0 if kind in ("damaged", "elsewhere") else 60.0)
    for number in range(rounds):
        directory = tmp_path / str(number)
        if kind != "none":
            left = leave(directory)
            dead = {"started": 1} if left["started"] else {"pid": 2**22 + 1}
            text = json.dumps(left | (dead if kind == "dead" else {"host": "elsewhere"}))
            (directory / lock.NAME).write_text("" if kind == "damaged" else text)
        for other in others:
            other.ask(directory)
        answers = [other.answer() for other in others]
        assert sorted(answer.partition(":")[0] for answer in answers) == [
            "refused",
            "refused",
            "refused",
            "won",
        ], answers
        winner = others[answers.index("won")]
        assert stored(directory)["pid"] == winner.process.pid
        for other in others:
            other.ask("")
        assert {other.answer() for other in others} == {"free"}
        assert not list(directory.iterdir())
