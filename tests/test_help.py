"""`--help` of every command fits a screen and can be pasted from; docs/commands.md agrees."""

import contextlib
import functools
import importlib
import io
import os
import re
import sys
from pathlib import Path
from unittest import mock

import pytest

import tests.scripts  # puts scripts/ on the path
from largebatch.fault_tolerance import exit_codes as codes

ROOT = Path(tests.scripts.__file__).parents[2]
tables = importlib.import_module("pages.tables")
PATHS = tables.paths(ROOT)
LINES = 34
"""Of 80 columns: what a small terminal shows at once."""
each_command = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@functools.cache
def help_of(path, *words):
    """What a command prints for --help."""
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}),
        mock.patch.object(sys, "argv", [path.name]),
        contextlib.redirect_stdout(out),
        pytest.raises(SystemExit) as end,
    ):
        importlib.import_module(path.stem).main([*words, "--help"])
    assert not end.value.code
    return out.getvalue()


@each_command
def test_help_is_a_screenful_with_an_example(path):
    text = help_of(path)
    assert text.startswith(f"usage: {path.name}")
    assert len(text.splitlines()) <= LINES, text
    shown = re.sub(r"\\\n\s*", "", text)
    lines = [line.strip() for line in shown.splitlines()]
    about = tables.command(path, ROOT)
    assert about.summary in " ".join(text.split())
    assert about.examples
    for example in about.examples:
        assert example in lines
        assert example.startswith(f"python {about.name}")


@each_command
def test_a_mistake_is_one_line_and_code_2(path, capsys):
    words = ["input"] if path.stem == "benchmark" else []
    assert importlib.import_module(path.stem).main([*words, "--no_such_flag=1"]) == codes.MISTAKE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_generated_tables_are_current():
    for path, text in tables.pages(ROOT).items():
        assert path.read_text() == text, "run python scripts/options.py"


def test_the_table_of_exit_codes_is_complete():
    known = {str(value) for value in vars(codes).values() if isinstance(value, int)}
    for page in ("commands.md", "reliability.md"):
        text = (ROOT / "docs" / page).read_text()
        section = text.partition("## Exit codes")[2].partition("\n## ")[0]
        listed = set(re.findall(r"^\| (\d+)", section, re.MULTILINE))
        assert known <= listed, page


def invocations():
    """Each command in README.md and docs/ as (where, script, its words)."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = re.sub(r"\\\n\s*", "", page.read_text())
        for found in re.findall(r"^.*?\bpython ((?:train|scripts/\w+)\.py[^`\n]*)", text, re.M):
            for part in re.split(r" -- | && | \| | # ", found):
                name = part.split(" ")[0]
                if name.endswith(".py"):
                    yield page.relative_to(ROOT), name, part.split(" ")[1:]


def test_every_flag_in_the_pages_is_known_to_its_command():
    unknown = []
    for page, name, words in invocations():
        path = ROOT / name
        sub = [word for word in words[:1] if path.stem == "benchmark" and word[0] not in "-{"]
        text = help_of(path, *sub)
        flags = re.findall(r"(?<=\s)--\w[\w-]*(?![\w.-])", " ".join(["", *words]))
        unknown += [(str(page), name, f) for f in flags if not re.search(rf"{f}\b", text)]
    assert unknown == []
