"""Compiled programs in an object store: what a start on another host compiles, and faults."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from largebatch.errors import ConfigError
from largebatch.object_store import Bucket
from largebatch.parallel import compile_cache
from largebatch.parallel.compile_store import StoredPrograms
from tests.parallel.test_compile_cache import PROGRAM

ROOT = Path(__file__).parents[2]


@pytest.fixture
def start(served, tmp_path):
    """Start a process on a host; returns its result, its cache hits and its other lines."""
    url = served[1]

    def started(host, *, patience=60):
        home = {"XDG_CACHE_HOME": str(tmp_path / host), "JAX_COMPILATION_CACHE_DIR": ""}
        environment = os.environ | home | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        program = (
            "from largebatch import object_store\nfrom largebatch.parallel import compile_cache\n"
            f"object_store._RETRY_S = compile_cache._RETRY_S = {patience}\n{PROGRAM}"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, url],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        *warnings, result, hits = done.stdout.splitlines()
        return result, int(hits), warnings

    return started


def entries(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*-cache")}


def stored(url):
    bucket = Bucket(url)
    return {n.rpartition("/")[2]: bucket.read(n)[0] for n in bucket.objects()}


@pytest.mark.multiprocess
def test_another_host_compiles_nothing(start, served, tmp_path):
    gateway, url = served
    result, hits, warnings = start("first")
    assert (hits, warnings) == (0, [])
    programs = stored(url)
    assert programs == entries(tmp_path / "first") != {}
    before = len(gateway.requests)
    assert start("second") == (result, len(programs), [])
    assert entries(tmp_path / "second") == programs
    assert not [r for r in gateway.requests[before:] if r[0] in ("PUT", "POST")]
    before = len(gateway.requests)
    assert start("second") == (result, len(programs), [])
    assert not [p for m, p in gateway.requests[before:] if "cache" in p.partition("?")[0]]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_what_is_only_local_is_uploaded(start, served):
    url = served[1]
    start("first")
    programs = stored(url)
    Bucket(url).delete(*Bucket(url).objects())
    start("first")
    assert stored(url) == programs


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_damaged_entry_is_compiled_again_and_replaced(start, served):
    url = served[1]
    result = start("first")[0]
    programs = stored(url)
    bucket = Bucket(url)
    for name in bucket.objects():
        bucket.write(name, bucket.read(name)[0][:20])
    assert start("second") == (result, 0, [])
    assert stored(url).keys() == programs.keys()
    assert min(map(len, stored(url).values())) > 20
    assert start("third")[1] == len(programs)


@pytest.mark.multiprocess
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_store_that_fails_is_one_warning(start, served, tmp_path, method):
    gateway, url = served
    gateway.fault = lambda found, path, number: "503" if found == method else ""
    _, hits, warnings = start("first", patience=0)
    assert hits == 0
    assert len(warnings) == 1
    assert "run.compile_cache" in warnings[0]
    assert entries(tmp_path / "first")
    gateway.fault = None
    assert stored(url) == {}


@pytest.mark.multiprocess
def test_an_upload_that_is_cut_is_repeated(start, served, tmp_path):
    gateway, url = served
    failed = []

    def fault(method, path, number):
        if method == "PUT" and path not in failed:
            failed.append(path)
            return "cut"
        return ""

    gateway.fault = fault
    assert start("first")[2] == []
    assert failed
    assert stored(url) == entries(tmp_path / "first")


@pytest.fixture
def two_processes(served, tmp_path):
    """The same cache as two processes of one host have it, which warn of nothing."""
    found = [StoredPrograms(Bucket(served[1]), tmp_path, pytest.fail) for _ in range(2)]
    yield found
    for programs in found:
        programs._uploads.shutdown()


def test_processes_of_a_host_download_an_entry_at_once(two_processes, monkeypatch, tmp_path):
    two_processes[0].bucket.write("f-1-cache", b"program")
    both, flush = threading.Barrier(2), os.fsync

    def together(descriptor):  # both have written their files, and neither has renamed its own
        both.wait(10)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", together)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(programs.contains, "f-1-cache") for programs in two_processes]
        assert [call.result() for call in calls] == [True, True]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "f-1-cache": b"program"
    }


def test_only_the_damaged_entry_that_was_read_is_removed(two_processes, tmp_path):
    one, other = two_processes
    one.bucket.write("f-1-cache", b"damaged")
    assert one.contains("f-1-cache")
    one.remove("f-1-cache")  # it is that of another process: not read here
    assert one.read("f-1-cache") == b"damaged"
    other.write("f-1-cache", b"program")
    one.remove("f-1-cache")
    assert one.contains("f-1-cache")  # uploads it in place of the damaged one
    one._uploads.shutdown()
    assert one.bucket.read("f-1-cache")[0] == b"program"
    assert other.read("f-1-cache") == b"program"
    other.remove("f-1-cache")
    assert not list(tmp_path.iterdir())


def test_a_limit_of_the_size_is_refused(served, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    import jax

    before = jax.config.jax_compilation_cache_max_size
    jax.config.update("jax_compilation_cache_max_size", 1 << 30)
    try:
        with pytest.raises(ConfigError, match=r"run\.compile_cache"):
            compile_cache.use(served[1])
        with pytest.raises(ConfigError):
            compile_cache.use("gs://user@bucket")
    finally:
        jax.config.update("jax_compilation_cache_max_size", before)
