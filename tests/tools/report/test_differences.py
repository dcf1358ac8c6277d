"""Options that differ between runs, and names of runs made of them."""

from largebatch.config.options import options
from largebatch.config.schema import Config
from largebatch.tools.report.differences import EFFECTIVE, differing, labels, value_text
from largebatch.tools.report.runs import load
from largebatch.tools.report.seeds import groups
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


def test_an_option_that_a_version_lacked_is_at_its_default(tmp_path):
    runs = load(
        [
            made_up.write(tmp_path / "a", run__log_every="10 steps"),
            made_up.write(tmp_path / "b", batch__stages=[]),
            made_up.write(tmp_path / "c", run__log_every="5 steps"),
        ]
    )
    assert differing(runs) == (("run.log_every", ("10 steps", "10 steps", "5 steps"), False),)
    assert differing(runs[:2]) == ()


def test_a_run_without_a_configuration_differs_in_nothing(tmp_path):
    folders = [made_up.write(tmp_path / name) for name in "ab"]
    (folders[1] / "config.json").unlink()
    runs = load(folders)
    assert differing(runs) == ()
    assert groups(runs) == [[runs[0]], [runs[1]]]


def test_options_without_effect_are_left_out(tmp_path):
    def runs(folder, **options):
        folders = [made_up.write(folder / "a", **options)]
        folders.append(made_up.write(folder / "b", optimizer__rmsprop_rate=0.5, **options))
        return load(folders)

    assert differing(runs(tmp_path / "lars")) == ()
    (found,) = differing(runs(tmp_path / "rmsprop", optimizer__name="rmsprop_sgd"))
    assert (found.key, found.values) == ("optimizer.rmsprop_rate", (3e-4, 0.5))


def test_what_decides_about_effects_are_options():
    known = {key: default for key, default, _ in options(Config())}
    assert {*EFFECTIVE} <= {*known}
    assert {decider for decider, _ in EFFECTIVE.values()} <= {*known}


def test_runs_are_named_by_what_differs(tmp_path):
    def named(*changes):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return labels(
            load([made_up.write(folder / f"{n}", **each) for n, each in enumerate(changes)])
        )

    assert named({"batch__workers": 8}, {"batch__workers": 16}) == [
        "batch.workers=8",
        "batch.workers=16",
    ]
    # What does not change the mathematics names no run.
    assert named({"run__log_every": "1 steps"}, {"run__log_every": "2 steps"}) == ["0", "1"]
    # A repeated run is named by its directory too.
    assert named({"seed": 1}, {"seed": 2}, {"seed": 2}) == [
        "run.seed=1",
        "run.seed=2 (1)",
        "run.seed=2 (2)",
    ]
    assert named({"seed": 1}, {"seed": 2, "model__width": 8}) == [
        "width=4, seed=1",
        "width=8, seed=2",
    ]
    many = {"seed": 1, "model__width": 8, "model__name": "x", "batch__workers": 2}
    assert named({}, many) == ["0", "1"]
    assert named({"data__source": "a" * 60}, {"data__source": "b"}) == ["0", "1"]


def test_values_are_short():
    assert value_text(1 / 0.75) == "1.33333"
    assert value_text([0.1 + 0.2, "a"]) == "[0.3, a]"
    assert [value_text(v) for v in (None, "", True, 3)] == ["–", "(empty)", "true", "3"]
