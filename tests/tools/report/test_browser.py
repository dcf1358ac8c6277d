"""The page in a real browser: themes, widths, hover, smoothing, zoom, axes, sorted tables."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="there is no chromium on PATH (apt-get install chromium)"
)
# Background of page.css.
PAGE = {"light": "rgb(245, 246, 248)", "dark": "rgb(14, 17, 22)"}
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
    *("--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=6000"),
    *("--allow-file-access-from-files", "--window-size=1400,1000", "--dump-dom"),
)
# Each probe fills `found` from frames that show the page; they have its origin, so a reload shows
# what it remembers.
PROBE = """<!doctype html><title>probe</title><body><script>
const found = {}, wait = () => new Promise(done => setTimeout(done, 100));
const load = width => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style.cssText = "border:0;height:900px;width:" + width + "px";
  frame.onload = () => done(frame.contentWindow);
  frame.src = "report.html";
  document.body.append(frame);
});
(async () => {
  %s
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
})();
</script></body>"""
LOOK = """
  let w;
  const all = selector => [...w.document.querySelectorAll(selector)];
  const theme = () => w.getComputedStyle(w.document.body).backgroundColor;
  const values = () => all("[data-figure=loss] .u-value").map(e => e.textContent);
  const axis = () => all("[data-figure=loss] .u-legend .u-label")[0].textContent;
  const image = () => all("[data-figure=loss] canvas")[0].toDataURL();
  const send = (target, Kind, kind, share) => {
    const box = target.getBoundingClientRect();
    target.dispatchEvent(new Kind(kind, {
      bubbles: true, clientX: box.left + share * box.width, clientY: box.top + box.height / 2,
      view: w, button: 0, detail: 1, movementX: 1, movementY: 1,
    }));
    return wait();
  };
  const mouse = (kind, share) =>
    send(all("[data-figure=loss] .u-over")[0], w.MouseEvent, kind, share);
  const smooth = value => {
    const slider = w.document.getElementById("smoothing");
    slider.value = value;
    slider.dispatchEvent(new w.Event("input"));
    return wait();
  };
  for (const width of [1200, 375]) {
    w = await load(width);
    await wait();
    found[width] = {
      scroll: w.document.documentElement.scrollWidth,
      drawn: all(".chart[data-figure]").map(c => c.querySelectorAll("canvas").length),
      columns: new Set(all("figure").map(f => Math.round(f.getBoundingClientRect().left))).size,
      shades: all(".map canvas").map(c => new Set(
        c.getContext("2d").getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 0)
      ).size),
    };
  }
  Object.assign(found, { page: theme(), values: values(), axes: [axis()] });
  await mouse("mouseenter", 0.5);
  await mouse("mousemove", 0.5);
  found.hover = values();
  const before = image();
  await smooth(0.9);
  found.smoothed = values();
  found.redrawn = image() !== before;
  await smooth(0);
  const unzoomed = image();
  await mouse("mousedown", 0.2);
  await mouse("mousemove", 0.4);
  await mouse("mouseup", 0.4);
  found.zoomed = image() !== unzoomed;
  const map = all(".map canvas")[0];
  await send(map, w.PointerEvent, "pointermove", 0.99);
  found.read = map.closest(".map").querySelector(".read").textContent;
  for (const name of ["samples", "time"]) {
    all("input[value=" + name + "]")[0].click();
    found.axes.push(axis());
  }
  w.document.getElementById("theme").click();
  found.toggled = theme();
  w = await load(375);
  found.again = theme();
"""


def browse(folder, body, *flags):
    """Return what a probe of a page found; the browser's console must be empty."""
    (folder / "probe.html").write_text(PROBE % body)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={data}", *flags, (folder / "probe.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert re.findall(r".*CONSOLE.*", done.stderr) == []
    return json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout)[1]))


def test_themes_widths_and_controls(page_path, tmp_path):
    shutil.copy(page_path, tmp_path)
    found = browse(tmp_path, LOOK, "--blink-settings=preferredColorScheme=0")
    for width, columns in ((1200, 2), (375, 1)):
        seen = found[str(width)]
        assert seen["scroll"] <= width
        assert seen["columns"] == columns
        assert len(seen["drawn"]) == 6
        assert len(seen["shades"]) == 5
        assert min(seen["drawn"]) >= 1
        assert max(seen["shades"]) > 5  # not one colour
    # Nothing hovered: the last values. In the middle: those of epoch 2, 2 · exp(−1) = 0.7358.
    assert (found["values"][0], found["values"][2]) == ("4", "0.2707")
    assert 1.8 < float(found["hover"][0]) < 2.3
    assert 0.6 < float(found["hover"][2]) < 0.85
    assert re.fullmatch(r"[\d.]+ \([\d.]+\)", found["smoothed"][2])
    assert found["redrawn"]
    assert found["zoomed"]
    assert found["read"] == "stage10/conv, epochs 4: 0.4"
    assert found["axes"] == ["epochs", "samples", "seconds"]
    seen = found["page"], found["toggled"], found["again"]
    assert seen == (PAGE["dark"], PAGE["light"], PAGE["light"])
