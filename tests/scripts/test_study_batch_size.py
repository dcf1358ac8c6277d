"""The batch-size study from its command line, on its quick grid, and the page of both studies."""

import json
from pathlib import Path

import pytest
import study_batch_size
from pages import studies

from largebatch.planning.studies import batch_size

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_quick_grid_is_recorded_and_drawn(tmp_path, capsys, monkeypatch):
    grid, arms = batch_size.quick()
    arms = arms[:2]  # one set of programs instead of two
    monkeypatch.setattr(batch_size, "quick", lambda: (grid, arms))
    record, images = tmp_path / "record.json", tmp_path / "images"
    given = ["--quick", "--seeds=1", f"--json={record}", f"--images={images}"]
    assert study_batch_size.main(given) == 0
    kept = json.loads(record.read_text())
    assert kept["environment"]["versions"]["jaxlib"]
    found = [(each["name"], each["batch"]) for each in kept["results"]]
    expected = [(a.name, w * grid.images) for w in grid.workers for a in arms]
    assert found == expected
    for each in kept["results"]:
        assert each["steps"] == -(-1437 * grid.epochs // each["batch"])
        assert each["share"] == each["batch"] / 1437
        for key in ("top1", "top1_ema"):
            (value,) = each[key]["values"]
            assert each[key]["mean"] == value
            assert (360 * value) == pytest.approx(round(360 * value))
    printed = capsys.readouterr().out
    assert all(studies.batch_size(kept, key) in printed for key in ("top1", "top1_ema"))
    names = {"batch_size_warm_up.png", "batch_size_statistics.png"}
    assert {path.name for path in images.iterdir()} == names


def test_the_page_has_the_tables_of_the_records_and_every_figure():
    page = (ROOT / "docs" / "studies.md").read_text()
    assert page == studies.page(page, ROOT)
    assert all(str(file) in page for file in (studies.SYNCHRONY, studies.BATCH_SIZE))
    named = [part.partition(")")[0] for part in page.split("](images/")[1:]]
    assert len(named) == 6
    for name in named:
        assert (ROOT / "docs" / "images" / name).read_bytes().startswith(b"\x89PNG")
