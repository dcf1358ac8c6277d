"""The page in a real browser: light and dark, wide and narrow, its choices and its toggle."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from largebatch.tools.report.write import report
from tests.tools.report import made_up

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="there is no chromium on PATH (apt-get install chromium)"
)
# Colours of page.css: the background, and the first curve.
PAGE = {"light": "#f5f6f8", "dark": "#0e1116"}
FIRST = {"light": "#1d6fb8", "dark": "#69b1f2"}
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
    "--virtual-time-budget=6000",
)
# What the page looks like inside a frame of each width, and after its controls were used; the
# frame has the page's own origin, so a reload shows what it remembers.
PROBE = """<!doctype html><title>probe</title><body><script>
const widths = [1200, 700, 375], found = {};
const wait = time => new Promise(done => setTimeout(done, time));
function look(w) {
  const d = w.document, root = d.documentElement;
  const charts = [...d.querySelectorAll(".chart[data-figure]")];
  return {
    inner: w.innerWidth, scroll: root.scrollWidth,
    page: w.getComputedStyle(d.body).backgroundColor,
    line: w.getComputedStyle(
      d.querySelector("[data-figure=loss] tr:nth-child(3) .u-marker")).backgroundColor,
    drawn: charts.map(c => c.querySelectorAll("canvas").length),
    maps: [...d.querySelectorAll(".map canvas")].map(c => {
      const copy = d.createElement("canvas");
      Object.assign(copy, { width: c.width, height: c.height });
      const context = copy.getContext("2d", { willReadFrequently: true });
      context.drawImage(c, 0, 0);
      const pixels = context.getImageData(0, 0, c.width, c.height).data;
      return new Set(pixels.filter((v, i) => i % 4 === 0)).size;
    }),
    axis: d.querySelector("[data-figure=loss] .u-legend .u-label").textContent,
    values: [...d.querySelectorAll("[data-figure=loss] .u-value")].map(e => e.textContent),
    button: d.getElementById("theme").textContent,
    columns: new Set([...d.querySelectorAll("figure")].map(
      f => Math.round(f.getBoundingClientRect().left))).size,
    smallest: Math.min(...[...d.querySelectorAll("main *")].filter(e => e.clientHeight).map(
      e => parseFloat(w.getComputedStyle(e).fontSize))),
    outside: [...d.querySelectorAll("main *")].filter(
      e => !e.closest(".scroll, .u-wrap") && e.getClientRects().length
        && e.getBoundingClientRect().right > w.innerWidth + 0.5).map(e => e.outerHTML.slice(0, 90)),
  };
}
function pointer(w, kind, share, target) {
  const over = target || w.document.querySelector("[data-figure=loss] .u-over");
  const box = over.getBoundingClientRect();
  over.dispatchEvent(new w.PointerEvent(kind, {
    bubbles: true, clientX: box.left + share * box.width, clientY: box.top + box.height / 2,
    view: w, button: 0, detail: 1,
  }));
}
function mouse(w, kind, share) {
  const over = w.document.querySelector("[data-figure=loss] .u-over");
  const box = over.getBoundingClientRect();
  (kind === "mouseup" ? w.document : over).dispatchEvent(new w.MouseEvent(kind, {
    bubbles: true, clientX: box.left + share * box.width, clientY: box.top + 50, view: w, button: 0,
    movementX: 1, movementY: 1,
  }));
}
function image(w) { return w.document.querySelector("[data-figure=loss] canvas").toDataURL(); }
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
    await wait(100);
    found[width] = look(w);
    if (width === widths.at(-1)) {
      mouse(w, "mouseenter", 0.5);
      mouse(w, "mousemove", 0.5);
      await wait(100);
      found.hover = look(w).values;
      const before = image(w), slider = w.document.getElementById("smoothing");
      slider.value = 0.9;
      slider.dispatchEvent(new w.Event("input"));
      await wait(100);
      found.smoothed = { values: look(w).values, changed: image(w) !== before };
      slider.value = 0;
      slider.dispatchEvent(new w.Event("input"));
      await wait(100);
      const unzoomed = image(w);
      mouse(w, "mousedown", 0.2);
      mouse(w, "mousemove", 0.4);
      mouse(w, "mouseup", 0.4);
      await wait(100);
      found.zoomed = image(w) !== unzoomed;
      const map = w.document.querySelector(".map canvas");
      pointer(w, "pointermove", 0.99, map);
      found.read = map.closest(".map").querySelector(".read").textContent;
      for (const axis of ["samples", "time"]) {
        w.document.querySelector("input[value=" + axis + "]").click();
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
# The order of a table of runs, before and after clicks on the head of its top-1.
SORTED = """<!doctype html><title>sorted</title><body><script>
const frame = document.createElement("iframe");
frame.onload = () => {
  const d = frame.contentDocument, orders = [];
  const order = () => orders.push([...d.querySelectorAll(".sortable tbody th")].map(
    e => e.textContent));
  const button = [...d.querySelectorAll(".sortable button")].find(b => b.textContent === "top-1");
  order(); button.click(); order(); button.click(); order();
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(orders);
  document.body.append(out);
};
frame.src = "report.html";
document.body.append(frame);
</script></body>"""


@pytest.fixture
def folder(page_path):
    """That of a page, with the probe beside it."""
    (page_path.parent / "probe.html").write_text(PROBE)
    return page_path.parent


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


def read(dump):
    """What a probe left in its page."""
    return json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', dump)[1]))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_widths_and_controls(folder, theme):
    shutil.rmtree(folder / "data", ignore_errors=True)
    scheme = {"light": 1, "dark": 0}[theme]
    flags = ("--window-size=1400,1000", f"--blink-settings=preferredColorScheme={scheme}")
    dump, console = browse(folder, "probe.html", *flags, "--dump-dom")
    assert console == []
    found = read(dump)
    other = "dark" if theme == "light" else "light"
    for width, columns in (("1200", 2), ("700", 1), ("375", 1)):
        seen = found[width]
        assert seen["inner"] == int(width)
        assert seen["scroll"] <= seen["inner"]
        assert seen["outside"] == []
        assert seen["columns"] == columns
        assert seen["smallest"] >= 10  # CSS pixels, of the names of layers
        assert len(seen["drawn"]) == 5
        assert min(seen["drawn"]) >= 1
        assert len(seen["maps"]) == 5
        assert max(seen["maps"]) > 5  # shades, not one colour
        assert seen["page"] == rgb(PAGE[theme])
        assert seen["line"] == rgb(FIRST[theme])
        assert seen["button"] == other.capitalize()
    # Nothing hovered: the last values. In the middle: those of epoch 2, 2 · exp(−1) = 0.7358.
    assert found["375"]["values"][0] == "4"
    assert found["375"]["values"][2] == "0.2707"
    assert 1.8 < float(found["hover"][0]) < 2.3
    assert 0.6 < float(found["hover"][2]) < 0.85
    assert re.fullmatch(r"[\d.]+ \([\d.]+\)", found["smoothed"]["values"][2])
    assert found["smoothed"]["changed"]
    assert found["zoomed"]
    assert found["read"] == "stage10/conv, epochs 4: 0.4"
    assert [found[name]["axis"] for name in ("375", "samples", "time")] == [
        "epochs",
        "samples",
        "seconds",
    ]
    for name in ("toggled", "again"):  # at once, and after a reload
        assert found[name]["page"] == rgb(PAGE[other])
        assert found[name]["line"] == rgb(FIRST[other])
        assert found[name]["button"] == theme.capitalize()


def test_a_table_of_runs_is_sorted_by_its_columns(tmp_path):
    folders = []
    for number, top1 in enumerate((0.95, 0.5, None)):
        metrics = [{"step": 1, "samples": 1, "epoch": 1, "loss": 1, "validation/top1": top1}]
        folders.append(made_up.write(tmp_path / f"r{number}", metrics=metrics, events=[]))
        (folders[-1] / "layers.jsonl").unlink()
        (folders[-1] / "summary.json").unlink()
    report(folders, tmp_path / "out")
    (tmp_path / "out" / "sorted.html").write_text(SORTED)
    dump, console = browse(tmp_path / "out", "sorted.html", "--dump-dom")
    assert console == []
    given, up, down = read(dump)
    assert [name[:2] for name in given] == ["r0", "r1", "r2"]
    assert [name[:2] for name in up] == ["r1", "r0", "r2"]
    assert [name[:2] for name in down] == ["r0", "r1", "r2"]  # without a value: always last


def test_an_error_would_be_noticed(folder):
    """The probe of the console: a page that throws."""
    (folder / "broken.html").write_text("<script>undefined_function()</script>")
    _, console = browse(folder, "broken.html", "--dump-dom")
    assert any("undefined_function" in line for line in console)
