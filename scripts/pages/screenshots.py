"""Take screenshots of a report for the documentation: light, dark and on a phone.

    python train.py
    python scripts/pages/screenshots.py runs/digits

It needs Chromium on PATH and writes report_light.png, report_dark.png and report_phone.png to
docs/images.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from largebatch.errors import UserError
from largebatch.fault_tolerance import exit_code
from largebatch.tools.report import page

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
_SHOTS = (("light", 1, 1200, 1500), ("dark", 0, 1200, 2350), ("phone", 1, 390, 1700))
"""Name, Chromium's number of the colour scheme, width and height in CSS pixels."""
_FRAME = (
    "<!doctype html><style>body{{margin:0}}iframe{{border:0;width:{0}px;height:{1}px}}</style>"
    '<iframe src="report.html"></iframe>'
)
"""Chromium has no window as narrow as a phone; a frame can be narrow."""
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
    *("--hide-scrollbars", "--allow-file-access-from-files", "--virtual-time-budget=3000"),
)


def shoot(run: Path, images: Path) -> None:
    """Write the report of a run and take its screenshots.

    Raises:
      UserError: no run, or no Chromium.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise UserError("chromium: expected on PATH, not found; use apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page.report([run], Path(folder))
        for name, scheme, width, height in _SHOTS:
            frame = Path(folder) / f"{name}.html"
            frame.write_text(_FRAME.format(width, height))
            path = images / f"report_{name}.png"
            command = [
                *(browser, *_FLAGS, f"--blink-settings=preferredColorScheme={scheme}"),
                *(f"--user-data-dir={folder}/{name}", f"--window-size={max(width, 500)},{height}"),
                *(f"--screenshot={path}", frame.as_uri()),
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            _crop(path, width, height)
            print(path)


def _crop(path: Path, width: int, height: int) -> None:
    from PIL import Image

    with Image.open(path) as full:
        cropped = full.crop((0, 0, width, height)).convert("RGB")
    # A quarter of the size; the default method would mix the colours of curves.
    cropped.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code (largebatch.fault_tolerance.exit_codes)."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    return exit_code(lambda: shoot(Path(arguments[0]), IMAGES))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
