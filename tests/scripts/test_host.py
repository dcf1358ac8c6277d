"""The benchmark of the host's time: its parts on a tiny network, and what it makes of them."""

import json

import benchmark
import jax
import numpy as np
import pytest
from benchmarks import host, training
from benchmarks.measure import Result
from benchmarks.training import StepWork

from largebatch.errors import ConfigError

PARTS = {
    "µs a step",
    "µs more with a row of metrics.jsonl",
    "µs more with a row of layers.jsonl",
    "µs a step, with rows each 10 and 50 steps",
    "µs of the compiled call",
    "µs of run_step",
    "µs to fetch the metrics",
}


def test_a_step_without_arithmetic_has_the_arrays_of_a_step():
    work = StepWork(batch=2, image_size=32, classes=10, network="resnet10", width=1)
    run = training.build_run(training.config(work))
    programs = run.first_stage
    program, state = host._without_arithmetic(programs), host._state(programs)
    images, labels, *_ = next(training.placed_batches(run, work))
    found = program(state, None, images, labels, np.float32(run.plan.rates(1)), None)
    assert jax.tree.structure(found) == jax.tree.structure(host._results(programs))
    assert all(x.is_deleted() for x in jax.tree.leaves(state))  # donated, as of a step
    assert all((x == 1).all() for x in jax.tree.leaves(found[0]))


def pass_step(recorder, clock, step):
    """A millisecond, 2 more with a row, 5 more with a row of the layers."""
    clock[0] += 1e-3
    if step % 10 == 0:
        clock[0] += 2e-3
        recorder.scalars(step, {})
    if step % 50 == 0:
        clock[0] += 5e-3
        recorder.noting(lambda *_: None)(step, 0, {})
    recorder.event("step", step, 0)


def test_what_a_row_adds(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(host.time, "thread_time", lambda: clock[0])
    recorder = host._Recorder(100)
    for step in range(1, 50 + 100):
        pass_step(recorder, clock, step)
    with pytest.raises(host._EnoughError):
        pass_step(recorder, clock, 150)
    assert list(recorder.figures().values()) == pytest.approx([1000, 2000, 5000, 1300])


def test_beside_an_earlier_record():
    ours, other = Result("main thread", "µs a step", (1.0, 2.0)), Result("x", "ms", (3.0,))
    earlier = [Result("main thread", "µs a step", (4.0, 5.0)).as_json()]
    record = {"environment": {"commit": "0123456789"}, "results": earlier}
    found = host.beside([ours, other], record)
    assert found[0].ratios == (4.0, 2.5)
    assert found[0].peer_name == "commit 0123456"
    assert found[1] == other


@pytest.mark.slow
def test_a_tiny_run(tmp_path):
    record = tmp_path / "host.json"
    words = "host --network=resnet10 --steps=60 --repeats=1"
    assert benchmark.main([*words.split(), f"--json={record}"]) == 0
    (results,) = [json.loads(record.read_text())["results"]]
    assert {result["unit"] for result in results} == PARTS
    assert all(result["ours"]["median"] > 0 for result in results if " more " not in result["unit"])


def test_a_number_below_one():
    with pytest.raises(ConfigError):
        benchmark.run(["host", "--steps=0"])


def test_a_missing_earlier_record_is_refused_before_measuring(tmp_path, capsys):
    earlier = tmp_path / "none.json"
    command = ["host", "--json", str(tmp_path / "new.json"), "--before", str(earlier)]
    assert benchmark.main(command) == 2
    assert f"--before: {earlier}" in capsys.readouterr().err


def test_a_record_that_does_not_pair_is_refused_before_measuring(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(host, "Competitor", None)
    earlier = tmp_path / "earlier.json"
    for name, flag in (("step", "--before"), ("main thread", "--repeats=5")):
        results = [Result(name, "µs a step", (4.0, 5.0)).as_json()]
        record = {"environment": {"commit": "0123456789"}, "results": results}
        earlier.write_text(json.dumps(record))
        assert benchmark.main(["host", f"--before={earlier}"]) == 2
        assert flag in capsys.readouterr().err
