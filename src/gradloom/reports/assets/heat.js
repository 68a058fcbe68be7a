"use strict";
// Heat maps over the watched steps of a training, on a canvas.
//
// facts {axis, unit, names (of rows; null: rows are bins), bins}; arrays step, shade (0 to 254; 255: no number) and
// value, of each step all rows; with bins also low and high: the limits of the bins of each step
(function () {
  const report = gradloomReport, ROW = 18, LEFT_MOST = 190;

  function number(value) {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 8 });
  }

  report.kinds.heat = function (figure) {
    const { facts, arrays } = figure, { step, shade, value, low, high } = arrays;
    const columns = step.length, rows = facts.names ? facts.names.length : facts.bins;
    const least = low ? Math.min(...low) : 0, most = low ? Math.max(...high) : rows;
    const height = facts.names ? rows * ROW + 44 : 260;
    const canvas = report.element("canvas", { class: "heat", tabindex: 0, role: "img", "aria-label": figure.label });
    canvas.style.height = `${height}px`;
    const readout = report.element("p", { class: "readout", role: "status" }, "");
    let box = null, at = null;

    // The limits of a cell in pixels from the top; names go downwards, values upwards.
    function cell(c, r) {
      if (facts.names) return [box.top + r * ROW, box.top + (r + 1) * ROW];
      const span = most - least || 1, size = (high[c] - low[c]) / rows;
      const toY = (v) => box.bottom - ((v - least) / span) * (box.bottom - box.top);
      return size > 0 ? [toY(low[c] + (r + 1) * size), toY(low[c] + r * size)] : [toY(low[c]) - 2, toY(low[c]) + 2];
    }

    function draw() {
      const width = canvas.clientWidth || 320, scale = window.devicePixelRatio || 1;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      pen.clearRect(0, 0, width, height);
      pen.font = "12px system-ui, sans-serif";
      const colour = report.colour("--series-1"), ink = report.colour("--ink"), muted = report.colour("--muted");
      const labels = facts.names || [number(least), number(most)];
      const wanted = Math.max(...labels.map((text) => pen.measureText(text).width)) + 14;
      box = { left: Math.min(wanted, LEFT_MOST, width * 0.4), right: width - 10, top: 8, bottom: height - 36 };
      const across = (box.right - box.left) / columns;
      pen.fillStyle = colour;
      for (let c = 0; c < columns; c++) {
        for (let r = 0; r < rows; r++) {
          const dark = shade[c * rows + r];
          if (dark === 255) continue;
          if (!dark && !facts.names) continue;
          const [top, bottom] = cell(c, r);
          pen.globalAlpha = facts.names ? 0.06 + (0.94 * dark) / 254 : 0.12 + (0.88 * dark) / 254;
          pen.fillRect(box.left + c * across, top, Math.max(across - (across > 6 ? 1 : 0), 0.5), Math.max(bottom - top - (facts.names ? 1 : 0), 0.5));
        }
      }
      pen.globalAlpha = 1;
      pen.fillStyle = muted;
      pen.textAlign = "right";
      if (facts.names) {
        facts.names.forEach((name, r) => {
          let text = name;
          while (text.length > 3 && pen.measureText(text).width > box.left - 12) text = "…" + text.slice(2);
          pen.fillText(text, box.left - 6, box.top + r * ROW + 13);
        });
      } else {
        pen.fillText(number(most), box.left - 6, box.top + 10);
        pen.fillText(number(least), box.left - 6, box.bottom);
      }
      pen.textAlign = "left";
      pen.fillText(number(step[0]), box.left, box.bottom + 16);
      pen.textAlign = "right";
      if (columns > 1) pen.fillText(number(step[columns - 1]), box.right, box.bottom + 16);
      pen.textAlign = "center";
      pen.fillStyle = ink;
      pen.fillText(facts.axis, (box.left + box.right) / 2, box.bottom + 30);
      if (at) {
        const [top, bottom] = cell(at[0], at[1]);
        pen.strokeStyle = ink;
        pen.lineWidth = 2;
        pen.strokeRect(box.left + at[0] * across, top, across, Math.max(bottom - top, 2));
      }
    }

    function select(c, r) {
      at = [c, r];
      const k = c * rows + r, start = `${facts.axis} ${number(step[c])}, `;
      if (facts.names) readout.textContent = `${start}${facts.names[r]}: ${shade[k] === 255 ? "no finite number" : number(value[k])}`;
      else {
        const size = (high[c] - low[c]) / rows, from = low[c] + r * size;
        readout.textContent = `${start}${number(from)} to ${number(from + size)}: ${value[k].toLocaleString("en")} ${facts.unit}`;
      }
      draw();
    }

    canvas.addEventListener("pointermove", (event) => {
      const rect = canvas.getBoundingClientRect(), x = event.clientX - rect.left, y = event.clientY - rect.top;
      const c = Math.floor(((x - box.left) / (box.right - box.left)) * columns);
      if (c < 0 || c >= columns) return;
      for (let r = 0; r < rows; r++) {
        const [top, bottom] = cell(c, r);
        if (y >= top && y < bottom) { select(c, r); return; }
      }
    });
    canvas.addEventListener("keydown", (event) => {
      const down = facts.names ? 1 : -1;
      const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, down], ArrowUp: [0, -down] };
      if (event.key === "Escape") { at = null; readout.textContent = ""; draw(); }
      else if (event.key in moves) {
        const [dc, dr] = moves[event.key], [c, r] = at || [0, facts.names ? 0 : rows >> 1];
        if (at) select(Math.min(Math.max(c + dc, 0), columns - 1), Math.min(Math.max(r + dr, 0), rows - 1));
        else select(c, r);
      } else return;
      event.preventDefault();
    });
    figure.host.append(canvas, readout);
    report.onChange(canvas, draw);
    draw();
    return { selected: () => at, cell: (c, r) => [box.left + ((c + 0.5) * (box.right - box.left)) / columns, ...cell(c, r)] };
  };
})();
