"""Judging what a run needs: data, decoding, storage, software, network."""

import dataclasses
import os
import threading
import time
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest
from packaging.requirements import Requirement

import train as entry
from largebatch.checkpoint import lock
from largebatch.checkpoint.lock_holder import content, this_process
from largebatch.config import Facts, load, override, resolve
from largebatch.data import open_source
from largebatch.data.prepare.metadata import Manifest, Shard, files_of
from largebatch.data.prepare.plan import Store
from largebatch.fault_tolerance import HUNG
from largebatch.parallel import processes
from largebatch.parallel.clusters import Cluster
from largebatch.parallel.compiler import Verdict
from largebatch.parallel.hardware import HARDWARE
from largebatch.tools.doctor import dataset, examination, network, software, speed, storage
from largebatch.tools.doctor.speed import Pace

ROOT = Path(entry.__file__).parent
CONFIG = load(ROOT / "configs" / "digits.py")
GIB = 2**30


def changed(*pairs):
    config = CONFIG
    for key, text in pairs:
        config = override(config, key, text)
    return config


def plan(devices=1, processes=1, config=CONFIG):
    facts = Facts(1437, 360, 10, (8, 8, 1), devices=devices, processes=processes)
    return resolve(config, facts, microbatch=1)


# ---- data


def test_counts_are_compared_with_the_published_ones():
    known = dataset.known_set("tfds:imagenet2012")
    assert dataset.known_set("folder:/data/imagenette2-320") == dataset.known_set(
        "folder:imagenette2-320"
    )
    assert dataset.known_set("folder:/data/mine") is None
    good = dataset.judge("t; v", (1_281_167, 50_000, 1000), known)
    assert (good.verdict, good.found) == ("OK", "t; v; counts as published")
    bad = dataset.judge("t; v", (1_281_166, 50_000, 1001), known)
    assert bad.found == (
        "1,281,166 training examples instead of 1,281,167; 1,001 classes instead of 1,000"
    )
    assert dataset.judge("t; v", (1, 1, 1), None).verdict == "OK"


@pytest.fixture
def prepared(tmp_path):
    """A finished set of twenty small shards."""
    shards = []
    for number in range(20):
        path = tmp_path / f"shard-{number:02}"
        path.write_bytes(np.random.default_rng(number).bytes(500))
        shards.append(Shard("train", number, 5, 500, "none", files_of([path])))
    Manifest(Store(), False, {"plan": "x"}, {}, tuple(shards)).write(tmp_path)
    config = changed(("data.source", f"decoded:{tmp_path}"))
    return tmp_path, config, shards


def test_a_sample_of_the_shards_is_read_and_the_sizes_of_all(prepared):
    folder, config, shards = prepared
    chosen = [shard.shard for shard in dataset.sample(shards)]
    assert len(chosen) == 8
    assert (chosen[0], chosen[-1]) == (0, 19)
    assert "20 shards have their sizes, 8 were read" in _files(config)
    assert "20 shards have their sizes, 20 were read" in _files(config, full=True)
    # A shard that is not in the sample, changed at the same size: only --full sees it.
    outside = next(i for i in range(20) if i not in chosen)
    (folder / f"shard-{outside:02}").write_bytes(bytes(500))
    assert dataset.check_files(config, full=False).verdict == "OK"
    assert f"shard-{outside:02} has changed" in _files(config, full=True)
    # One of another size is seen in any case.
    (folder / f"shard-{outside:02}").write_bytes(bytes(499))
    assert f"shard-{outside:02} is missing or has another size" in _files(config)


def test_a_sample_ends_when_its_time_is_over(prepared):
    _, config, _ = prepared
    ticks = iter(range(100))
    assert ", 2 were read" in _files(config, clock=lambda: 2.0 * next(ticks))


def _files(config, full=False, **options):
    return dataset.check_files(config, full=full, **options).found


def test_other_sets_have_no_checksums():
    assert dataset.check_files(CONFIG, full=True).verdict == "SKIP"


# ---- speed


def test_decoding_against_the_step():
    made = plan(devices=8, processes=2)
    batch = made.first_stage.samples_per_step
    pace = Pace(batch / 8000, "measured")  # 8,000 images/s in all, 4,000 a process

    def line(rate):
        return speed.judge(int(3 * rate), 3.0, 4, made, pace)[-1]

    assert speed.need_of(made, pace).images_per_s == pytest.approx(4000)
    fine, tight, slow = line(8000), line(4100), line(1000)
    assert [each.verdict for each in (fine, tight, slow)] == ["OK", "PROBLEM", "PROBLEM"]
    assert fine.found.startswith("2.00 times the 4,000 images/s")
    assert "0.25 times" in slow.found
    assert "16 cores per host instead of 4" in slow.remedy
    lines = speed.judge(10, 1.0, 4, made, "no figures")
    assert [each.verdict for each in lines] == ["OK", "SKIP", "SKIP"]


def test_decoding_is_measured_with_the_reader_of_a_run():
    made, train = plan(), open_source("digits", "train")
    clock = iter(np.arange(0, 100, 0.4))
    images, spent = speed.decode_rate(CONFIG, train, made, seconds=1.0, clock=lambda: next(clock))
    chunk = images // 2
    assert images == 2 * chunk  # looked at after 0.4 and 0.8 … s: the second is at or past 1 s
    assert spent == pytest.approx(1.6)
    options = changed(("data.threads", "2"))
    again, _ = speed.decode_rate(options, train, made, seconds=0.0)
    assert again == 64  # one chunk: 32 images for each of two threads


def test_a_step_is_predicted_for_known_devices_and_photographs():
    record = load(ROOT / "configs" / "fujitsu2019_81920.py")
    facts = Facts(1_281_167, 50_000, 1000, (224, 224, 3), devices=2048, processes=512)
    found = speed.predicted(resolve(record, facts, microbatch=1), Cluster(HARDWARE["v100"], 2048))
    # scripts/plan.py says 47.5 ms with the software of 2019; later software is no slower.
    assert 0.02 < found.step_s <= 0.0480
    assert "2048 × v100" in found.source
    deep = speed.predicted(
        resolve(override(record, "model.name", "resnet152"), facts, microbatch=1),
        Cluster(HARDWARE["v100"], 2048),
    )
    assert deep.step_s > 2 * found.step_s
    assert "not calibrated" in deep.source
    assert "not calibrated" not in found.source
    assert "no figures" in speed.predicted(plan(), None)
    assert "photographs" in speed.predicted(plan(), Cluster(HARDWARE["v100"], 8))
    # What the hosts have to decode for it.
    made = resolve(record, facts, microbatch=1)
    step = speed.judge(100, 1.0, 4, made, found, hosts=512)[1]
    assert "on each of 512 host(s)" in step.found
    assert "host(s)" not in speed.judge(100, 1.0, 4, plan(), found)[1].found  # digits are no JPEGs


# ---- storage


def test_a_full_disk():
    line = storage.judge_disk(Path("runs/a"), free=GIB, needed=9 * GIB // 4)
    assert line.found == "1.0 GiB free for runs/a, 2.25 needed"
    assert "run.keep_checkpoints" in line.remedy
    assert storage.judge_disk(Path("a"), 3 * GIB, 2 * GIB).verdict == "OK"
    assert storage.check_disk(plan(), Path("/proc/1/no/such")).name == "disk"


def test_a_directory_in_use(tmp_path):
    assert storage.check_lock(tmp_path / "a").found == f"{tmp_path / 'a'} is free"
    mine = this_process()
    (tmp_path / lock.NAME).write_bytes(content(mine))
    used = storage.check_lock(tmp_path)
    assert used.verdict == "PROBLEM"
    assert f"process {os.getpid()}" in used.found
    gone = dataclasses.replace(mine, started=1)  # the id is another process's by now
    (tmp_path / lock.NAME).write_bytes(content(gone))
    assert storage.check_lock(tmp_path).verdict == "OK"
    # For another host only the heartbeat counts.
    away = dataclasses.replace(mine, host="elsewhere", system="another boot")
    (tmp_path / lock.NAME).write_bytes(content(away))
    assert "on elsewhere" in storage.check_lock(tmp_path).found
    old = time.time() - 60
    os.utime(tmp_path / lock.NAME, (old, old))
    assert storage.check_lock(tmp_path).verdict == "OK"


def test_an_earlier_run_is_named(tmp_path):
    for step in (5, 40):
        folder = tmp_path / "checkpoints" / str(step)
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    assert "resumes from step 40" in storage.check_lock(tmp_path).found


def test_the_compile_cache(tmp_path):
    assert storage.judge_cache(tmp_path, 50 * GIB, True).verdict == "OK"
    for free, writable in ((GIB, False), (GIB // 2, True)):
        assert "run.compile_cache" in storage.judge_cache(tmp_path, free, writable).remedy
    assert storage.check_cache("off").verdict == "OK"
    assert str(tmp_path) in storage.check_cache(str(tmp_path)).found
    assert storage.check_shared(tmp_path).verdict == "SKIP"


@pytest.fixture
def first_of_two(monkeypatch):
    """This process as the first of two, and the names of the collectives that it met."""
    met = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(storage, "gathered", lambda value: [value, value])
    monkeypatch.setattr(processes, "wait_for_all", met.append)
    monkeypatch.setattr(processes, "agreed_minimum", lambda value: met.append(value) or value)
    return met


def test_a_directory_that_fails_on_one_host_keeps_nobody_waiting(
    tmp_path, monkeypatch, first_of_two
):
    assert storage.check_shared(tmp_path).verdict == "OK"
    assert not any(tmp_path.iterdir())

    def fail(*_, **__):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(storage.os, "listdir", fail)
    monkeypatch.setattr(Path, "exists", fail)
    monkeypatch.setattr(Path, "unlink", fail)
    ticks = iter(range(0, 100, 6))
    line = storage.check_shared(tmp_path, clock=lambda: next(ticks))
    assert line.verdict == "PROBLEM"
    assert first_of_two == ["doctor wrote", "doctor looked"] * 2


def test_a_step_that_fails_on_one_host_keeps_nobody_waiting(monkeypatch, capsys, first_of_two):
    def fail(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(speed, "run_step", fail)
    options = (("model.name", "resnet10"), ("model.width", "4"), ("run.compile_cache", "off"))
    monkeypatch.setattr(speed, "build", lambda *_: mock.MagicMock())
    with pytest.raises(RuntimeError, match="out of memory"):
        speed.measured(changed(*options))
    assert first_of_two == [1, 0]  # built, and not measured
    assert "process 0: RuntimeError: RESOURCE_EXHAUSTED" in capsys.readouterr().err
    monkeypatch.setattr(speed, "build", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        speed.measured(changed(*options))
    assert first_of_two[2:] == [0]


def test_no_wait_is_for_ever(monkeypatch, capsys):
    ended, codes, stacks = threading.Event(), [], mock.Mock()
    monkeypatch.setattr(examination.os, "_exit", lambda code: (codes.append(code), ended.set()))
    monkeypatch.setattr(examination.faulthandler, "dump_traceback", stacks)
    with examination.time_limit("reading", 0):
        assert not ended.wait(0.3)
    with examination.time_limit("measuring", 0.1):
        assert ended.wait(30)
    assert codes == [HUNG]
    stacks.assert_called_once()
    error = capsys.readouterr().err
    assert "measuring takes more than 0.1 s" in error
    assert "--limit_s" in error


# ---- software


def test_versions_that_do_not_fit():
    assert software.check_versions().verdict == "OK"
    need = Requirement("jaxlib<=0.10.2,>=0.10.1")
    assert software.unmet("jax", need, "0.10.2.dev1") == ""
    for version in (None, "0.10.0"):
        assert "jaxlib" in software.unmet("jax", need, version)
    plain, cuda = (
        set(map(str, software.requirements("jax", extras))) for extras in ((), ["cuda12"])
    )
    assert any(need.startswith("jax-cuda12-plugin") for need in cuda - plain)
    assert not any("plugin" in need for need in plain)
    assert list(software.requirements("no-such-package")) == []


def test_an_unknown_flag_in_the_environment_is_found_by_a_child(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert software.check_environment().verdict == "OK"
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_no_such_flag=1")
    line = software.check_environment()
    assert line.verdict == "PROBLEM"
    assert "--xla_cpu_no_such_flag=1" in line.found


def test_options_that_the_compiler_refuses():
    verdict = Verdict({"xla_a": "1"}, {"xla_b": "no such", "xla_c": "?"})
    line = software.judge_options("cuda", {"xla_b": "1"}, verdict)
    assert line.verdict == "PROBLEM"
    assert "xla_b (comm.xla_options): no such" in line.found
    assert "comm.xla_options: xla_b" in line.remedy
    assert "xla_c" in line.found
    assert software.judge_options("cuda", {}, Verdict({"xla_a": "1"}, {})).found == "xla_a=1"
    assert software.check_options(CONFIG, "cpu").verdict == "OK"


def test_hosts_that_would_run_something_else():
    one = software.summarised(CONFIG, plan().facts)
    assert software.judge_agreement([one], ["a"]).verdict == "SKIP"
    alike = software.judge_agreement([dict(one) for _ in range(3)], list("abc"))
    assert alike.verdict == "OK"
    assert f"configuration {one['configuration']}, jax 0.1" in alike.found
    other = software.summarised(changed(("run.seed", "1")), plan(devices=2).facts)
    differing = software.judge_agreement([one, other, one], list("abc"))
    assert "configuration: b (process 1)" in differing.found
    assert "data and devices: b" in differing.found
    assert "versions" not in differing.found
    changed_python = [one, one | {"Python": "3.11.0"}]
    assert software.judge_agreement(changed_python, ["a", "b"]).verdict == "PROBLEM"


def test_clocks():
    assert software.judge_clocks([5.0], ["a"]).verdict == "SKIP"
    assert software.judge_clocks([5.0, 5.5], ["a", "b"]).found == "within 0.50 s"
    apart = software.judge_clocks([5.0, 2.0, 9.0], ["a", "b", "c"])
    assert apart.found == "c is 7.0 s ahead of b"


# ---- network


def test_a_slow_network():
    sizes = [2**20, 4 * 2**20]
    times = {4096: 50e-6, 2**20: 1e-3, 4 * 2**20: 4e-3}
    # 2 · 7/8 of 4 MiB in 4 ms
    rate = network.bus_rate(8, 4 * 2**20, 4e-3)
    assert rate == pytest.approx(2 * 7 / 8 * 2**22 / 4e-3)
    line = network.judge(8, sizes, times, None)
    assert line.verdict == "OK"
    assert "50 µs for 4 KiB, 4.00 ms for 4.0 MiB (1.84 GB/s of bus)" in line.found
    assert network.judge(8, sizes, times, 2e-3).verdict == "OK"
    slow = network.judge(8, sizes, times, 1e-3)
    assert slow.verdict == "PROBLEM"
    assert "4.0 times" in slow.found
    assert "NCCL_SOCKET_IFNAME" in slow.remedy


def test_an_all_reduce_is_measured_over_the_devices():
    assert jax.device_count() == 8
    line = network.check(plan(devices=8))
    assert line.verdict == "OK"
    assert line.found.startswith("8 devices: ")
    buckets = network.bucket_bytes(plan(devices=8))
    assert f"{len(buckets)} bucket(s), {sum(buckets) / 2**20:,.1f} MiB" in line.found
