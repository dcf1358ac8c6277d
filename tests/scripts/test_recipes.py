"""Listing, showing and proposing recipes."""

import dataclasses

import recipes

from largebatch.planning import ladder
from largebatch.tracking import Summary


def test_the_page_names_the_range_and_the_error_of_proposals():
    text = (recipes.ROOT / "docs" / "recipes.md").read_text()
    assert f"from {ladder.LEAST:,} to {ladder.MOST:,}" in text
    assert f"{ladder.deviation():.1f} epochs (root mean square)" in text


def test_all_are_listed(capsys):
    assert recipes.main([]) == 0
    printed = capsys.readouterr().out
    for path in (recipes.ROOT / "configs").glob("*.py"):
        published = "PUBLISHED" in path.read_text()
        assert (f"\n{path.stem} " in printed) == published


def test_one_is_shown_with_its_sources(capsys):
    assert recipes.main(["fujitsu2019_81920"]) == 0
    printed = capsys.readouterr().out
    assert "Yamazaki et al. 2019" in printed
    rows = [line.split() for line in printed.splitlines()]
    assert ["schedule.peak", "13.0", "C"] in rows
    assert ["batch.workers", "2048", "A"] in rows
    assert "C: copied from a related run: unverified" in printed


def test_a_proposal(capsys):
    assert recipes.main(["--batch", "100000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "extrapolated from 67,840" in lines[0]
    assert lines[-1].startswith("python train.py --config=configs/mlperf40_nvidia_40k.py")
    assert "--config.batch.workers=" in lines[-1]


def test_a_proposal_is_compared_with_the_noise_scale_of_a_run(capsys, tmp_path):
    finished = Summary("complete", 0.9, 1.0, 0.5, 10, 1000, 1.0, 1.0, 1.0)
    finished.write(tmp_path)
    assert recipes.main(["--batch", "2048", f"--run={tmp_path}"]) == 2
    assert "noise_scale" in capsys.readouterr().err
    dataclasses.replace(finished, noise_scale=4096.0, noise_scale_error=100.0).write(tmp_path)
    assert recipes.main(["--batch", "2048", f"--run={tmp_path}"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "1.5 times the images" in first
    assert second.startswith("batch 2,048: interpolated")
