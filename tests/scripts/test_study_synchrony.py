"""The synchrony study from its command line, on its quick grid."""

import json
import shlex
from pathlib import Path

import pytest
import study_synchrony
from pages import studies

from largebatch.planning.studies import policies as chosen

OTHER = Path(__file__).parents[2] / "records" / "2026-11-21_cost_model.json"


@pytest.mark.slow
def test_the_quick_grid_is_recorded_and_drawn(tmp_path, capsys):
    record, images = tmp_path / "record.json", tmp_path / "images"
    given = ["--quick", f"--json={record}", f"--images={images}"]
    assert study_synchrony.main(given) == 0
    kept = json.loads(record.read_text())
    assert kept["command"] == shlex.join(["python", "scripts/study_synchrony.py", *given])
    assert kept["environment"]["versions"]["jaxlib"]
    setup, policies = chosen.quick()
    assert [each["name"] for each in kept["policies"]] == list(policies)
    found = {each["name"]: each for each in kept["policies"]}
    for name, each in found.items():
        assert each["curve"]["top1"][-1] == each["top1"]["mean"]
        asynchronous = each["kind"] == "asynchronous"
        assert each["updates"] == setup.steps * (setup.workers if asynchronous else 1), name
    whole = setup.steps * setup.batch
    assert found["wait for all"]["images"]["mean"] == whole
    assert found["drop 1"]["images"]["mean"] == whole * 3 / 4
    assert found["1 backup"]["images"]["mean"] == whole
    assert found["1 backup"]["computed"]["mean"] == whole * 5 / 4
    assert found["asynchronous 1"]["staleness"]["mean"] == 0
    assert found["drop 1"]["seconds"]["mean"] < found["wait for all"]["seconds"]["mean"]
    printed = capsys.readouterr().out
    assert studies.synchrony(kept) in printed

    drawn = {path.name: path.read_bytes() for path in images.iterdir()}
    assert set(drawn) == {
        f"synchrony_{x}.png" for x in ("accuracy", "policies", "staleness", "steps")
    }
    assert study_synchrony.main([f"--draw={record}", f"--images={images / 'again'}"]) == 0
    assert drawn == {path.name: path.read_bytes() for path in (images / "again").iterdir()}


def test_arrivals_drawn_are_near_those_of_the_closed_form():
    """4,000 steps: a share is off by at most 0.8 % · 4 of its standard deviation."""
    setup, policies = chosen.full()
    found = chosen.arrivals(setup)
    for each in found["ranks"]:
        worst = max(abs(a - b) for a, b in zip(each["drawn"], each["closed_form"], strict=True))
        assert worst < 0.032, each["rank"]
    waits = chosen.step_times(setup, policies["wait for all"])
    drops = chosen.step_times(setup, policies["drop 4"])
    assert waits["mean_s"] > drops["mean_s"]
    assert drops["counted"] == 12 / 16
    assert abs(sum(waits["share"]) - 1) < 1e-9


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--quick", "--seeds=0,x"], "--seeds: expected integers from 0 with commas between"),
        (["--quick", "--seeds=-1"], "--seeds: expected integers from 0 with commas between"),
        ([f"--draw={OTHER}"], "--images"),
        (
            [f"--draw={OTHER}", "--images=IMAGES"],
            f"--draw: expected a record of this command, got {OTHER}",
        ),
    ],
)
def test_mistakes_are_one_line(flags, words, capsys, tmp_path):
    flags = [flag.replace("IMAGES", str(tmp_path)) for flag in flags]
    assert study_synchrony.main(flags) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
