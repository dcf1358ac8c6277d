"""Lock of a run directory in an object store."""

import dataclasses
import subprocess
import sys
import threading

import pytest

from largebatch.checkpoint import lease
from largebatch.checkpoint.lock import content, parse, this_process
from largebatch.errors import UserError
from largebatch.object_store import Bucket

QUICK = {"every_s": 0.05, "patience_s": 1.0}


def hold(bucket, **calls):
    return lease.hold(bucket, **{"note": lambda _: None, "lost": lambda _: None, **QUICK, **calls})


def test_a_second_process_is_refused_and_later_admitted(served):
    bucket = Bucket(served[1])
    with hold(bucket), pytest.raises(UserError, match="in use"), hold(Bucket(bucket.url)):
        pass
    assert bucket.objects() == {}
    with hold(Bucket(bucket.url)):
        assert list(bucket.objects()) == ["lock.json"]


def test_the_lock_of_a_killed_process_of_this_host_is_taken_over_at_once(served):
    bucket = Bucket(served[1])
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    bucket.write("lock.json", content(dataclasses.replace(this_process(), pid=process.pid)))
    notes = []
    with hold(bucket, note=notes.append, patience_s=1000.0):
        pass
    assert len(notes) == 1


@pytest.mark.parametrize("text", [None, b"damaged"])
def test_a_lock_of_another_host_without_heartbeat_is_taken_over(served, text):
    bucket = Bucket(served[1])
    elsewhere = dataclasses.replace(this_process(), host="elsewhere")
    bucket.write("lock.json", content(elsewhere) if text is None else text)
    with hold(bucket):
        mine = parse(bucket.read("lock.json")[0])
        assert mine.token not in (elsewhere.token, None)


def test_a_lock_of_another_host_with_heartbeats_is_kept(served):
    bucket = Bucket(served[1])
    other = dataclasses.replace(this_process(), host="elsewhere")
    bucket.write("lock.json", content(other))
    ended = threading.Event()

    def beat():
        beats = 0
        while not ended.wait(0.02):
            beats += 1
            bucket.write("lock.json", content(dataclasses.replace(other, beat=beats)))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(UserError, match="elsewhere"), hold(bucket, patience_s=60.0):
            pass
    finally:
        ended.set()
        thread.join()


def test_a_holder_notices_that_its_lock_was_taken(served):
    bucket = Bucket(served[1])
    lost, noticed = [], threading.Event()

    def notice(reason):
        lost.append(reason)
        noticed.set()

    other = dataclasses.replace(this_process(), host="elsewhere")
    with hold(bucket, lost=notice):
        bucket.write("lock.json", content(other))
        assert noticed.wait(60)
    assert len(lost) == 1
    assert parse(bucket.read("lock.json")[0]) == other  # not ours to delete


def test_a_heartbeat_whose_answer_is_lost_keeps_the_lock(served):
    gateway, url = served
    lost = []
    bucket = Bucket(url)
    with hold(bucket, lost=lost.append):
        before = parse(bucket.read("lock.json")[0])
        gateway.fault = lambda method, path, number: "late" if number % 3 == 0 else ""
        limit = threading.Event()
        for _ in range(600):
            if parse(bucket.read("lock.json")[0]).beat > before.beat + 4:
                break
            limit.wait(0.1)
        assert parse(bucket.read("lock.json")[0]).token == before.token
    assert not lost
    gateway.fault = None
    assert bucket.objects() == {}
