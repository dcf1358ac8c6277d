"""Listing, showing and proposing recipes; the page that is generated."""

import recipes
from recipes import DOCS

from largebatch.config.recipes import all_recipes
from largebatch.tools import recipe_docs as document


def test_the_page_is_up_to_date():
    """python scripts/recipes.py --write_docs"""
    assert DOCS.read_text() == document.page(all_recipes(recipes.ROOT / "configs"))


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
    assert "C: carried over from a sister run: unverified for this one" in printed


def test_a_proposal(capsys):
    assert recipes.main(["--batch", "40000"]) == 0
    printed = capsys.readouterr().out
    assert "interpolated from 32,768" in printed
    assert "python train.py" in printed


def test_errors_are_a_line(capsys):
    assert recipes.main(["fujitsu2019"]) == 2
    assert "no recipe file fujitsu2019; did you mean" in capsys.readouterr().err
    assert recipes.main(["--batch", "100"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
