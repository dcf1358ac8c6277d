"""Reading runs: complete, growing, rolled back, damaged."""

import pytest

from largebatch.errors import DataError
from largebatch.tools.report import charts, summary
from largebatch.tools.report.runs import attempts_of, current, load, marks
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


def test_a_damaged_log_is_a_remark(tmp_path):
    folder = made_up.write(tmp_path / "one")
    (folder / "layers.jsonl").write_bytes(b'{"step": 1}\n\0\0\0\n{"step": 2}\n')
    (run,) = load([folder])
    assert (len(run.metrics), run.layers) == (40, ())
    assert "layers.jsonl: line 2 of 3" in run.remarks[0]


def test_no_run(tmp_path):
    with pytest.raises(DataError, match=r"metrics.jsonl, config.json, events.jsonl"):
        load([tmp_path])
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(DataError, match="no trial of this sweep has started"):
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
    found += [{"step": 30, "more": 1}]
    assert current(found) == (
        {"step": 10, "n": 0},
        {"step": 20, "n": 3},
        {"step": 30, "n": 5, "more": 1},
    )


def test_a_log_of_another_program_is_a_remark(tmp_path):
    folder = made_up.write(tmp_path / "one")
    (folder / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    (folder / "layers.jsonl").write_text('{"step": "x"}\n')
    (folder / "events.jsonl").write_text('{"event": "turn", "step": 1}\n')
    (run,) = load([folder])
    assert (run.metrics, run.layers, run.events) == ((), (), ())
    assert len(run.remarks) == 3


def test_what_is_no_number_is_missing_in_a_column(tmp_path):
    rows = [{"step": 1, "samples": "x", "loss": 2.0}, {"step": 2, "samples": 9, "loss": None}]
    folder = made_up.write(tmp_path / "one", metrics=rows)
    (run,) = load([folder])
    assert run.metrics.last("samples") == 9
    assert run.metrics.last("loss") == 2.0


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "[1]"),
        ("config.json", '{"config": '),
        ("config.json", '{"config": 3}'),
        ("config.json", '{"config": {"run": 3}}'),
        ("summary.json", '{"steps": "x"}'),
        ("summary.json", '{"status": "comp'),
    ],
)
def test_a_damaged_file_is_a_remark(tmp_path, file, content):
    folder = made_up.write(tmp_path / "one")
    (folder / file).write_text(content)
    (run,) = load([folder])
    assert [remark.partition(" ")[0] for remark in run.remarks] == [file]
    assert (run.config, run.summary) == (
        ({}, made_up.SUMMARY) if file == "config.json" else (made_up.config(), {})
    )
    assert (run.step, summary.headline(run)[0].value) == (40, "85.47 %")


def test_two_attempts_and_the_last_times_of_each(tmp_path):
    (run,) = load([made_up.write(tmp_path / "one")])
    (first, _), (second, _) = attempts_of(run.events)
    assert (first["time"], first["devices"]) == (made_up.BEGAN, 2)
    assert (second["step"], second["devices"]) == (13, 1)
    bars = charts.of_time(run)
    assert bars.unit == "seconds"
    assert [title for title, _ in bars.rows] == ["attempt 1", "attempt 2"]
    parts = ("compile", "data wait", "step", "evaluation", "checkpoint", "other")
    # 6 s of training, of which 2 were waits; then 7 and 0.5.
    assert bars.rows[0][1] == dict(zip(parts, (3.0, 2.0, 4.0, 1.0, 0.5, 2.0), strict=True))
    assert bars.rows[1][1] == dict(zip(parts, (1.0, 0.5, 6.5, 1.0, 0.5, 0.0), strict=True))


def test_events(tmp_path):
    (run,) = load([made_up.write(tmp_path / "one")])
    assert [(mark.kind, mark.step, mark.text) for mark in marks(run.events)] == [
        ("start", 0, "attempt 1, 2 × H200"),
        ("evaluation", 10, "top-1 40.00 %"),
        ("checkpoint", 10, ""),
        ("slow host", 12, "process 1 on b takes 1.50 × the median, input"),
        ("preempted", 13, ""),
        ("restart", 13, "attempt 2, resumed after step 13, 1 × H200"),
        ("skipped", 15, ""),
        ("rollback", 16, "reason loss"),
    ]
