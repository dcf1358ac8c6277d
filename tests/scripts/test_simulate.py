"""The simulation script: its files are those of its record, and it can write them again."""

import json
import tomllib
from pathlib import Path

import pytest
import simulate
from pages.cost_model import page
from pages.markdown import insert, percent, table
from plots.cost_model import FIGURES

from largebatch.planning import network_studies, simulation
from largebatch.planning.prediction import load_fitted
from largebatch.planning.step_time import Parameters

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kept():
    return json.loads((ROOT / simulate.RECORD).read_text())


def test_page_and_figures_are_those_of_the_record(kept):
    text = (ROOT / simulate.PAGE).read_text()
    assert text == page(text, kept)
    for name in FIGURES:
        assert f"(images/cost_model_{name}.png)" in text
        assert (ROOT / simulate.IMAGES / f"cost_model_{name}.png").stat().st_size > 10_000


def test_the_kept_parameters_are_the_records(kept):
    found = kept["studies"]["calibration"]
    fitted = load_fitted()
    assert fitted.error == pytest.approx(found["error"], rel=1e-5)
    assert fitted.unseen_error == pytest.approx(found["unseen_error"], rel=1e-5)
    assert dict(fitted.parameters.sustained) == pytest.approx(
        found["parameters"]["sustained"], rel=1e-5
    )
    assert tomllib.loads((ROOT / simulate.FITTED).read_text())["error"] == fitted.error


def test_quick_studies_are_those_of_the_record(kept):
    parameters = Parameters(**kept["studies"]["calibration"]["parameters"])
    again = {
        "timeline": network_studies.timeline(parameters),
        "algorithms": network_studies.algorithms(),
        "initialisation": simulation.initialization(),
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


def test_figures_and_page_are_written_from_a_record(kept, tmp_path, capsys):
    given = ["--from", str(ROOT / simulate.RECORD), "--out", str(tmp_path)]
    assert simulate.main(given) == 0
    assert (tmp_path / simulate.PAGE).read_text() == (ROOT / simulate.PAGE).read_text()
    for name in FIGURES:
        assert (tmp_path / simulate.IMAGES / f"cost_model_{name}.png").is_file()
    printed = capsys.readouterr().out
    assert f"median {100 * kept['studies']['calibration']['median_error']:.1f} %" in printed
    assert not (tmp_path / simulate.RECORD).exists()
    assert listed(printed) == {path for path in tmp_path.rglob("*") if path.is_file()}


def listed(printed):
    lines = printed.splitlines()
    return {Path(line.removeprefix("wrote ")) for line in lines if line.startswith("wrote ")}


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


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"studies": {}}', '{"studies": 1}'])
def test_a_wrong_record_is_refused_in_one_line(text, tmp_path, capsys):
    file = tmp_path / "r.json"
    file.write_text(text)
    assert simulate.main(["--from", str(file)]) == 2
    error = capsys.readouterr().err
    assert "--from" in error
    assert error.count("\n") == 1


def test_blocks_of_a_page_are_replaced_and_nothing_else():
    given = "a\n<!-- generated: t -->\nold\n<!-- end -->\nb"
    assert insert(given, {"t": table(("x",), [(1,)])}) == (
        "a\n<!-- generated: t -->\n\n| x |\n|---|\n| 1 |\n\n<!-- end -->\nb"
    )
    with pytest.raises(ValueError, match=r"\['t'\], expected \['u'\]"):
        insert(given, {"u": ""})
    assert percent(-0.01) == "−1.0 %"
