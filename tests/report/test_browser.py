"""The page in a real browser: light and dark, wide and narrow, its choices and its toggle."""

import json
import re
import shutil
import subprocess

import pytest

from largebatch.report import palette

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="there is no chromium on PATH (apt-get install chromium)"
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
)
# What the page looks like inside a frame of each width, and after its controls were used; the
# frame has the page's own origin, so a reload shows what it remembers.
PROBE = """<!doctype html><title>probe</title><body><script>
const widths = [1200, 700, 390], found = {};
function look(w) {
  const d = w.document, root = d.documentElement;
  const shown = a => [...d.querySelectorAll(".on-" + a)].filter(e => e.offsetParent).length;
  return {
    inner: w.innerWidth, scroll: root.scrollWidth,
    page: w.getComputedStyle(d.body).backgroundColor,
    ink: w.getComputedStyle(d.querySelector("svg.figure text")).fill,
    line: w.getComputedStyle(d.querySelector("svg.figure [style*='--s1']")).stroke,
    shown: ["epochs", "samples", "time"].map(shown),
    button: d.getElementById("theme").textContent,
    columns: new Set([...d.querySelectorAll("figure")].map(
      f => Math.round(f.getBoundingClientRect().left))).size,
    smallest: Math.min(...[...d.querySelectorAll("svg.figure text")].filter(
      t => t.getClientRects().length && t.getBoundingClientRect().width).map(
      t => parseFloat(w.getComputedStyle(t).fontSize)
        * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b))),
    outside: [...d.querySelectorAll("main *")].filter(
      e => !e.closest(".scroll") && e.getClientRects().length
        && e.getBoundingClientRect().right > w.innerWidth + 0.5).map(e => e.outerHTML.slice(0, 90)),
  };
}
function load(width) {
  return new Promise(done => {
    const frame = document.createElement("iframe");
    frame.style.cssText = "border:0;height:900px;width:" + width + "px";
    frame.onload = () => done(frame);
    frame.src = "report.html";
    document.body.append(frame);
  });
}
(async () => {
  for (const width of widths) {
    const w = (await load(width)).contentWindow;
    found[width] = look(w);
    if (width === widths.at(-1)) {
      for (const axis of ["samples", "time"]) {
        w.document.getElementById("axis-" + axis).click();
        found[axis] = look(w);
      }
      w.document.getElementById("theme").click();
      found.toggled = look(w);
      found.again = look((await load(width)).contentWindow);
    }
  }
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
})();
</script></body>"""


@pytest.fixture
def folder(whole):
    """That of a page, with the probe beside it."""
    (whole.parent / "probe.html").write_text(PROBE)
    return whole.parent


def browse(folder, page, *flags):
    """Chromium on a page: what it wrote, and what its console said."""
    command = [BROWSER, *FLAGS, "--allow-file-access-from-files", f"--user-data-dir={folder}/data"]
    done = subprocess.run(
        [*command, *flags, (folder / page).as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, re.findall(r".*CONSOLE.*", done.stderr)


def rgb(text):
    return "rgb({}, {}, {})".format(*(int(text[i : i + 2], 16) for i in (1, 3, 5)))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_shown_whole_and_obeys(folder, theme):
    shutil.rmtree(folder / "data", ignore_errors=True)
    scheme = {"light": 1, "dark": 0}[theme]
    flags = ("--window-size=1400,1000", f"--blink-settings=preferredColorScheme={scheme}")
    dump, console = browse(folder, "probe.html", *flags, "--dump-dom")
    assert console == []
    found = json.loads(re.search(r'<pre id="found">(.*?)</pre>', dump)[1].replace("&lt;", "<"))
    other = "dark" if theme == "light" else "light"
    for width, columns in (("1200", 2), ("700", 1), ("390", 1)):
        seen = found[width]
        assert seen["inner"] == int(width)
        assert seen["scroll"] <= seen["inner"]
        assert seen["outside"] == []
        assert seen["columns"] == columns
        assert seen["smallest"] > 6.5  # CSS pixels, of the names of layers
        assert seen["page"] == rgb(getattr(palette.PAGE, theme))
        assert seen["ink"] in {rgb(getattr(c, theme)) for c in (palette.INK, palette.MUTED)}
        assert seen["line"] == rgb(getattr(palette.SERIES[0], theme))
        assert seen["button"] == other.capitalize()
    axes = [found[name]["shown"] for name in ("390", "samples", "time")]
    count = axes[0][0]
    assert count == 6
    assert axes == [[count, 0, 0], [0, count, 0], [0, 0, count]]
    for name in ("toggled", "again"):  # at once, and after a reload
        assert found[name]["page"] == rgb(getattr(palette.PAGE, other))
        assert found[name]["line"] == rgb(getattr(palette.SERIES[0], other))
        assert found[name]["button"] == theme.capitalize()


def test_an_error_would_be_noticed(folder):
    """The probe of the console: a page that throws."""
    (folder / "broken.html").write_text("<script>undefined_function()</script>")
    _, console = browse(folder, "broken.html", "--dump-dom")
    assert any("undefined_function" in line for line in console)
