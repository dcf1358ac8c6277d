"""Reading what runs left: whole, growing, gone back, broken."""

import json

import pytest

from largebatch.errors import DataError
from largebatch.tools.report import summary as facts
from largebatch.tools.report import turns
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


def test_damage_is_a_remark(tmp_path):
    folder = made_up.write(tmp_path / "one")
    (folder / "layers.jsonl").write_bytes(b'{"step": 1}\n\0\0\0\n{"step": 2}\n')
    (folder / "summary.json").write_text('{"status": "comp')
    (folder / "config.json").write_text(json.dumps([1]))
    (run,) = load([folder])
    assert len(run.metrics) == 40
    assert (run.layers, run.config, run.summary) == ((), {}, {})
    assert ["layers.jsonl: line 2 of 3" in run.remarks[0], len(run.remarks)] == [True, 3]


def test_no_run(tmp_path):
    with pytest.raises(DataError, match=r"holds none of metrics.jsonl, config.json, events.jsonl"):
        load([tmp_path])
    with pytest.raises(DataError, match="is no directory"):
        load([tmp_path / "absent"])
    folder = made_up.write(tmp_path / "one")
    with pytest.raises(DataError, match="named twice"):
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


CONFIG, SUMMARY = made_up.config(), made_up.SUMMARY


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("config.json", {"config": None}, "config"),
        ("config.json", CONFIG | {"config": {"model": None}}, "config.model"),
        ("config.json", CONFIG | {"plan": None}, "plan"),
        ("config.json", CONFIG | {"plan": {"steps": "40"}}, "plan.steps"),
        ("config.json", CONFIG | {"plan": {"samples_per_step": []}}, "plan.samples_per_step"),
        ("config.json", CONFIG | {"environment": None}, "environment"),
        ("config.json", CONFIG | {"environment": {"versions": 3}}, "environment.versions"),
        ("summary.json", SUMMARY | {"steps": "x"}, "steps"),
        ("summary.json", SUMMARY | {"top5": "a"}, "top5"),
        ("summary.json", SUMMARY | {"wall_s": {}}, "wall_s"),
        ("summary.json", SUMMARY | {"target_step": 10**400}, "target_step"),
        ("summary.json", SUMMARY | {"status": ["complete"]}, "status"),
        ("metrics.jsonl", {"step": 50, "samples": "x"}, "samples"),
        ("metrics.jsonl", {"step": 50, "epoch": [1], "validation/top1": 0.5}, "epoch"),
        ("metrics.jsonl", {"step": 50, "validation/top1": "a"}, "validation/top1"),
        ("metrics.jsonl", {"step": "50"}, "step"),
        ("layers.jsonl", {"step": 50, "layers": [1]}, "layers"),
        ("events.jsonl", {"event": "checkpoint", "step": "x"}, "step"),
        ("events.jsonl", {"event": "checkpoint", "time": float("inf")}, "time"),
        ("events.jsonl", {"event": ["turn"]}, "event"),
    ],
)
def test_json_of_another_shape_is_a_remark(tmp_path, file, content, named):
    folder = made_up.write(tmp_path / "one")
    with (folder / file).open("a" if file.endswith(".jsonl") else "w") as stream:
        stream.write(json.dumps(content) + "\n")
    (run,) = load([folder])
    assert run.remarks == (f"{file}: {named} is not what it should be and was left out.",)
    said = facts.headline(run) + facts.details(run)
    facts.results([run], ["one"])
    facts.target(run)
    turns.splits(run)
    turns.marks(run.events)
    if file == "summary.json":  # the log says the same, as far as it can
        assert (run.step, said[0].value) == (40, "85.47 %")
