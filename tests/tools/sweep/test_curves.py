"""Which lines the figure of a sweep has."""

from PIL import Image

from largebatch import plots
from largebatch.tools.sweep import curves, seeds
from largebatch.tools.sweep.space import Axis, from_text
from largebatch.tools.sweep.trial import Trial


def groups(axes, value=lambda choice: 0.5):
    choices = [{}]
    for axis in axes:
        choices = [c | axis.choice(p) for c in choices for p in axis.points]
    trials = [Trial(i, c, "complete", value(c)) for i, c in enumerate(choices)]
    return seeds.groups(trials, "top1")


def shown(panel):
    return {name: [number for number, _ in line] for name, line in panel.lines.items()}


def test_a_line_for_each_choice_of_the_others():
    axes = [from_text("schedule.peak=1,4,2"), from_text("norm.statistics=ema,precise")]
    (panel,) = curves.panels(groups(axes), axes)
    assert (panel.key, panel.unit) == ("schedule.peak", "")
    assert shown(panel) == {"statistics=ema": [1, 2, 4], "statistics=precise": [1, 2, 4]}


def test_numbers_with_units_and_few_points():
    axes = [from_text("schedule.warmup=0,2 epochs,5 epochs"), from_text("loss.l2=0,1")]
    (panel,) = curves.panels(groups(axes), axes)
    assert (panel.key, panel.unit) == ("schedule.warmup", "epochs")
    assert shown(panel) == {"l2=0": [0, 2, 5], "l2=1": [0, 2, 5]}
    for text in ("schedule.warmup=1 epochs,2 epochs,5 steps", "schedule.peak=1,2,inf", "x=a,b,c"):
        other = [from_text(text)]
        assert curves.panels(groups(other), other) == []


def test_options_that_change_together():
    points = tuple(
        (name, str(name == "sgd"), decay, str(workers), str(peak * workers))
        for name, decay, peak in (("sgd", "5e-4", 2), ("lars", "5e-5", 3))
        for workers in (1, 8, 4)
    )
    decided = ("optimizer.name", "optimizer.nesterov", "optimizer.weight_decay")
    axes = [
        Axis((*decided, "batch.workers", "schedule.peak"), points),
        from_text("run.seed=0,1"),
    ]
    found = groups(axes)
    assert len(found) == 6
    (panel,) = curves.panels(found, axes)
    assert panel.key == "batch.workers"  # the weight decay of an optimizer does not change
    # The momentum's form follows from the optimizer.
    assert shown(panel) == {"name=sgd": [1, 4, 8], "name=lars": [1, 4, 8]}
    assert all(len(group.trials) == 2 for line in panel.lines.values() for _, group in line)


def test_an_option_that_has_several_points_at_a_number_is_no_abscissa():
    points = tuple((str(w), str(w * p)) for w in (1, 2, 4) for p in (1, 0.3))
    axes = [Axis(("batch.workers", "schedule.peak"), points)]
    (panel,) = curves.panels(groups(axes), axes)
    assert panel.key == "schedule.peak"


def test_lines_are_in_the_order_of_the_values():
    axes = [from_text("schedule.peak=1,2,3"), from_text("batch.workers=2,16,128")]
    first, second = curves.panels(groups(axes), axes)
    assert list(shown(first)) == ["workers=2", "workers=16", "workers=128"]
    assert second.key == "batch.workers"


def test_the_figure(tmp_path, monkeypatch):
    axes = [from_text("schedule.peak=1,100,10"), from_text("run.seed=0,1")]
    found = groups(axes, lambda c: 0.1 + 0.2 * (c["run.seed"] == "1"))
    kept = []
    save = plots.save
    monkeypatch.setattr(plots, "save", lambda made, path: (kept.append(made), save(made, path)))
    assert curves.draw(tmp_path, found, axes, "top1") == ["curves.png"]
    (drawn,) = kept[0].axes
    assert (drawn.get_xscale(), drawn.get_xlabel(), drawn.get_ylabel()) == (
        "log",
        "schedule.peak",
        "top1, %",
    )
    (bars,) = drawn.containers
    assert bars.lines[0].get_xydata().tolist() == [[1, 20], [10, 20], [100, 20]]
    with Image.open(tmp_path / "curves.png") as image:
        assert image.size[0] > 300
    many = [from_text("schedule.peak=1,2,3"), from_text("run.x=a,b,c,d,e,f,g,h,i")]
    assert curves.draw(tmp_path, groups(many), many, "top1") == []
