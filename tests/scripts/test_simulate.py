"""The simulation script: its files are those of its record."""

import json
from pathlib import Path

import pytest
import simulate

from largebatch.planning import simulation
from largebatch.planning.step_time import Parameters

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kept():
    return json.loads((ROOT / simulate.RECORD).read_text())


def test_the_page_has_the_errors_of_the_record(kept):
    found = kept["studies"]["calibration"]
    text = (ROOT / "docs" / "cost-model.md").read_text()
    shares = (found[key] for key in ("median_error", "worst_error"))
    assert " | ".join(f"{100 * share:.1f} %" for share in shares) in text


@pytest.mark.slow
def test_quick_studies_are_those_of_the_record(kept):
    parameters = Parameters(**kept["studies"]["calibration"]["parameters"])
    again = {
        "timeline": simulation.timeline(parameters),
        "algorithms": simulation.algorithms(),
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


def test_a_run_writes_its_record(kept, tmp_path, monkeypatch, capsys):
    parameters = Parameters(**kept["studies"]["calibration"]["parameters"])
    monkeypatch.setattr(simulation, "all_studies", lambda: (kept["studies"], parameters))
    assert simulate.main(["--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / simulate.RECORD).read_text())
    assert written["studies"] == kept["studies"]
    assert written["command"] == f"python scripts/simulate.py --out {tmp_path}"
    printed = capsys.readouterr().out
    assert f"median {100 * kept['studies']['calibration']['median_error']:.1f} %" in printed
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == {
        tmp_path / simulate.RECORD,
        tmp_path / simulate.FITTED,
    }
    fitted = (tmp_path / simulate.FITTED).read_text()
    assert fitted == (ROOT / simulate.FITTED).read_text()
