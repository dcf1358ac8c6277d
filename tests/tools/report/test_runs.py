"""Reading runs: complete, growing, rolled back, damaged."""

import json

import pytest

from largebatch.errors import DataError
from largebatch.tools.report import summary
from largebatch.tools.report.runs import Run, current, load
from tests.tools.report import made_up


def test_a_whole_run(tmp_path):
    (run,) = load([made_up.write(tmp_path / "one")])
    assert (run.name, run.status, run.step, run.remarks) == ("one", "complete", 40, ())
    assert len(run.metrics) == 40
    assert len(run.layers) == 8
    assert run.options["model.width"] == 4
    assert run.options["run.seed"] == 0


def test_a_run_that_goes_on(tmp_path):
    folder = made_up.write(tmp_path / "one", summary=made_up.SUMMARY | {"steps": 20})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "samp')
    (run,) = load([folder])
    assert run.metrics[-1]["step"] == 40
    assert run.status == "unfinished"
    assert run.remarks == ()


@pytest.mark.parametrize("kept", ["metrics.jsonl", "config.json", "events.jsonl"])
def test_one_file_is_enough(tmp_path, kept):
    folder = made_up.write(tmp_path / "one")
    for path in folder.iterdir():
        if path.name != kept:
            path.unlink()
    (run,) = load([folder])
    assert run.status == "unfinished"
    assert len(run.remarks) == 4
    assert all("There is no " in remark for remark in run.remarks)


def test_a_damaged_log_is_a_remark(tmp_path):
    folder = made_up.write(tmp_path / "one")
    (folder / "layers.jsonl").write_bytes(b'{"step": 1}\n\0\0\0\n{"step": 2}\n')
    (run,) = load([folder])
    assert (len(run.metrics), run.layers) == (40, ())
    assert "layers.jsonl: line 2 of 3" in run.remarks[0]


def test_no_run(tmp_path):
    with pytest.raises(DataError, match=r"metrics.jsonl, config.json, events.jsonl"):
        load([tmp_path])
    with pytest.raises(DataError, match="absent is not a directory"):
        load([tmp_path / "absent"])
    folder = made_up.write(tmp_path / "one")
    with pytest.raises(DataError, match="twice"):
        load([folder, folder / ".." / "one"])


def test_names_tell_runs_apart(tmp_path):
    folders = [made_up.write(tmp_path / a / b) for a, b in (("x", "run"), ("y", "run"), ("y", "z"))]
    assert [run.name for run in load(folders)] == ["x/run", "y/run", "y/z"]
    link = tmp_path / "newest"
    link.symlink_to(folders[0])
    assert [run.name for run in load([link])] == ["newest"]


def test_rows_that_were_gone_back_over_are_replaced():
    found = [{"step": s, "n": n} for n, s in enumerate((10, 20, 30, 20, 30, 30))]
    found += [{"step": None}, {"no": 1}, {"step": 30, "more": 1}]
    assert current(found) == (
        {"step": 10, "n": 0},
        {"step": 20, "n": 3},
        {"step": 30, "n": 5, "more": 1},
    )


def test_a_run_without_anything_has_no_step(tmp_path):
    assert Run(tmp_path, "empty").step == 0


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"config": None}),
        ("config.json", {"config": {"model": None}}),
        ("config.json", {"plan": [1]}),
        ("config.json", [1]),
        ("config.json", '{"config": '),
        ("summary.json", [1]),
        ("summary.json", '{"status": "comp'),
    ],
)
def test_a_damaged_file_is_a_remark(tmp_path, file, content):
    folder = made_up.write(tmp_path / "one")
    (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    (run,) = load([folder])
    assert [remark.partition(" ")[0] for remark in run.remarks] == [file]
    assert (run.config, run.summary) == (
        ({}, made_up.SUMMARY) if file == "config.json" else (made_up.config(), {})
    )
    assert (run.step, summary.headline(run)[0].value) == (40, "85.47 %")


def test_values_of_another_type_are_left_out(tmp_path):
    wrong = dict.fromkeys(made_up.SUMMARY, "x") | {"status": ["complete"], "top5": 10**400}
    folder = made_up.write(tmp_path / "one", summary=wrong)
    with (folder / "events.jsonl").open("a") as stream:
        stream.write('{"event": ["turn"]}\n{"event": "checkpoint", "step": "x", "time": null}\n')
    (run,) = load([folder])
    assert (run.remarks, run.summary, run.status) == ((), {}, "unfinished")
    assert run.events[-1] == {"event": "checkpoint", "step": 0, "time": 0, "samples": 0}
