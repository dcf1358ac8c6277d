"""Versions, commit and devices, as records state them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from largebatch import environment
from largebatch.environment import ROOT, command_path


def test_a_command_that_is_absent_fails_or_hangs_has_no_output():
    assert environment.command_output(sys.executable, "-c", "print(' 7 ')") == "7"
    assert environment.command_output("no-such-command") is None
    assert environment.command_output(sys.executable, "-c", "raise SystemExit(3)") is None
    sleeps = (sys.executable, "-c", "import time; time.sleep(60)")
    assert environment.command_output(*sleeps, limit_s=0.5) is None


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def installed(folder):
    """A copy of the package as an installer leaves it, asked for its commit."""
    package = folder / "largebatch"
    package.mkdir(parents=True)
    for name in ("__init__.py", "environment.py"):
        shutil.copy(Path(environment.__file__).with_name(name), package / name)
    code = "from largebatch import environment; print(environment.commit())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


def test_the_commit_of_a_surrounding_repository_is_not_ours(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init")
    (project / "a.txt").write_text("a")
    git(project, "add", "a.txt")
    git(project, "commit", "-m", "a")
    assert installed(project / ".venv" / "site-packages") == "None"
    # At the top of that repository, but not tracked by it.
    assert installed(project) == "None"
    git(project, "add", "largebatch")
    git(project, "commit", "-m", "b")
    shutil.rmtree(project / "largebatch")
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", installed(project))


def test_the_path_of_a_command_is_valid_in_the_working_directory(monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text("")  # the user's own
    for folder, expected in (
        (ROOT, "scripts/report.py"),
        (tmp_path, str(ROOT / "scripts/report.py")),
        (ROOT / "docs", str(ROOT / "scripts/report.py")),
        (ROOT.parent, f"{ROOT.name}/scripts/report.py"),
    ):
        monkeypatch.chdir(folder)
        assert command_path("scripts/report.py") == expected
        assert (folder / expected).is_file()
    monkeypatch.chdir(tmp_path)
    assert command_path("train.py") == str(ROOT / "train.py")
