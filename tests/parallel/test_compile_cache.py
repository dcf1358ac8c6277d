"""Where compiled programs are kept, and that a second start takes them from there."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from largebatch.errors import ConfigError
from largebatch.parallel import compile_cache

ROOT = Path(__file__).parents[2]
PROGRAM = """
import jax, jax.numpy as jnp, sys
from largebatch.parallel import compile_cache
compile_cache.LEAST_S = 0.0
compile_cache.use(sys.argv[1])
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
print(float(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((3, 3)))[0, 0]))
print(sum("cache_hits" in name for name in hits))
"""


@pytest.mark.parametrize(
    ("option", "variable", "folder"),
    [
        ("auto", "/jax", "/jax"),
        ("auto", "", "/home/someone/.cache/largebatch/compile"),
        ("/named", "/jax", "/named"),
        ("~/named", "/jax", "/home/someone/named"),
        ("gs://bucket/compile", "/jax", "gs://bucket/compile"),
        ("off", "/jax", ""),
    ],
)
def test_the_folder(option, variable, folder, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", variable)
    assert compile_cache.place(option, "gpu") == folder
    on_cpu = compile_cache.place(option, "cpu")
    assert on_cpu.rpartition("/cpu-")[0] == folder  # a folder for each kind of processor


def test_a_place_that_was_named_must_be_usable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for place in (str(tmp_path / "file"), "s3://bucket/programs", "gs://bucket/programs"):
        with pytest.raises(ConfigError, match=r"run\.compile_cache=.*; (use|pip install) "):
            compile_cache.use(place)


def test_without_a_usable_home_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "file"))
    compile_cache.use("auto")
    assert jax.config.jax_compilation_cache_dir is None


def test_a_second_process_compiles_nothing_and_a_torn_entry_is_compiled_again(tmp_path):
    def start():
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "kept")]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    value, hits = start()
    assert int(hits) == 0
    entries = [path for path in (tmp_path / "kept").rglob("*-cache") if path.stat().st_size]
    entries[0].write_bytes(entries[0].read_bytes()[:20])
    again, hits = start()
    assert again == value
    assert len(entries) > int(hits) > 0
