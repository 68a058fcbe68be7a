"use strict";
// Figures of model quality as SVG and tables: colours follow the theme by the style sheet.
//
// xy:     facts {x, y, equal, diagonal, series: [{name, named, colour, line, dashed, cloud}]}; arrays x<i>, y<i>, l<i> and h<i>: ends of intervals
// bars:   facts {x}; arrays names, value, error: horizontal bars, the first one on top
// counts: facts {x, unit: noun of the counts, by default rows}; arrays edges, rows: a histogram
// matrix: facts {rows, columns}; arrays names, value: counts, shaded by the share of their row
// roofline: facts {what, roofs: [{name, rate (GFLOP/s, or GB/s with per_byte), per_byte}]}; arrays names, intensity,
//         speed, moved, share, limit: points on logarithmic axes, the slowest first; arrow keys select one
(function () {
  const report = gradloomReport, SVG = "http://www.w3.org/2000/svg";

  function node(tag, attributes, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function number(value) {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 8 });
  }

  // least: of the step, 1 for counts.
  function ticks(low, high, count, least = 0) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = Math.max([1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.98), least);
    const found = [];
    for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
    return found;
  }

  function limits(arrays, padding) {
    let low = Infinity, high = -Infinity;
    for (const array of arrays) for (const v of array) if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
    if (low > high) return [0, 1];
    const more = (high - low || Math.abs(high) || 1) * padding;
    return [low - more, high + more];
  }

  // Units of a drawing: pixels, also on a narrow screen, so that texts keep their size.
  function widthOf(figure) {
    return Math.min(Math.max(figure.host.clientWidth, 280), 600);
  }

  function frame(figure, width, height) {
    return node("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": figure.label });
  }

  function axes(svg, box, x, y, names, least) {
    const levels = ticks(y[0], y[1], 5, least);
    box.left = 30 + 7 * Math.max(...levels.map((v) => number(v).length));
    const toX = (v) => box.left + ((v - x[0]) / (x[1] - x[0])) * (box.right - box.left);
    const toY = (v) => box.bottom - ((v - y[0]) / (y[1] - y[0])) * (box.bottom - box.top);
    for (const v of ticks(x[0], x[1], Math.max(Math.floor((box.right - box.left) / 62), 3))) {
      svg.append(node("line", { class: "grid", x1: toX(v), x2: toX(v), y1: box.top, y2: box.bottom }));
      svg.append(node("text", { x: toX(v), y: box.bottom + 16, "text-anchor": "middle" }, number(v)));
    }
    for (const v of levels) {
      svg.append(node("line", { class: "grid", x1: box.left, x2: box.right, y1: toY(v), y2: toY(v) }));
      svg.append(node("text", { x: box.left - 6, y: toY(v) + 4, "text-anchor": "end" }, number(v)));
    }
    svg.append(node("text", { class: "label", x: (box.left + box.right) / 2, y: box.bottom + 34, "text-anchor": "middle" }, names[0]));
    const middle = (box.top + box.bottom) / 2;
    svg.append(node("text", { class: "label", x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, names[1]));
    return [toX, toY];
  }

  report.kinds.xy = function (figure) {
    const { facts, arrays } = figure, width = widthOf(figure), height = Math.round(width * 0.75);
    const svg = frame(figure, width, height), box = { left: 62, right: width - 12, top: 12, bottom: height - 46 };
    const of = (name) => facts.series.map((_, i) => arrays[name + i]);
    let x = facts.x_limits || limits(of("x"), 0.03), y = facts.y_limits || limits(of("y"), 0.05);
    if (facts.equal) x = y = [Math.min(x[0], y[0]), Math.max(x[1], y[1])];
    const [toX, toY] = axes(svg, box, x, y, [facts.x, facts.y]);
    if (facts.diagonal) svg.append(node("line", { class: "reference", x1: toX(x[0]), y1: toY(x[0]), x2: toX(x[1]), y2: toY(x[1]) }));
    const marks = [];
    facts.series.forEach((one, i) => {
      const xs = arrays["x" + i], ys = arrays["y" + i], low = arrays["l" + i], high = arrays["h" + i], colour = `var(--series-${one.colour})`;
      const group = node("g", {});
      group.style.stroke = colour;
      if (one.line) {
        const points = Array.from(xs, (v, k) => `${toX(v).toFixed(1)},${toY(ys[k]).toFixed(1)}`).join(" ");
        group.append(node("polyline", { class: one.dashed ? "curve-line dashed" : "curve-line", points }));
      }
      for (let k = 0; k < xs.length; k++) {
        if (low) group.append(node("line", { x1: toX(xs[k]), x2: toX(xs[k]), y1: toY(low[k]), y2: toY(high[k]), "stroke-width": 1.4 }));
        if (!one.line || low) {
          const dot = node("circle", { class: one.cloud ? "mark cloud" : "mark", cx: toX(xs[k]).toFixed(1), cy: toY(ys[k]).toFixed(1), r: one.cloud ? 2.4 : 4 });
          dot.style.fill = colour;
          group.append(dot);
        }
        marks.push([toX(xs[k]), toY(ys[k]), i, k]);
      }
      svg.append(group);
    });
    const readout = report.element("p", { class: "readout" }, "");
    svg.addEventListener("pointermove", (event) => {
      const rect = svg.getBoundingClientRect(), px = ((event.clientX - rect.left) / rect.width) * width, py = ((event.clientY - rect.top) / rect.height) * height;
      let best = null, nearest = 900;
      for (const mark of marks) {
        const far = (mark[0] - px) ** 2 + (mark[1] - py) ** 2;
        if (far < nearest) { nearest = far; best = mark; }
      }
      if (!best) { readout.textContent = ""; return; }
      const [, , i, k] = best, one = facts.series[i], error = arrays["l" + i] ? ` (${number(arrays["l" + i][k])} to ${number(arrays["h" + i][k])})` : "";
      const more = arrays["t" + i] ? `; ${arrays["t" + i][k]}` : "";
      readout.textContent = `${facts.series.length > 1 ? one.name + ": " : ""}${facts.x} ${number(arrays["x" + i][k])}, ${facts.y} ${number(arrays["y" + i][k])}${error}${more}`;
    });
    figure.host.append(svg, readout);
    if (facts.series.length > 1 || facts.series[0].named) {
      const items = facts.series.map((one) => {
        const swatch = report.element("span", { class: one.dashed ? "stroke dashed" : "stroke" });
        swatch.style.color = `var(--series-${one.colour})`;
        return report.element("li", {}, swatch, one.name);
      });
      figure.host.append(report.element("ul", { class: "legend plot-legend" }, ...items));
    }
  };

  report.kinds.bars = function (figure) {
    const { names, value, error } = figure.arrays, row = 24, width = widthOf(figure), left = Math.round(width * 0.32);
    const height = names.length * row + 46, svg = frame(figure, width, height);
    const ends = Array.from(value, (v, k) => [v - (error[k] || 0), v + (error[k] || 0)]).flat();
    let [low, high] = limits([ends, [0]], 0.04);
    const box = { left, right: width - 12, top: 4, bottom: height - 42 };
    const toX = (v) => box.left + ((v - low) / (high - low)) * (box.right - box.left);
    for (const v of ticks(low, high, 5)) {
      svg.append(node("line", { class: "grid", x1: toX(v), x2: toX(v), y1: box.top, y2: box.bottom }));
      svg.append(node("text", { x: toX(v), y: box.bottom + 16, "text-anchor": "middle" }, number(v)));
    }
    names.forEach((name, k) => {
      const y = box.top + k * row, middle = y + row / 2, spread = Number.isFinite(error[k]) ? error[k] : 0;
      const short = name.length > left / 8 ? name.slice(0, Math.floor(left / 8) - 1) + "…" : name;
      svg.append(node("text", { class: "label", x: left - 8, y: middle + 4, "text-anchor": "end" }, short, node("title", {}, name)));
      const isWeak = Math.abs(value[k]) <= 2 * spread;
      svg.append(node("rect", { class: isWeak ? "bar weak" : "bar", x: Math.min(toX(0), toX(value[k])), y: y + 4, width: Math.max(Math.abs(toX(value[k]) - toX(0)), 0.5), height: row - 8 }));
      if (spread) svg.append(node("line", { class: "error", x1: toX(value[k] - spread), x2: toX(value[k] + spread), y1: middle, y2: middle }));
    });
    svg.append(node("text", { class: "label", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, figure.facts.x));
    figure.host.append(svg);
  };

  report.kinds.counts = function (figure) {
    const { edges, rows } = figure.arrays, width = widthOf(figure), height = Math.round(width / 2);
    const svg = frame(figure, width, height), box = { left: 62, right: width - 12, top: 12, bottom: height - 46 };
    const most = Math.max(...rows, 1), unit = figure.facts.unit || "rows";
    const [toX, toY] = axes(svg, box, [edges[0], edges[edges.length - 1]], [0, most * 1.05], [figure.facts.x, unit], 1);
    if (edges[0] < 0 && edges[edges.length - 1] > 0) svg.append(node("line", { class: "reference", x1: toX(0), x2: toX(0), y1: box.top, y2: box.bottom }));
    for (let k = 0; k < rows.length; k++) {
      const bar = node("rect", { class: "bar", x: toX(edges[k]) + 0.5, y: toY(rows[k]), width: Math.max(toX(edges[k + 1]) - toX(edges[k]) - 1, 0.5), height: toY(0) - toY(rows[k]) });
      bar.append(node("title", {}, `${number(edges[k])} to ${number(edges[k + 1])}: ${rows[k]} ${unit}`));
      svg.append(bar);
    }
    figure.host.append(svg);
  };

  report.kinds.roofline = function (figure) {
    const { facts, arrays } = figure, { names, intensity, speed, moved, share, limit } = arrays;
    const width = widthOf(figure), height = Math.round(width * 0.62), svg = frame(figure, width, height);
    const box = { left: 62, right: width - 14, top: 14, bottom: height - 46 }, log = Math.log10;
    const ends = (values, low, high) => [Math.floor(Math.min(low, ...values.map(log))), Math.ceil(Math.max(high, ...values.map(log)))];
    const flat = facts.roofs.filter((roof) => !roof.per_byte).map((roof) => roof.rate);
    const ridges = flat.length ? facts.roofs.filter((roof) => roof.per_byte).map((roof) => flat[0] / roof.rate) : [];
    const x = ends([...intensity, ...ridges], -1, 1), y = ends([...speed, ...flat], 0, 1);
    const toX = (v) => box.left + ((log(v) - x[0]) / (x[1] - x[0])) * (box.right - box.left);
    const toY = (v) => box.bottom - ((log(v) - y[0]) / (y[1] - y[0])) * (box.bottom - box.top);
    for (let k = x[0]; k <= x[1]; k++) {
      svg.append(node("line", { class: "grid", x1: toX(10 ** k), x2: toX(10 ** k), y1: box.top, y2: box.bottom }));
      svg.append(node("text", { x: toX(10 ** k), y: box.bottom + 16, "text-anchor": "middle" }, number(10 ** k)));
    }
    for (let k = y[0]; k <= y[1]; k++) {
      svg.append(node("line", { class: "grid", x1: box.left, x2: box.right, y1: toY(10 ** k), y2: toY(10 ** k) }));
      svg.append(node("text", { x: box.left - 6, y: toY(10 ** k) + 4, "text-anchor": "end" }, number(10 ** k)));
    }
    svg.append(node("text", { class: "label", x: (box.left + box.right) / 2, y: box.bottom + 34, "text-anchor": "middle" }, "FLOP per byte"));
    const middle = (box.top + box.bottom) / 2;
    svg.append(node("text", { class: "label", x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, "GFLOP/s"));
    const left = 10 ** x[0], right = 10 ** x[1], low = 10 ** y[0], top = flat.length ? flat[0] : 10 ** y[1];
    facts.roofs.forEach((roof) => {
      const start = roof.per_byte ? Math.max(left, low / roof.rate) : left, end = roof.per_byte ? Math.min(top / roof.rate, right) : right;
      if (start >= end) return;
      const at = (v) => toY(roof.per_byte ? v * roof.rate : roof.rate);
      svg.append(node("line", { class: "roof", x1: toX(start), y1: at(start), x2: toX(end), y2: at(end) }));
      const text = `${roof.name} ${number(roof.rate)} ${roof.per_byte ? "GB/s" : "GFLOP/s"}`;
      if (roof.per_byte) {
        const v = 10 ** ((log(start) + log(end)) / 2), angle = (-Math.atan2(at(start) - at(end), toX(end) - toX(start)) * 180) / Math.PI;
        const up = roof.name === "memory" ? 13 : -5;
        svg.append(node("text", { "text-anchor": "middle", transform: `translate(${toX(v)} ${at(v)}) rotate(${angle}) translate(0 ${up})` }, text));
      } else svg.append(node("text", { x: box.right - 4, y: at(end) - 5, "text-anchor": "end" }, text));
    });
    const readout = report.element("p", { class: "readout", role: "status" }, "");
    const dots = Array.from(intensity, (v, k) => {
      const dot = node("circle", { class: "mark op", cx: toX(v).toFixed(1), cy: toY(speed[k]).toFixed(1), r: (3 + 17 * Math.sqrt(share[k])).toFixed(1) });
      svg.append(dot);
      return dot;
    });
    let selected = -1;
    function select(k) {
      if (k === selected) return;
      if (selected >= 0) dots[selected].classList.remove("selected");
      selected = k;
      if (k < 0) { readout.textContent = ""; return; }
      dots[k].classList.add("selected");
      const reached = Number.isFinite(limit[k]) ? `, ${(100 * limit[k]).toFixed(0)} % of the limit` : "";
      readout.textContent = `${names[k]}: ${(100 * share[k]).toFixed(1)} % of the time, ${number(intensity[k])} FLOP/byte, ${number(speed[k])} GFLOP/s, ${number(moved[k])} GB/s${reached}`;
    }
    svg.addEventListener("pointermove", (event) => {
      const rect = svg.getBoundingClientRect(), px = ((event.clientX - rect.left) / rect.width) * width, py = ((event.clientY - rect.top) / rect.height) * height;
      let best = -1, nearest = 900;
      dots.forEach((dot, k) => {
        const far = (dot.getAttribute("cx") - px) ** 2 + (dot.getAttribute("cy") - py) ** 2;
        if (far < nearest) { nearest = far; best = k; }
      });
      if (best >= 0) select(best);
    });
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }, n = dots.length;
      if (event.key === "Escape") select(-1);
      else if (n && event.key in moves) select(selected < 0 ? (moves[event.key] > 0 ? 0 : n - 1) : (selected + moves[event.key] + n) % n);
      else if (n && event.key === "Home") select(0);
      else if (n && event.key === "End") select(n - 1);
      else return;
      event.preventDefault();
    });
    const hint = report.element("p", { class: "readout" }, "The area of a point is its share of the time. Point at one, or use the arrow keys after a click.");
    figure.host.append(svg, hint, readout);
    return { selected: () => selected, points: () => dots.map((dot) => [+dot.getAttribute("cx"), +dot.getAttribute("cy")]) };
  };

  report.kinds.matrix = function (figure) {
    const { names, value } = figure.arrays, n = names.length, make = report.element;
    const head = make("tr", {}, make("th", { scope: "col" }, "true \\ predicted"), ...names.map((name) => make("th", { scope: "col", title: name }, name)));
    const rows = names.map((name, r) => {
      const of = Array.from(value.slice(r * n, (r + 1) * n)), sum = of.reduce((a, b) => a + b, 0);
      const cells = of.map((count, c) => {
        const share = sum ? count / sum : 0, tone = make("i", {});
        tone.style.opacity = count ? 0.1 + 0.9 * share : 0;
        const kinds = [r === c ? "" : "wrong", share > 0.55 ? "dark" : ""].join(" ").trim();
        const title = `true ${name}, predicted ${names[c]}: ${count} of ${sum} rows (${(100 * share).toFixed(1)} %)`;
        return make("td", { class: kinds || null, title }, tone, String(count));
      });
      return make("tr", {}, make("th", { scope: "row", title: name }, name), ...cells);
    });
    const table = make("table", { class: "matrix", "aria-label": figure.label }, make("thead", {}, head), make("tbody", {}, ...rows));
    figure.host.append(make("div", { class: "matrix-scroll", tabindex: 0 }, table));
  };
})();
