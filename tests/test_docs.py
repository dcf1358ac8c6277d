"""What README.md and docs/ name exists: files, commands, recipes, options; and the site builds."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from largebatch.config import default_config, freeze, options

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PLACEHOLDERS = {
    "configs/NAME.py",
    "configs/mine.py",
    "largebatch/optim/lion.py",
    "tests/optim/test_lion.py",
}
"""What a reader is to write."""
OPTIONS = {key for key, _, _ in options(freeze(default_config()))}
FILES = "safetensors|onnx|json|py|pt|toml"
SECTIONS = "|".join(sorted({key.partition(".")[0] for key in OPTIONS}))


def each_page(function):
    names = [str(path.relative_to(ROOT)) for path in PAGES]
    return pytest.mark.parametrize("page", PAGES, ids=names)(function)


@each_page
def test_every_relative_link_and_image_is_there(page):
    targets = [t for t in LINK.findall(page.read_text()) if not re.match(r"[a-z]+:|#", t)]
    files = [target.partition("#")[0] for target in targets]
    assert [file for file in files if not (page.parent / file).exists()] == []


def test_every_extra_that_is_advised_exists():
    """In pages and in what the program prints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = [*PAGES, *(ROOT / "largebatch").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    advised = {
        extra
        for path in files
        for names in re.findall(r"install -e '[a-z.]+\[([a-z0-9,-]+)\]'", path.read_text())
        for extra in names.split(",")
    }
    assert {"sweep", "export", "gpu"} <= advised <= set(project["optional-dependencies"])


@each_page
def test_every_anchor_is_a_heading(page):
    absent = []
    for target in LINK.findall(page.read_text()):
        file, sign, anchor = target.partition("#")
        aim = (page.parent / file) if file else page
        if sign and not re.match(r"[a-z]+:", target) and aim.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", aim.read_text(), re.MULTILINE)
            if anchor not in {_slug(heading) for heading in headings}:
                absent.append(target)
    assert absent == []


def _slug(heading):
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


@each_page
def test_every_script_and_recipe_is_there(page):
    folders, kinds = "scripts|configs|tests|largebatch", "py|sh|yaml|toml"
    pattern = rf"(?<![\w/.])(?:train\.py|(?:{folders})/[\w/.]*\.(?:{kinds}))"
    named = set(re.findall(pattern, page.read_text())) - PLACEHOLDERS
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@each_page
def test_every_option_is_there(page):
    """Written as a flag, or in backquotes as `section.key` or `section.key=value`."""
    text = page.read_text()
    flags = re.findall(r"--config\.(\w+\.\w+)", text)
    quoted = re.findall(rf"`((?:{SECTIONS})\.(?!{FILES})\w+)(?:=[^`]*)?`", text)
    named = set(flags) | set(quoted)
    assert sorted(named - OPTIONS - {"section.key"}) == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path):
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason="needs the extra docs")
    configuration = ROOT / "scripts" / "pages" / "mkdocs.yml"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", configuration, "-d", tmp_path],
        cwd=tmp_path,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {"index.html", "tutorial.html"} <= {path.name for path in pages}
    for path in pages:
        loaded = r"<(?:script|img|iframe)[^>]*\ssrc=\"?https?:|<link[^>]*\shref=\"?https?:"
        assert not re.search(loaded, path.read_text()), path
    optim = (tmp_path / "api" / "optim.html").read_text()
    assert 'id="largebatch.optim.lars.lars"' in optim  # static analysis has found the functions
