/* Draws the figures of the page (uPlot for curves), follows theme, axis and smoothing, sorts tables. */
(function () {
  "use strict";
  var root = document.documentElement, KEY = "largebatch-theme", ROW = 13;
  /* viridis, of Matplotlib: 17 of its colours, with straight lines between them. */
  var HEAT = ("440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c 1f9f88 27ad81 3dbc74 "
    + "5cc863 81d34d aadc32 d5e21a fde725").split(" ");
  var data, axis = "epochs", smoothing = 0, plots = new Map(), probe;

  function stored() {
    try { return localStorage.getItem(KEY); } catch (error) { return null; }
  }
  function dark() {
    var chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  if (stored() === "dark" || stored() === "light") { root.dataset.theme = stored(); }

  function element(tag, classes, text) {
    var made = document.createElement(tag);
    if (classes) { made.className = classes; }
    if (text !== undefined) { made.textContent = text; }
    return made;
  }
  /* A colour of the page as a canvas takes it. */
  function colour(name, alpha) {
    probe.style.color = "var(--" + name + ")";
    var found = getComputedStyle(probe).color;
    return alpha === undefined ? found : found.replace(/rgb\((.*)\)/, "rgba($1, " + alpha + ")");
  }

  /* ---- numbers ---- */
  function exponent(value) {
    return (+value.toPrecision(4)).toExponential().replace("e+", "e");
  }
  function number(value) {
    if (value === null || value === undefined) { return "–"; }
    var size = Math.abs(value);
    if (size && (size >= 1e6 || size < 1e-4)) { return exponent(value); }
    if (size >= 1000) {
      return value.toLocaleString("en-US", { maximumFractionDigits: size < 1e4 ? 1 : 0 });
    }
    return String(+value.toPrecision(4));
  }
  function ticks(low, high, most) {
    var raw = (high - low) / Math.max(1, most), power = Math.pow(10, Math.floor(Math.log10(raw)));
    var step = [1, 2, 2.5, 5, 10].find(function (n) { return n * power >= raw * 0.999; }) * power;
    var found = [];
    for (var n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) {
      found.push(+(n * step).toPrecision(12));
      if (found.length > 50) { break; }
    }
    return found;
  }
  function logTicks(low, high, most) {
    var decades = Math.log10(high / low), every = Math.max(1, Math.round(decades / most));
    var parts = decades > 4 ? [1] : decades > 2 ? [1, 3] : [1, 2, 5], found = [];
    for (var p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++) {
      if (p % every) { continue; }
      parts.forEach(function (part) {
        var value = +(part + "e" + p);
        if (value >= low && value <= high) { found.push(value); }
      });
    }
    return found.length > 1 ? found : ticks(low, high, most);
  }
  function tickTexts(values) {
    var gap = values.length > 1 ? Math.abs(values[1] - values[0]) : 1, digits = 0;
    var largest = Math.max.apply(null, values.map(Math.abs));
    if (largest >= 1e6 || (gap < 1e-4 && largest)) {
      return values.map(function (v) { return v ? exponent(v) : "0"; });
    }
    while (digits < 6 && Math.abs(gap * Math.pow(10, digits) % 1 - 0.5) < 0.4999) { digits++; }
    return values.map(function (v) {
      return v.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    });
  }
  function counted(values) {
    var largest = Math.max.apply(null, values.map(Math.abs));
    var unit = [[1e9, " G"], [1e6, " M"], [1e3, " k"]].find(function (u) {
      return largest >= Math.max(u[0], 1e4);
    });
    if (!unit) { return tickTexts(values); }
    return values.map(function (v) { return v ? +(v / unit[0]).toPrecision(4) + unit[1] : "0"; });
  }

  /* ---- curves ---- */
  /* Exponential moving average, corrected for its start; gaps stay gaps. */
  function smoothed(values) {
    if (!smoothing) { return values.map(function () { return undefined; }); }
    var mean = 0, weight = 0;
    return values.map(function (value) {
      if (value === null || value === undefined) { return value; }
      mean = smoothing * mean + (1 - smoothing) * value;
      weight = smoothing * weight + (1 - smoothing);
      return mean / weight;
    });
  }
  function rangeOf(panel) {
    return function (u, low, high) {
      if (low === null || low === undefined) { return panel.log ? [1, 10] : [0, 1]; }
      panel.levels.forEach(function (level) {
        low = Math.min(low, level[0]);
        high = Math.max(high, level[0]);
      });
      if (panel.log) {
        var ratio = Math.pow(Math.max(high / low, 1.1), 0.06);
        return [low / ratio, high * ratio];
      }
      var margin = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
      return [panel.zero && low >= 0 ? 0 : low - margin, high + margin];
    };
  }
  function axisSize(u, values, index, cycle) {
    var own = u.axes[index];
    if (cycle > 1) { return own._size; }
    u.ctx.font = own.font[0];
    var widths = (values || []).map(function (v) { return u.ctx.measureText(v).width; });
    return Math.max(44, Math.ceil(Math.max.apply(null, [0].concat(widths)) / devicePixelRatio) + 12);
  }
  /* Text that stays legible where a curve passes. */
  function written(ctx, text, x, y) {
    ctx.save();
    ctx.setLineDash([]);
    ctx.lineJoin = "round";
    ctx.lineWidth = 4 * devicePixelRatio;
    ctx.strokeStyle = colour("surface");
    ctx.strokeText(text, x, y);
    ctx.fillText(text, x, y);
    ctx.restore();
  }
  function lines(panel, found, along) {
    return function (u) {
      var ctx = u.ctx, box = u.bbox, unit = devicePixelRatio, labels = 0;
      ctx.save();
      ctx.beginPath();
      ctx.rect(box.left, box.top, box.width + 2 * unit, box.height);
      ctx.clip();
      ctx.font = 11 * unit + "px system-ui, sans-serif";
      ctx.lineWidth = unit;
      found.marks.forEach(function (mark) {
        var at = mark.x[along][0];
        if (at === null) { return; }
        var x = Math.round(u.valToPos(at, "x", true)), name = mark.bad ? "bad" : "muted";
        ctx.strokeStyle = colour(name, mark.bad ? 0.9 : 0.5);
        ctx.lineWidth = (mark.bad ? 1.6 : 1) * unit;
        ctx.setLineDash(mark.bad ? [] : [3 * unit, 3 * unit]);
        ctx.beginPath();
        ctx.moveTo(x, box.top);
        ctx.lineTo(x, box.top + box.height);
        ctx.stroke();
        if (mark.text && panel === found.panels[0]) {
          var left = x + 8 * unit + ctx.measureText(mark.text).width > box.left + box.width;
          ctx.textAlign = left ? "right" : "left";
          ctx.fillStyle = colour(name);
          written(ctx, mark.text, x + (left ? -5 : 5) * unit, box.top + (12 + 14 * labels++) * unit);
        }
      });
      panel.levels.forEach(function (level) {
        var y = Math.round(u.valToPos(level[0], "y", true));
        ctx.strokeStyle = ctx.fillStyle = colour("muted");
        ctx.setLineDash([4 * unit, 3 * unit]);
        ctx.beginPath();
        ctx.moveTo(box.left, y);
        ctx.lineTo(box.left + box.width, y);
        ctx.stroke();
        ctx.textAlign = "left";
        written(ctx, level[1], box.left + 5 * unit, y + 13 * unit);
      });
      ctx.restore();
    };
  }
  function chart(host, found) {
    var along = axis in found.axes ? axis : Object.keys(found.axes)[0], made = [];
    found.panels.forEach(function (panel, order) {
      var last = order === found.panels.length - 1;
      var at = found.marks.map(function (m) { return m.x[along][0]; }).filter(Number.isFinite);
      at = Array.from(new Set(at)).sort(function (a, b) { return a - b; });
      var tables = [[at, at.map(function () { return undefined; })]], bands = [], noisy = [];
      var series = [
        { label: found.axes[along], value: function (u, v, index, at) {
          return number(at === null || at === undefined ? u.data[0][u.data[0].length - 1] : v);
        } },
        { class: "extra" },
      ];
      panel.lines.forEach(function (line) {
        var name = "s" + (line.colour % 8 + 1), from = series.length, all = line.x[along] || [];
        var known = all.map(function (x, i) { return i; }).filter(function (i) { return all[i] !== null; });
        function pick(values) { return known.map(function (i) { return values[i]; }); }
        var dash = [undefined, [7, 4], [2, 3], [7, 3, 2, 3]][Math.floor(line.colour / 8) % 4];
        var y = pick(line.y), table = [pick(all), y];
        series.push({
          label: line.label,
          hue: name,
          stroke: function () { return colour(name, line.noisy && smoothing ? 0.28 : 1); },
          width: 1.6,
          dash: dash,
          points: { show: line.dots, size: 5, fill: function () { return colour(name); } },
          paths: line.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
          value: function (u, value, index, at) {
            var own = u.data[index];
            if (at === null || at === undefined) {
              for (at = own.length - 1; at > 0 && !Number.isFinite(own[at]);) { at--; }
            }
            var more = line.noisy && smoothing && Number.isFinite(own[at]);
            return number(own[at]) + (more ? " (" + number(u.data[index + 1][at]) + ")" : "");
          },
        });
        if (line.noisy) {
          noisy.push(from);
          table.push(smoothed(y));
          series.push({
            label: line.label, class: "extra", width: 1.8, dash: dash, points: { show: false },
            stroke: function () { return colour(name); },
          });
        }
        if (line.band) {
          line.band.forEach(function (edge) {
            table.push(pick(edge));
            series.push({ label: line.label, class: "extra", stroke: null, points: { show: false } });
          });
          bands.push({
            series: [series.length - 1, series.length - 2],
            fill: function () { return colour(name, 0.2); },
          });
        }
        series.slice(from + 1).forEach(function (s) { s.of = from; });
        tables.push(table);
      });
      var heading = host.parentNode.querySelector("h3").textContent.toLowerCase();
      if (panel.title && panel.title !== heading) { host.append(element("div", "panel", panel.title)); }
      var size = last ? 46 : 8, height = panel.height + size;
      function ink() { return colour("muted"); }
      var grid = { stroke: function () { return colour("grid"); }, width: 1 };
      var common = { stroke: ink, grid: grid, ticks: { show: false }, font: "11.5px system-ui, sans-serif" };
      var u = new uPlot({
        width: host.clientWidth, height: height, series: series, bands: bands,
        padding: [8, 12, 0, 0],
        scales: {
          x: { time: false },
          y: { distr: panel.log ? 3 : 1, range: rangeOf(panel) },
        },
        axes: [
          Object.assign({
            size: last ? 28 : size, label: last ? found.axes[along] : undefined, labelSize: 18,
            labelFont: common.font, gap: 4,
            splits: function (u, i, low, high) { return ticks(low, high, u.bbox.width / devicePixelRatio / 70); },
            values: function (u, at) { return last ? counted(at) : at.map(function () { return ""; }); },
          }, common),
          Object.assign({
            size: axisSize, gap: 4,
            filter: function (u, at) { return at; },
            splits: function (u, i, low, high) {
              return (panel.log ? logTicks : ticks)(low, high, panel.height / 38);
            },
            values: function (u, at) {
              return panel.log ? at.map(number) : tickTexts(at);
            },
          }, common),
        ],
        cursor: {
          y: false, points: { size: 7 }, drag: { x: true, y: false },
          sync: { key: "page", setSeries: false, scales: ["x", null] },
        },
        legend: { markers: { width: 0, fill: function (u, i) {
          return i > 1 ? colour(u.series[i].hue) : null;
        } } },
        hooks: {
          draw: [lines(panel, found, along)],
          setSeries: [function (u, index, changed) {
            if (index === null || changed.show === undefined) { return; }
            series.forEach(function (s, i) { if (s.of === index) { u.setSeries(i, { show: changed.show }); } });
          }],
        },
      }, uPlot.join(tables), host);
      u.smooth = function () {
        noisy.forEach(function (i) { u.data[i + 1] = smoothed(u.data[i]); });
        u.setData(u.data, false);
        u.redraw();
        u.setLegend({ idxs: u.legend.idxs });
      };
      made.push(u);
    });
    return made;
  }

  /* ---- heat maps ---- */
  function heatMap(host, found) {
    var rows = found.names.length, columns = found.x.length, begin = Math.min(0, found.x[0]);
    var end = found.x[columns - 1], plane = element("div", "plane"), canvas = element("canvas");
    var names = element("div", "names"), said = element("p", "read", " ");
    found.names.forEach(function (name) { names.append(element("div", "", name)); });
    plane.append(canvas);
    host.append(names, plane);
    function columnAt(share) {
      var x = begin + share * (end - begin), low = 0, high = columns - 1;
      while (low < high) {
        var middle = (low + high) >> 1;
        if (found.x[middle] < x) { low = middle + 1; } else { high = middle; }
      }
      return low;
    }
    var width = canvas.width = Math.max(1, Math.round(plane.clientWidth * devicePixelRatio));
    canvas.height = rows;
    canvas.style.height = rows * ROW + "px";
    var ctx = canvas.getContext("2d"), image = ctx.createImageData(width, rows);
    for (var pixel = 0; pixel < width; pixel++) {
      var column = columnAt((pixel + 0.5) / width);
      for (var row = 0; row < rows; row++) {
        var seen = found.values[row][column];
        if (seen === null) { continue; }
        var share = Math.log(Math.max(seen, found.low) / found.low) / Math.log(found.high / found.low);
        var place = Math.min(1, share) * (HEAT.length - 1), spot = 4 * (row * width + pixel);
        var lower = HEAT[Math.floor(place)], upper = HEAT[Math.ceil(place)], part = place % 1;
        [0, 2, 4].forEach(function (at, i) {
          var low = parseInt(lower.slice(at, at + 2), 16), high = parseInt(upper.slice(at, at + 2), 16);
          image.data[spot + i] = low + part * (high - low);
        });
        image.data[spot + 3] = 255;
      }
    }
    ctx.putImageData(image, 0, 0);
    var under = element("div", "under"), shown = ticks(begin, end, plane.clientWidth / 70);
    counted(shown).forEach(function (text, i) {
      var tick = element("span", "", text);
      tick.style.left = 100 * (shown[i] - begin) / (end - begin || 1) + "%";
      under.append(tick);
    });
    plane.append(under);
    var bar = element("div", "scale"), middle = Math.sqrt(found.low * found.high);
    bar.append(element("span", "", number(+found.low.toPrecision(2))), element("i"),
      element("span", "", number(+found.high.toPrecision(2))));
    bar.title = "logarithmic; middle " + number(middle);
    bar.children[1].style.background = "linear-gradient(90deg,#" + HEAT.join(",#") + ")";
    host.append(said, bar);
    function read(event) {
      var box = canvas.getBoundingClientRect();
      var row = Math.min(rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / ROW)));
      var column = columnAt((event.clientX - box.left) / box.width);
      said.textContent = found.names[row] + ", " + found.label + " " + number(found.x[column]) + ": "
        + number(found.values[row][column]);
    }
    canvas.addEventListener("pointermove", read);
    canvas.addEventListener("pointerdown", read);
    canvas.addEventListener("pointerleave", function () { said.textContent = " "; });
    said.textContent = " ";
    host.append(element("p", "unit", found.label));
    return [];
  }

  /* ---- the page ---- */
  function draw(host) {
    (plots.get(host) || []).forEach(function (u) { u.destroy(); });
    host.textContent = "";
    host.dataset.width = host.clientWidth;
    var found = data.figures[host.dataset.figure];
    plots.set(host, (found.panels ? chart : heatMap)(host, found));
  }
  function drawAll() {
    plots.forEach(function (_, host) { if (host.clientWidth) { draw(host); } });
  }
  function sort(button) {
    var head = button.closest("th"), body = head.closest("table").tBodies[0], index = head.cellIndex;
    var down = head.getAttribute("aria-sort") === "ascending";
    head.parentNode.querySelectorAll("th").forEach(function (th) { th.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    function key(row) {
      var text = row.cells[index].dataset.value;
      return text === "" ? null : isNaN(text) ? text : +text;
    }
    Array.from(body.rows).sort(function (a, b) {
      var x = key(a), y = key(b);
      if (x === null || y === null) { return (x === null) - (y === null); }
      var order = typeof x === typeof y && x !== y ? (x < y ? -1 : 1)
        : String(x).localeCompare(String(y), "en", { numeric: true });
      return down ? -order : order;
    }).forEach(function (row) { body.append(row); });
  }

  addEventListener("DOMContentLoaded", function () {
    var button = document.getElementById("theme"), kept;
    data = JSON.parse(document.getElementById("data").textContent);
    probe = element("i", "probe");
    document.body.append(probe);
    function label() { button.textContent = dark() ? "Light" : "Dark"; }
    button.addEventListener("click", function () {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem(KEY, root.dataset.theme); } catch (error) { /* private window */ }
      label();
      drawAll();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () { label(); drawAll(); });
    addEventListener("beforeprint", function () {
      kept = root.dataset.theme;
      root.dataset.theme = "light";
      drawAll();
    });
    addEventListener("afterprint", function () {
      if (kept) { root.dataset.theme = kept; } else { delete root.dataset.theme; }
      drawAll();
    });
    document.querySelectorAll("input[name=axis]").forEach(function (input) {
      if (input.checked) { axis = input.value; }
      input.addEventListener("change", function () { axis = input.value; drawAll(); });
    });
    var slider = document.getElementById("smoothing");
    function smooth() {
      smoothing = +slider.value;
      plots.forEach(function (some) { some.forEach(function (u) { u.smooth(); }); });
    }
    slider.addEventListener("input", smooth);
    smoothing = +slider.value;  // a reload keeps it
    document.querySelectorAll(".sortable button").forEach(function (button) {
      button.addEventListener("click", function () { sort(button); });
    });
    var watch = new ResizeObserver(function (entries) {
      entries.forEach(function (entry) {
        var host = entry.target;
        if (host.clientWidth && +host.dataset.width !== host.clientWidth) { draw(host); }
      });
    });
    document.querySelectorAll("[data-figure]").forEach(function (host) {
      plots.set(host, []);
      if (host.clientWidth) { draw(host); }
      watch.observe(host);
    });
    label();
  });
})();
