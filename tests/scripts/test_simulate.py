"""The simulation script: what it wrote is what its record gives, and it can write it anew."""

import json
import struct
import tomllib
from pathlib import Path

import pytest
import simulate
from pages.cost_model import page
from pages.markdown import flowed, percent
from plots.cost_model import FIGURES

from largebatch.planning import network_studies, simulation
from largebatch.planning.prediction import load_fitted
from largebatch.planning.step_time import Parameters

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kept():
    return json.loads((ROOT / simulate.RECORD).read_text())


def test_the_page_is_what_the_record_gives(kept):
    assert (ROOT / simulate.PAGE).read_text() == page(kept)


def test_every_picture_is_there_and_on_the_page(kept):
    text = page(kept)
    for name in FIGURES:
        assert f"(images/cost_model_{name}.png)" in text
        assert (ROOT / simulate.PICTURES / f"cost_model_{name}.png").stat().st_size > 10_000


def test_the_kept_parameters_are_the_records(kept):
    found = kept["studies"]["calibration"]
    fitted = load_fitted()
    assert fitted.error == pytest.approx(found["error"], rel=1e-5)
    assert fitted.unseen_error == pytest.approx(found["unseen_error"], rel=1e-5)
    assert dict(fitted.parameters.sustained) == pytest.approx(
        found["parameters"]["sustained"], rel=1e-5
    )
    assert tomllib.loads((ROOT / simulate.FITTED).read_text())["error"] == fitted.error


def test_the_record_says_how_it_was_made(kept):
    assert kept["command"] == "python scripts/simulate.py"
    assert "jax" in kept["environment"]["versions"]


def test_quick_studies_are_those_of_the_record(kept):
    parameters = Parameters(**kept["studies"]["calibration"]["parameters"])
    again = {
        "timeline": network_studies.timeline(parameters),
        "algorithms": network_studies.algorithms(),
        "initialisation": simulation.initialisation(),
    }
    for name, found in again.items():
        assert _close(found, kept["studies"][name]), name


def _close(found, expected) -> bool:
    """Equal, numbers to a millionth."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            _close(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(_close, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-6)
    return found == expected


def test_the_bucket_study_has_its_optimum_where_dynamic_programming_says(kept):
    found = kept["studies"]["bucket_sizes"]
    best = found["named"]["optimum"]["exposed_s"]
    assert all(row["exposed_s"] >= best * (1 - 1e-9) for row in found["least_mib"])
    assert all(row["exposed_s"] >= best * (1 - 1e-9) for row in found["named"].values())
    small, large = found["least_mib"][0], found["least_mib"][-1]
    assert min(small["exposed_s"], large["exposed_s"]) > 10 * best


def test_pictures_and_page_are_written_anew(kept, tmp_path, capsys):
    given = ["--from", str(ROOT / simulate.RECORD), "--out", str(tmp_path)]
    assert simulate.main(given) == 0
    assert (tmp_path / simulate.PAGE).read_text() == page(kept)
    for name in FIGURES:
        head = (tmp_path / simulate.PICTURES / f"cost_model_{name}.png").read_bytes()[:24]
        width, height = struct.unpack(">II", head[16:24])
        assert width > 600
        assert height > 300
    printed = capsys.readouterr().out
    assert f"median {100 * kept['studies']['calibration']['median_error']:.1f} %" in printed
    assert "Fujitsu 81,920" in printed
    assert not (tmp_path / simulate.RECORD).exists()
    assert listed(printed) == {path for path in tmp_path.rglob("*") if path.is_file()}


def listed(printed):
    lines = printed.splitlines()
    return {Path(line.removeprefix("wrote ")) for line in lines if line.startswith("wrote ")}


def test_without_out_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tracked = {ROOT / name: (ROOT / name).stat().st_mtime_ns for name in (simulate.PAGE,)}
    assert simulate.main(["--from", str(ROOT / simulate.RECORD)]) == 0
    printed = capsys.readouterr().out
    assert "--out=DIR" in printed
    assert not listed(printed)
    assert not list(tmp_path.iterdir())
    assert tracked == {path: path.stat().st_mtime_ns for path in tracked}


def test_a_run_writes_its_record(kept, tmp_path, monkeypatch, capsys):
    parameters = Parameters(**kept["studies"]["calibration"]["parameters"])
    monkeypatch.setattr(simulation, "all_studies", lambda: (kept["studies"], parameters))
    monkeypatch.setattr(simulate, "draw", lambda studies, folder: [])
    assert simulate.main(["--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / simulate.RECORD).read_text())
    assert written["studies"] == kept["studies"]
    assert written["command"] == f"python scripts/simulate.py --out {tmp_path}"
    assert listed(capsys.readouterr().out) == {p for p in tmp_path.rglob("*") if p.is_file()}
    fitted = (tmp_path / simulate.FITTED).read_text()
    assert fitted == (ROOT / simulate.FITTED).read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "cannot be read"), ("{", "cannot be read"), ("{}", "is no record of")],
)
def test_a_wrong_record_is_told_in_a_line(text, told, tmp_path, capsys):
    file = tmp_path / "r.json"
    if text is not None:
        file.write_text(text)
    assert simulate.main(["--from", str(file), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_pictures_that_cannot_be_drawn_are_told_before_the_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(simulate.importlib.util, "find_spec", lambda name: None)
    assert simulate.main(["--out", str(tmp_path)]) == 2
    assert "need matplotlib" in capsys.readouterr().err


def test_prose_is_filled_and_tables_are_not():
    given = "## A\none\ntwo\n\n| a | b |\n|---|---|\n\n- x\n  y\n- z"
    assert flowed(given) == "## A\none two\n\n| a | b |\n|---|---|\n\n- x y\n- z"
    assert percent(-0.01) == "−1.0 %"
