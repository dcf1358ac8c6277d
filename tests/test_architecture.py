"""The packages' imports: the contracts of pyproject.toml, and the figure of them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))


def test_packages_import_only_what_is_below_them():
    pytest.importorskip("importlinter")
    call = "import sys; from importlinter import cli; sys.exit(cli.lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_figure_shows_the_imports():
    pytest.importorskip("grimp")
    from pages import architecture

    edges = architecture.imports()
    assert len(edges) <= 12
    assert architecture.FIGURE.read_text() == architecture.draw(edges)
