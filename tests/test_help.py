"""`--help` of every command fits a screen and can be pasted from; docs/commands.md agrees."""

import contextlib
import functools
import importlib
import io
import os
import re
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest

import largebatch
import tests.scripts  # puts scripts/ on the path
from largebatch.fault_tolerance import exit_codes as codes

ROOT = Path(tests.scripts.__file__).parents[2]
commands = importlib.import_module("pages.commands")
PATHS = commands.paths(ROOT)
LINES = 30
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


def test_the_commands_are_found():
    assert {"train", "plan", "sweep", "report", "options"} <= {path.stem for path in PATHS}


@each_command
def test_help_is_a_screenful_with_an_example(path):
    text = help_of(path)
    assert text.startswith(f"usage: {path.name}")
    assert len(text.splitlines()) <= LINES, text
    shown = re.sub(r"\\\n\s*", "", text)
    lines = [line.strip() for line in shown.splitlines()]
    said = commands.command(path, ROOT)
    assert said.summary in " ".join(text.split())
    assert said.examples
    for example in said.examples:
        assert example in lines
        assert example.startswith(f"python {said.name}")


@each_command
def test_a_mistake_is_one_line_and_code_2(path, capsys):
    words = ["input"] if path.stem == "benchmark" else []
    assert importlib.import_module(path.stem).main([*words, "--no_such_flag=1"]) == codes.MISTAKE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@each_command
def test_the_version_is_that_of_the_package(path, capsys):
    with pytest.raises(SystemExit) as end:
        importlib.import_module(path.stem).main(["--version"])
    assert not end.value.code
    assert capsys.readouterr().out == f"largebatch {largebatch.__version__}\n"


def test_every_script_is_a_command():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    assert scripts == {path.stem for path in PATHS} - {"train"}


def test_the_table_of_commands_is_current():
    page = ROOT / "docs" / "commands.md"
    assert page.read_text() == commands.page(page.read_text(), ROOT), (
        "run python scripts/options.py"
    )


def test_the_table_of_exit_codes_is_complete():
    known = {str(value) for value in vars(codes).values() if isinstance(value, int)}
    for page in ("commands.md", "reliability.md"):
        text = (ROOT / "docs" / page).read_text()
        section = text.partition("## Exit codes")[2].partition("\n## ")[0]
        told = set(re.findall(r"^\| (\d+)", section, re.MULTILINE))
        assert known <= told, page


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
    seen, unknown = 0, []
    for page, name, words in invocations():
        path = ROOT / name
        sub = [word for word in words[:1] if path.stem == "benchmark" and word[0] not in "-{"]
        text = help_of(path, *sub)
        for flag in re.findall(r"(?<=\s)--\w[\w-]*(?![\w.-])", " ".join(["", *words])):
            seen += 1
            if not re.search(rf"{flag}\b", text):
                unknown.append((str(page), name, flag))
    assert unknown == []
    assert seen > 40


def test_examples_of_help_can_be_split_by_a_shell():
    for path in PATHS:
        for example in commands.command(path, ROOT).examples:
            assert shlex.split(example)[0] == "python"
