"""Options that differ, labels of runs made of them, and intervals over seeds."""

import json

import numpy as np
import pytest

from largebatch.config import Config
from largebatch.tools.report import charts, summary
from largebatch.tools.report.compare import (
    differing,
    groups,
    interval,
    labels,
)
from largebatch.tools.report.runs import load
from tests.tools.report import made_up


def test_only_what_differs_in_the_order_of_the_schema(tmp_path):
    runs = load(
        [
            made_up.write(tmp_path / "a"),
            made_up.write(tmp_path / "b", seed=1, model__width=8, data__made_up="x"),
            made_up.write(tmp_path / "c", batch__workers=16),
        ]
    )
    assert differing(runs) == (
        ("model.width", (4, 8, 4), True),
        ("batch.workers", (8, 8, 16), True),
        ("run.seed", (0, 1, 0), True),
        ("data.made_up", (None, "x", None), None),
    )
    assert differing(runs[:1]) == ()


MANY = {"seed": 1, "model__width": 8, "model__name": "x", "batch__workers": 2}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        # Options that do not change the mathematics name no run.
        ([{"run__log_every": "1 steps"}, {"run__log_every": "2 steps"}], ["0", "1"]),
        # A repeated run is named by its directory too.
        ([{}, {"seed": 2}, {"seed": 2}], ["run.seed=0", "run.seed=2 (1)", "run.seed=2 (2)"]),
        (
            [{"seed": 1}, {"seed": 2, "model__width": 8}],
            ["model.width=4, run.seed=1", "model.width=8, run.seed=2"],
        ),
        ([{}, MANY], ["0", "1"]),
        ([{"data__source": "a" * 60}, {"data__source": "b"}], ["0", "1"]),
    ],
)
def test_runs_are_named_by_what_differs(tmp_path, changes, names):
    found = labels(
        load([made_up.write(tmp_path / f"{n}", **each) for n, each in enumerate(changes)])
    )
    assert found == names


def test_the_interval_by_hand():
    # Of 1, 2, 3, 4: mean 2.5, s = √(5/3) = 1.290994, t(0.975, 3) = 3.182446 of every table,
    # so 3.182446 · 1.290994 / 2 = 2.054260.
    found = interval([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.half == pytest.approx(2.054260, abs=1e-6)
    assert interval([0.7]) == (0.7, None)


def test_groups_differ_in_the_seed_only_and_count_each_once(tmp_path):
    made = {
        "a0": {},
        "b0": {"model__width": 8},
        "a1": {"seed": 1},
        "a0again": {},
        "a2": {"seed": 2},
    }
    runs = load([made_up.write(tmp_path / name, **options) for name, options in made.items()])
    found = [[run.name for run in group] for group in groups(runs)]
    assert found == [["a0", "a1", "a2"], ["b0"], ["a0again"]]


def test_only_complete_runs_enter_the_mean(tmp_path):
    for seed in range(4):
        made_up.write(tmp_path / f"s{seed}", seed=seed)
    failed = made_up.SUMMARY | {"status": "failed"}
    made_up.write(tmp_path / "s4", seed=4, summary=failed)
    # Killed at step 10, whose accuracy is far below the others', after an attempt of 5 steps.
    killed = {"metrics": made_up.rows(10), "summary": made_up.SUMMARY | {"steps": 5}}
    made_up.write(tmp_path / "s5", seed=5, **killed)
    # Without any evaluation in its log, and none of the loss in its summary.
    unknown = made_up.SUMMARY | {"loss": None, "top1": made_up.rows()[-1]["validation/top1"]}
    made_up.write(tmp_path / "s6", seed=6, metrics=[], summary=unknown)
    found = groups(load(sorted(tmp_path.iterdir())))
    _, ((names, seeds, top1, loss, time),) = summary.over_seeds(found)
    assert names == "s0, s1, s2, s3, s4, s5, s6"
    assert (seeds, top1) == ("5 of 7", "85.47 ± 0.00 %")
    # 0.3707 and up by 0.01: mean 0.3857, t(0.975, 3) · 0.01 · √(5/3) / 2 = 3.1824 · 0.0064550.
    assert loss == "0.3857 ± 0.0205 (4 of 5)"
    assert time == "25.0 ± 0.0 s"
    # The curve has the evaluations of the complete ones that logged any.
    drawn = charts.over_seeds(groups(load([tmp_path / f"s{seed}" for seed in (0, 1, 4, 5)])))
    (line,) = drawn.panels[0].lines
    assert line.label == "s0 and 1 more, 2 of 4 seeds"
    np.testing.assert_array_equal(line.x["samples"], [1000, 2000, 3000, 4000])
    assert (line.band[0] <= line.y).all()
    assert charts.over_seeds(groups(load([tmp_path / f"s{seed}" for seed in (0, 4, 5)]))) is None


def place(folder, source, *, identity=7, content=0, classes=10, prefix="", **changes):
    """Write a run on a dataset with the facts that a training keeps."""
    path = made_up.write(folder, data__source=source, **changes)
    about = json.loads((path / "config.json").read_text())
    about["facts"] = {"train_examples": 1437, "validation_examples": 360, "classes": classes}
    about["facts"] |= {"identity": identity, "content": content}
    about["source"] = {"classes": [f"{prefix}{n}" for n in range(classes)]}
    (path / "config.json").write_text(json.dumps(about))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"batch__microbatch": "2", "comm__bucket_mib": 1.0},
        {"health__limit_s": 15.0, "run__keep_best": True},
        {"data__flip": "none"},  # at its default, which the others do not state
    ],
)
def test_options_without_effect_do_not_separate_seeds(tmp_path, changes):
    default = {"data__flip": Config().data.flip} if "data__flip" in changes else changes
    runs = load(
        [made_up.write(tmp_path / str(n), seed=n, **(default if n else {})) for n in range(3)]
    )
    assert groups(runs) == [list(runs)]


@pytest.mark.parametrize(
    "other", [{"content": 9}, {"classes": 2}, {"prefix": "class "}, {"source": "digits"}]
)
def test_runs_on_two_datasets_are_not_compared(tmp_path, other):
    """The best of one run is no best."""
    source = other.pop("source", "folder:x")
    first = {"identity": 0} if source == "digits" else {}  # without facts, the option counts
    other |= first
    folders = [
        place(tmp_path / "a", "folder:x", seed=0, **first),
        place(tmp_path / "b", source, seed=1, **other),
    ]
    runs = load(folders)
    assert summary.best(runs) == []
    assert not any(cell.best for row in summary.results(runs, labels(runs))[1] for cell in row)
    assert len(groups(runs)) == 2
    # With a third run, the best is that of its dataset.
    runs = load([*folders, place(tmp_path / "c", "folder:x", seed=2, **first)])
    assert summary.best(runs) in ([0], [2])


def test_trials_are_named_by_the_options_that_the_sweep_varies(tmp_path):
    rows = ["trial,optimizer.weight_decay,schedule.peak,state,value,top1,loss,step,seconds,error"]
    for number, (peak, decay) in enumerate(((0.5, 0.1), (0.7, 0.2), (0.9, 0.3))):
        made_up.write(
            tmp_path / "trials" / f"{number:04}",
            schedule__peak=peak,
            optimizer__weight_decay=decay,
            schedule__warmup=f"{number} epochs",  # follows
        )
        state = "pruned" if number == 1 else "complete"
        rows.append(f"{number},{decay},{peak},{state},,,,,,")
    (tmp_path / "sweep.json").write_text("{}")
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    runs = load(sorted((tmp_path / "trials").iterdir()))
    assert labels(runs)[0] == "optimizer.weight_decay=0.1, schedule.peak=0.5"
    assert [run.status for run in runs] == ["complete", "pruned", "complete"]
    for damage in ("", "[]\n[]\n", "trial,state\nx,pruned\n", rows[0] + "\n1,0.2"):
        (tmp_path / "results.csv").write_text(damage)
        assert load([tmp_path / "trials" / "0001"])[0].status == "complete"
