"use strict";
// Curves over the steps of training, drawn by uPlot: bands of uncertainty, cursors and zoom shared by all charts.
//
// facts: {axis, unit, range: [first, last] of all charts with this axis, curves: [{name, colour (from 1), dashed, band}]}; arrays of curve i: x<i>, y<i>, and s<i> with a band
(function () {
  const report = gradloomReport, charts = new Set();

  const WHOLE = [1, 2, 5].flatMap((m) => [...Array(13).keys()].map((k) => m * 10 ** k)).sort((a, b) => a - b);

  function plain(array) {
    return Array.from(array, (v) => (Number.isFinite(v) ? v : null));
  }

  // Aligned columns for uPlot: x, then of each curve y, and of one with a band y + s and y - s.
  function columns(figure, isLog) {
    const tables = figure.facts.curves.map((curve, i) => {
      const { ["x" + i]: x, ["y" + i]: y, ["s" + i]: s } = figure.arrays;
      const value = (v) => (Number.isFinite(v) && (!isLog || v > 0) ? v : null);
      const table = [plain(x), Array.from(y, value)];
      if (curve.band) {
        const spread = (k) => (Number.isFinite(s[k]) ? s[k] : 0);
        table.push(Array.from(y, (v, k) => value(v + spread(k))));
        table.push(Array.from(y, (v, k) => (isLog && v > 0 ? Math.max(v - spread(k), v * 1e-3) : value(v - spread(k)))));
      }
      return table;
    });
    return uPlot.join(tables);
  }

  function number(value) {
    if (value === null || value === undefined) return "";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(3).replace(/\.?0+e/, "e");
    return Number(value.toPrecision(5)).toLocaleString("en", { maximumFractionDigits: 10, useGrouping: size >= 1e4 });
  }

  function count(value) {
    return value.toLocaleString("en", { maximumFractionDigits: 3 });
  }

  // The point of a curve that is nearest to x, so that the values of curves with few points are shown, too.
  function nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  }

  report.kinds.curves = function (figure) {
    const { facts, arrays } = figure, hidden = new Set();
    const hasPositive = facts.curves.some((_, i) => arrays["y" + i].some((v) => v > 0));
    const at = report.element("span", { class: "at" }, "");
    const host = report.element("div", { class: "curves-host", tabindex: 0, role: "img", "aria-label": figure.label });
    const log = report.element("button", { type: "button", "aria-pressed": "false" }, "Log scale");
    const back = report.element("button", { type: "button", hidden: "" }, "Whole run");
    const values = [];
    const names = facts.curves.map((curve, i) => {
      const line = report.element("span", { class: curve.dashed ? "line dashed" : "line" });
      line.style.color = `var(--series-${curve.colour})`;
      const value = report.element("output", { class: curve.band ? "wide" : "" }, "");
      values.push(value);
      const name = report.element("span", { class: "name" }, curve.name);
      const button = report.element("button", { type: "button", class: "series", "aria-pressed": "true", title: `Show or hide ${curve.name}` }, line, name, value);
      button.addEventListener("click", () => {
        if (hidden.has(i)) hidden.delete(i); else hidden.add(i);
        button.setAttribute("aria-pressed", String(!hidden.has(i)));
        draw();
      });
      return button;
    });
    const tools = report.element("div", { class: "curves-tools" }, at, back, ...(hasPositive ? [log] : []));
    figure.host.append(tools, report.element("div", { class: "curves-bar" }, ...names), host);
    let chart = null, isLog = false, range = null, width = 0;

    function show(x) {
      at.textContent = x === null ? "" : `${facts.axis} ${count(Math.round(x))}`;
      facts.curves.forEach((curve, i) => {
        if (x === null || !arrays["x" + i].length) { values[i].textContent = ""; return; }
        const k = nearest(arrays["x" + i], x), value = arrays["y" + i][k];
        const spread = curve.band && Number.isFinite(arrays["s" + i][k]) ? ` ± ${number(Number(arrays["s" + i][k].toPrecision(2)))}` : "";
        values[i].textContent = Number.isFinite(value) ? number(value) + spread : "not finite";
      });
    }

    function options() {
      const font = `12px ${getComputedStyle(document.body).fontFamily}`;
      const ink = report.colour("--muted"), grid = report.colour("--line");
      const axis = { stroke: ink, font, labelFont: font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
      const series = [{}], bands = [];
      facts.curves.forEach((curve, i) => {
        const stroke = report.colour(`--series-${curve.colour}`), first = series.length, points = arrays["x" + i].length;
        series.push({
          label: curve.name, stroke, width: curve.dashed ? 1.6 : 1.8, dash: curve.dashed ? [5, 4] : undefined, show: !hidden.has(i),
          points: { show: points <= 60, size: points === 1 ? 8 : 5, stroke, fill: stroke },
        });
        if (!curve.band) return;
        const edge = { stroke: "transparent", width: 0, points: { show: false }, show: !hidden.has(i) };
        series.push({ ...edge, label: `${curve.name}, upper` }, { ...edge, label: `${curve.name}, lower` });
        bands.push({ series: [first + 1, first + 2], fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.16)") });
      });
      return {
        width, height: Math.max(220, Math.min(340, Math.round(width * 0.4))), series, bands, legend: { show: false },
        scales: { x: { time: false, range: () => range || facts.range }, y: isLog ? { distr: 3 } : {} },
        axes: [
          { ...axis, label: facts.axis, labelSize: 22, size: 34, space: 60, incrs: WHOLE, values: (_, splits) => splits.map(count) },
          { ...axis, label: facts.unit || undefined, labelSize: 20, size: 66, values: (_, splits) => splits.map((v) => (v === null ? "" : number(v))) },
        ],
        cursor: { sync: { key: "gradloom", scales: ["x", null] }, drag: { x: true, y: false, setScale: false }, points: { size: 7 }, bind: { dblclick: () => null } },
        hooks: {
          setCursor: [(u) => show(u.cursor.left === null || u.cursor.left < 0 ? null : u.posToVal(u.cursor.left, "x"))],
          setSelect: [(u) => {
            if (u.select.width < 4) return;
            zoomAll([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          }],
        },
      };
    }

    // A zoom of one chart is a zoom of all charts with the same axis; null: the whole run.
    function zoomAll(wanted) {
      for (const one of charts) if (one.axis === facts.axis) one.zoom(wanted);
    }

    charts.add({
      axis: facts.axis,
      zoom(wanted) {
        range = wanted;
        back.hidden = wanted === null;
        chart.setScale("x", { min: (range || facts.range)[0], max: (range || facts.range)[1] });
      },
    });

    function draw() {
      width = Math.max(host.clientWidth, 200);
      if (chart) chart.destroy();
      chart = new uPlot(options(), columns(figure, isLog), host);
      chart.root.setAttribute("aria-hidden", "true");
    }

    log.addEventListener("click", () => {
      isLog = !isLog;
      log.setAttribute("aria-pressed", String(isLog));
      draw();
    });
    back.addEventListener("click", () => zoomAll(null));
    host.addEventListener("dblclick", () => zoomAll(null));
    host.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move || !chart) return;
      const xs = chart.data[0], now = chart.cursor.idx ?? (move > 0 ? -1 : xs.length);
      const next = Math.min(Math.max(now + move, 0), xs.length - 1);
      chart.setCursor({ left: chart.valToPos(xs[next], "x"), top: chart.over.clientHeight / 2 }, true, true);
      event.preventDefault();
    });
    draw();
    let known = host.clientWidth;
    report.onChange(host, (event) => {
      const isResize = Array.isArray(event);
      if (isResize && host.clientWidth === known) return;
      known = host.clientWidth;
      draw();
    });
  };
})();
