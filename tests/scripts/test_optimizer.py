"""The benchmark of the update rule, on a network of four parameters; no figure is looked at."""

import json
import types

import benchmark
import jax
import jax.numpy as jnp
import pytest
from benchmarks import optimizer

SHAPES = {
    "stem": {"conv": {"kernel": (3, 3, 2, 64)}, "bn": {"scale": (64,)}},
    "head": {"kernel": (64, 10), "bias": (10,)},
}


def test_what_it_measures(tmp_path, monkeypatch):
    def init(seed):
        return jax.tree.map(jnp.zeros, SHAPES, is_leaf=lambda x: isinstance(x, tuple)), {}

    monkeypatch.setattr(optimizer, "Model", lambda *_, **__: types.SimpleNamespace(init=init))
    path = tmp_path / "record.json"
    quick = ["--seconds=0.001", "--repeats=2", "--sets=2"]
    assert benchmark.main(["optimizer", *quick, f"--json={path}"]) == 0
    found = json.loads(path.read_text())["results"]
    by_name = {(one["name"], one["unit"]): one for one in found}
    assert len(by_name) == len(found)
    update = by_name["update vs optax.lars", "ms"]
    assert (update["peer_name"], update["better"]) == ("optax.lars", "less")
    ours, peer, ratio = (update[side]["repeats"] for side in ("ours", "peer", "ratio"))
    assert len(ours) == 2
    assert ratio == [b / a for a, b in zip(ours, peer, strict=True)]
    # 7 passes over 1,152 + 64 + 640 + 10 float32
    rates = by_name["update", "GB/s"]["ours"]["repeats"]
    assert rates == pytest.approx([7 * 4 * 1866 / 1e6 / ms for ms in ours])
    same = by_name["update, flavour optax vs optax.lars", "ms"]
    assert same["peer"]["repeats"] == peer
    assert same["ours"]["repeats"] != ours


def test_a_peer_that_computes_something_else_is_not_raced(monkeypatch):
    monkeypatch.setattr(optimizer, "_DECAY", 0.5)
    theirs = optimizer.plain_optax()
    monkeypatch.undo()
    small = {"head": {"kernel": jnp.ones((64, 10))}}
    gradients = [{"head": {"kernel": jnp.linspace(-1, 1, 640).reshape(64, 10)}}]
    ours, other = (
        optimizer.updates(rule, small, gradients, 0.0).first[0]
        for rule in (optimizer.ours("optax", "rows"), theirs)
    )
    optimizer.require_equal(ours, ours, small)
    with pytest.raises(RuntimeError, match="the updates differ by"):
        optimizer.require_equal(ours, other, small)
