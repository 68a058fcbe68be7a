// Memory map: x is the step of a program, y the offset in its arena, a rectangle is a buffer.
//
// The lower canvas holds the rectangles and is drawn when the view changes, the upper one the marks of hover and
// selection. Where rectangles are smaller than a pixel, the largest one of a column is drawn last.
(function () {
  const LEFT = 78, RIGHT = 10, TOP = 30, BOTTOM = 30; // margins in CSS pixels
  const COLOURS = ["--series-1", "--series-2", "--series-3"], AGAIN = "--series-4", WORKSPACE = "--series-6";
  const SMALLEST = { steps: 4, bytes: 256 }; // of a view
  const ZOOM = 1.35;

  function number(n) { return n.toLocaleString("en-US"); }

  // The rectangles as the page uses them: typed arrays, and the names of the step that writes each.
  function model(facts, arrays) {
    const count = arrays.first.length;
    const m = { count, facts, offset: arrays.offset, bytes: arrays.bytes, first: new Uint32Array(count),
      last: new Uint32Array(count), readerStart: new Uint32Array(count + 1), readers: new Uint32Array(arrays.readers.length),
      colour: new Uint8Array(count), arrays };
    for (let i = 0, step = 0, at = 0; i < count; i++) {
      step += arrays.first[i];
      m.first[i] = step;
      m.last[i] = step + arrays.life[i];
      for (let k = 0; k < arrays.reader_count[i]; k++, at++) m.readers[at] = arrays.readers[at] + step;
      m.readerStart[i + 1] = at;
      const phase = arrays.phase[step];
      m.colour[i] = arrays.spec[i] === facts.workspace ? 4 : phase >= 4 ? 3 : phase;
    }
    m.ascending = Uint32Array.from({ length: count }, (_, i) => i).sort((a, b) => m.bytes[a] - m.bytes[b] || a - b);
    m.end = facts.steps;
    for (let i = 0; i < count; i++) if (m.last[i] >= m.end) m.end = facts.steps + 1; // read by the caller
    m.end = Math.max(m.end, 1);
    m.height = Math.max(facts.arena, facts.budget && facts.budget < 1.5 * facts.arena ? facts.budget : 0, 1) * 1.06;
    return m;
  }

  function draw(figure) {
    const make = gradloomReport.element, m = model(figure.facts, figure.arrays), a = figure.arrays, facts = figure.facts;
    const whole = () => ({ x0: 0, x1: m.end, y0: 0, y1: m.height });
    let view = whole(), hovered = -1, selected = -1, pixels = 1, width = 0, height = 0, colours = {}, waiting = false;

    // ---- elements ------------------------------------------------------------------------------------------
    const used = new Set(m.colour);
    const entries = [["forward", COLOURS[0], 0], ["backward", COLOURS[1], 1], ["update", COLOURS[2], 2],
      ["computed again", AGAIN, 3], ["workspace of a step", WORKSPACE, 4]].filter((one) => used.has(one[2]));
    const legend = make("ul", { class: "legend", "aria-label": "Colours: the phase that writes a buffer" },
      ...entries.map(([name, colour]) =>
        make("li", {}, make("span", { class: "swatch", "aria-hidden": "true", style: { background: `var(${colour})` } }), name)));
    const same = facts.arena === facts.lower_bound;
    const levelsOf = [[facts.arena, same ? "arena = lower bound" : "arena", [], "ink"]];
    if (!same) levelsOf.push([facts.lower_bound, "lower bound", [5, 4], "ink"]);
    if (facts.budget) levelsOf.push([facts.budget, "budget", [2, 3], "warning"]);
    const lines = make("ul", { class: "legend", "aria-label": "Lines" }, ...levelsOf.map(([bytes, name]) =>
      make("li", {}, make("span", { class: `map-line map-line-${name.split(" ")[0]}`, "aria-hidden": "true" }),
        `${name} ${gradloomReport.bytes(bytes)}`)));
    const button = (label, text, action) => {
      const made = make("button", { type: "button", "aria-label": label, title: label }, text);
      made.addEventListener("click", action);
      return made;
    };
    const tools = make("div", { class: "map-tools", role: "group", "aria-label": "View" },
      button("Zoom in", "+", () => zoom(ZOOM * ZOOM)), button("Zoom out", "−", () => zoom(1 / ZOOM / ZOOM)),
      button("Move left", "←", () => pan(-0.25, 0)), button("Move right", "→", () => pan(0.25, 0)),
      button("Show the whole program", "Whole", () => show(whole())));
    const hintId = `${figure.element.id}-hint`;
    const hint = make("p", { class: "map-hint", id: hintId });
    const keys = [["+", ""], ["−", "zoom"], ["arrows", "move"], ["0", "whole program"], ["N", ""], ["P", "next, previous buffer"],
      ["L", "largest in view"], ["Esc", "clear"]];
    const byKey = make("span", { class: "map-keys" }, " Keys: ");
    keys.forEach(([key, text], i) => byKey.append(make("kbd", {}, key), text ? ` ${text}${i < keys.length - 1 ? ", " : "."}` : " "));
    hint.append(make("span", { class: "map-mouse" }, "Drag to move; click the map, then scroll to zoom, with Shift along the steps only."),
      make("span", { class: "map-touch" }, "Drag to move along the steps, pinch to zoom, tap a buffer for its facts."), byKey);
    const base = make("canvas", { "aria-hidden": "true" });
    const top = make("canvas", { class: "map-top", tabindex: "0", role: "application", "aria-label": figure.label,
      "aria-roledescription": "memory map", "aria-describedby": hintId });
    const tip = make("div", { class: "map-tip", "aria-hidden": "true" });
    tip.hidden = true;
    const area = make("div", { class: "map-area" }, base, top, tip);
    const detail = make("div", { class: "map-detail", role: "status", "aria-live": "polite" });
    figure.host.append(make("div", { class: "map-bar" }, make("div", {}, legend, lines), tools), area, hint, detail);
    const under = base.getContext("2d"), over = top.getContext("2d");

    // ---- places --------------------------------------------------------------------------------------------
    const plotWidth = () => Math.max(width - LEFT - RIGHT, 1), plotHeight = () => Math.max(height - TOP - BOTTOM, 1);
    const px = (step) => LEFT + (step - view.x0) / (view.x1 - view.x0) * plotWidth();
    const py = (byte) => TOP + (view.y1 - byte) / (view.y1 - view.y0) * plotHeight();
    const stepAt = (x) => view.x0 + (x - LEFT) / plotWidth() * (view.x1 - view.x0);
    const byteAt = (y) => view.y1 - (y - TOP) / plotHeight() * (view.y1 - view.y0);
    const inPlot = (x, y) => x >= LEFT && x <= width - RIGHT && y >= TOP && y <= height - BOTTOM;

    // The largest rectangle that meets the pixel at (x, y); -1 where none does.
    function hit(x, y) {
      const s0 = stepAt(x - 0.5), s1 = stepAt(x + 0.5), b0 = byteAt(y + 0.5), b1 = byteAt(y - 0.5);
      const { first, last, offset, bytes } = m;
      let found = -1, most = -1;
      for (let i = 0; i < m.count && first[i] < s1; i++) {
        if (last[i] + 1 > s0 && offset[i] < b1 && offset[i] + bytes[i] > b0 && bytes[i] > most) { found = i; most = bytes[i]; }
      }
      return found;
    }

    // ---- drawing -------------------------------------------------------------------------------------------
    function resize() {
      pixels = window.devicePixelRatio || 1;
      width = area.clientWidth;
      height = area.clientHeight;
      for (const canvas of [base, top]) {
        canvas.width = Math.round(width * pixels);
        canvas.height = Math.round(height * pixels);
      }
      const colour = gradloomReport.colour;
      colours = { fill: [...COLOURS, AGAIN, WORKSPACE].map(colour), ink: colour("--ink"), muted: colour("--muted"),
        line: colour("--line"), faint: colour("--faint"), surface: colour("--surface"), warning: colour("--warning") };
      const font = getComputedStyle(document.body).fontFamily;
      colours.small = `11px ${font}`;
      colours.label = `11px ${font}`;
      paint();
    }

    function ticks(low, high, room, binary) {
      const count = Math.max(2, Math.floor(room / (binary ? 44 : 64))), raw = (high - low) / count;
      let step;
      if (binary) {
        step = 2 ** Math.ceil(Math.log2(Math.max(raw, 1)));
      } else {
        const ten = 10 ** Math.floor(Math.log10(Math.max(raw, 1e-9)));
        step = Math.max(1, [1, 2, 5, 10].map((f) => f * ten).find((s) => s >= raw));
      }
      const found = [];
      for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
      return found;
    }

    // Bytes at a tick: in the largest unit in which ticks that are `step` apart differ in two digits.
    function shortBytes(n, step) {
      if (n === 0) return "0";
      const units = ["B", "KiB", "MiB", "GiB"];
      let k = 0;
      while (k < 3 && n >= 1024 ** (k + 1) && step * 16 >= 1024 ** (k + 1)) k++;
      return `${(n / 1024 ** k).toLocaleString("en-US", { maximumFractionDigits: 4 })} ${units[k]}`;
    }

    function paint() {
      const begin = performance.now(), c = under;
      c.setTransform(pixels, 0, 0, pixels, 0, 0);
      c.clearRect(0, 0, width, height);
      c.font = colours.small;
      axes(c);
      c.save();
      c.beginPath();
      c.rect(LEFT, TOP, plotWidth(), plotHeight());
      c.clip();
      rectangles(c);
      c.restore();
      phaseStrip(c);
      levels(c);
      c.strokeStyle = colours.line;
      c.strokeRect(LEFT + 0.5, TOP + 0.5, plotWidth() - 1, plotHeight() - 1);
      mark();
      gradloomReport.measure("gradloom map draw", begin);
    }

    function axes(c) {
      c.fillStyle = colours.muted;
      c.strokeStyle = colours.faint;
      c.lineWidth = 1;
      c.textBaseline = "middle";
      c.textAlign = "right";
      const bytes = ticks(Math.max(view.y0, 0), view.y1, plotHeight(), true);
      for (const byte of bytes) {
        const y = Math.round(py(byte)) + 0.5;
        line(c, LEFT, y, width - RIGHT, y);
        if (y > TOP + 4) c.fillText(shortBytes(byte, bytes[1] - bytes[0]), LEFT - 8, y);
      }
      c.textBaseline = "top";
      c.textAlign = "center";
      for (const step of ticks(Math.max(view.x0, 0), Math.min(view.x1, m.end), plotWidth(), false)) {
        const x = Math.round(px(step)) + 0.5;
        line(c, x, height - BOTTOM, x, height - BOTTOM + 4);
        if (x < width - 46) c.fillText(number(step), x, height - BOTTOM + 7);
      }
      c.textAlign = "right";
      c.fillText("step", width - RIGHT, height - BOTTOM + 7);
    }

    function line(c, x0, y0, x1, y1) {
      c.beginPath();
      c.moveTo(x0, y0);
      c.lineTo(x1, y1);
      c.stroke();
    }

    function rectangles(c) {
      const sx = plotWidth() / (view.x1 - view.x0), sy = plotHeight() / (view.y1 - view.y0);
      const { first, last, offset, bytes, colour } = m, labelled = [];
      let current = -1;
      for (let k = 0; k < m.count; k++) {
        const i = m.ascending[k];
        if (last[i] + 1 <= view.x0 || first[i] >= view.x1) continue;
        if (offset[i] >= view.y1 || offset[i] + bytes[i] <= view.y0) continue;
        const x0 = LEFT + (first[i] - view.x0) * sx, y0 = TOP + (view.y1 - offset[i] - bytes[i]) * sy;
        const w = (last[i] + 1 - first[i]) * sx, h = bytes[i] * sy;
        if (colour[i] !== current) {
          current = colour[i];
          c.fillStyle = colours.fill[current];
        }
        if (w >= 4 && h >= 4) {
          c.fillRect(x0 + 0.5, y0 + 0.5, w - 1, h - 1);
          if (w > 52 && h > 14) labelled.push(i);
        } else {
          c.fillRect(x0, y0, Math.max(w - (w > 3 ? 0.5 : 0), 1), Math.max(h - (h > 3 ? 0.5 : 0), 1));
        }
      }
      c.font = colours.label;
      c.textBaseline = "middle";
      c.textAlign = "left";
      c.fillStyle = colours.surface;
      for (const i of labelled) {
        const x0 = Math.max(px(first[i]), LEFT), x1 = Math.min(px(last[i] + 1), width - RIGHT);
        const y0 = Math.max(py(offset[i] + bytes[i]), TOP), y1 = Math.min(py(offset[i]), height - BOTTOM);
        if (x1 - x0 > 52 && y1 - y0 > 14) c.fillText(fitted(c, nameOf(i), x1 - x0 - 12), x0 + 6, (y0 + y1) / 2);
      }
    }

    // The end of a name matters most: it is kept where the whole one has no room.
    function fitted(c, text, room) {
      if (c.measureText(text).width <= room) return text;
      let low = 0, high = text.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (c.measureText("…" + text.slice(middle)).width <= room) high = middle;
        else low = middle + 1;
      }
      return text.length - low < 3 ? "" : "…" + text.slice(low);
    }

    function phaseStrip(c) {
      const y = TOP - 13, w = plotWidth();
      c.fillStyle = colours.faint;
      c.fillRect(LEFT, y, w, 9);
      let begin = Math.max(0, Math.floor(view.x0));
      const last = Math.min(facts.steps, Math.ceil(view.x1));
      const kind = (step) => (a.phase[step] >= 4 ? 3 : a.phase[step]);
      while (begin < last) {
        let end = begin + 1;
        while (end < last && kind(end) === kind(begin)) end++;
        const x0 = Math.max(px(begin), LEFT), x1 = Math.min(px(end), LEFT + w);
        c.fillStyle = colours.fill[kind(begin)];
        c.fillRect(x0, y, Math.max(x1 - x0, 0.5), 9);
        begin = end;
      }
      c.fillStyle = colours.muted;
      c.font = colours.small;
      c.textAlign = "right";
      c.textBaseline = "middle";
      c.fillText("phase", LEFT - 8, y + 5);
    }

    function levels(c) {
      for (const [bytes, , dash, colour] of levelsOf) {
        const y = py(bytes);
        if (y < TOP - 0.5 || y > height - BOTTOM) continue;
        c.strokeStyle = colours[colour];
        c.lineWidth = 1.5;
        c.setLineDash(dash);
        line(c, LEFT, y, width - RIGHT, y);
        c.setLineDash([]);
      }
      c.lineWidth = 1;
    }

    function mark() {
      const c = over;
      c.setTransform(pixels, 0, 0, pixels, 0, 0);
      c.clearRect(0, 0, width, height);
      c.save();
      c.beginPath();
      c.rect(LEFT - 2, TOP - 2, plotWidth() + 4, plotHeight() + 4);
      c.clip();
      if (selected >= 0) {
        for (let k = m.readerStart[selected]; k < m.readerStart[selected + 1]; k++) {
          const x = (px(m.readers[k]) + px(m.readers[k] + 1)) / 2;
          const y0 = Math.max(py(m.offset[selected] + m.bytes[selected]), TOP), y1 = Math.min(py(m.offset[selected]), height - BOTTOM);
          c.strokeStyle = colours.ink;
          line(c, x, y0, x, y1);
        }
        outline(c, selected, 2.5);
      }
      if (hovered >= 0 && hovered !== selected) outline(c, hovered, 1.5);
      c.restore();
    }

    function outline(c, i, size) {
      let x0 = px(m.first[i]), y0 = py(m.offset[i] + m.bytes[i]), w = px(m.last[i] + 1) - x0, h = py(m.offset[i]) - y0;
      if (w < 8) { x0 -= 3; w += 6; } // around a small one, which stays visible
      if (h < 8) { y0 -= 3; h += 6; }
      c.lineWidth = size + 2;
      c.strokeStyle = colours.surface;
      c.strokeRect(x0, y0, w, h);
      c.lineWidth = size;
      c.strokeStyle = colours.ink;
      c.strokeRect(x0, y0, w, h);
      c.lineWidth = 1;
    }

    // ---- the view ------------------------------------------------------------------------------------------
    function show(next) {
      const w = Math.min(Math.max(next.x1 - next.x0, Math.min(SMALLEST.steps, m.end)), m.end);
      const h = Math.min(Math.max(next.y1 - next.y0, Math.min(SMALLEST.bytes, m.height)), m.height);
      const x0 = Math.min(Math.max(next.x0, 0), m.end - w), y0 = Math.min(Math.max(next.y0, 0), m.height - h);
      view = { x0, x1: x0 + w, y0, y1: y0 + h };
      if (!waiting) {
        waiting = true;
        requestAnimationFrame(() => { waiting = false; paint(); });
      }
    }

    function zoom(by, x, y, stepsOnly) {
      const cx = x === undefined ? (view.x0 + view.x1) / 2 : stepAt(x), cy = y === undefined ? (view.y0 + view.y1) / 2 : byteAt(y);
      const yBy = stepsOnly ? 1 : by;
      show({ x0: cx - (cx - view.x0) / by, x1: cx + (view.x1 - cx) / by, y0: cy - (cy - view.y0) / yBy, y1: cy + (view.y1 - cy) / yBy });
    }

    function pan(dx, dy) {
      const w = view.x1 - view.x0, h = view.y1 - view.y0;
      show({ x0: view.x0 + dx * w, x1: view.x1 + dx * w, y0: view.y0 + dy * h, y1: view.y1 + dy * h });
    }

    // Move the view as little as is needed to see the whole rectangle.
    function reveal(i) {
      const next = { ...view };
      const moved = (low, high, from, to) => {
        const size = high - low;
        if (to - from > size) return [from - (to - from) * 0.05, to + (to - from) * 0.05];
        if (from < low) return [from, from + size];
        return to > high ? [to - size, to] : [low, high];
      };
      [next.x0, next.x1] = moved(view.x0, view.x1, m.first[i], m.last[i] + 1);
      [next.y0, next.y1] = moved(view.y0, view.y1, m.offset[i], m.offset[i] + m.bytes[i]);
      show(next);
    }

    // ---- the selected buffer -------------------------------------------------------------------------------
    function nameOf(i) { return a.names[a.name[m.first[i]]]; }
    function stepName(step) { return a.names[a.name[step]]; }
    function phaseOf(step) { return facts.phases[a.phase[step] & 3] + (a.phase[step] >= 4 ? ", computed again" : ""); }

    function select(i) {
      selected = i;
      detail.replaceChildren(...(i < 0 ? [make("p", {}, "Select a buffer: its step, its bytes, the line of your code, and the steps that read it.")] : about(i)));
      mark();
    }

    function about(i) {
      const step = m.first[i], end = m.last[i];
      const item = (name, value, kind) => make("div", { class: kind }, make("dt", {}, name), make("dd", {}, value));
      const list = make("dl", {},
        item("op", a.ops[a.op[step]]), item("type", a.specs[a.spec[i]]),
        item("bytes", `${gradloomReport.bytes(m.bytes[i])}${m.bytes[i] >= 1024 ? ` (${number(m.bytes[i])})` : ""}`),
        item("offset", number(m.offset[i])),
        item("alive", end >= facts.steps ? `step ${number(step)} to the end, read by the caller` :
          end === step ? `at step ${number(step)} only` : `steps ${number(step)} to ${number(end)}`),
        item("written in", phaseOf(step)));
      const code = a.lines[a.line[step]];
      if (code) list.append(item("line", make("span", { class: "code" }, code)));
      const readers = Array.from(m.readers.subarray(m.readerStart[i], m.readerStart[i + 1]));
      const shown = readers.slice(0, 24).map((reader) =>
        button(`Show step ${reader}, ${stepName(reader)}`, `${number(reader)} ${stepName(reader)}`, () => visit(reader)));
      if (readers.length > shown.length) shown.push(make("span", {}, `and ${number(readers.length - shown.length)} more`));
      const counted = readers.length === 1 ? "read by 1 step" : readers.length ? `read by ${number(readers.length)} steps` : "read by no other step";
      list.append(make("div", { class: "wide" }, make("dt", {}, counted), make("dd", { class: "map-readers" }, ...shown)));
      const swatch = make("span", { class: "swatch", "aria-hidden": "true", style: { background: colours.fill[m.colour[i]] } });
      return [make("h3", {}, swatch, nameOf(i)), list];
    }

    // Show the buffer that a step writes; a step that writes none (an update of a stored array) is moved into view.
    function visit(step) {
      const i = m.first.indexOf(step);
      if (i >= 0) {
        select(i);
        reveal(i);
      } else {
        const w = view.x1 - view.x0;
        show({ ...view, x0: step - w / 2, x1: step + w / 2 });
      }
      top.focus({ preventScroll: true });
    }

    function largestInView() {
      for (let k = m.count - 1; k >= 0; k--) {
        const i = m.ascending[k];
        if (m.last[i] + 1 > view.x0 && m.first[i] < view.x1 && m.offset[i] < view.y1 && m.offset[i] + m.bytes[i] > view.y0) return i;
      }
      return -1;
    }

    // ---- pointer and keys ----------------------------------------------------------------------------------
    function hover(x, y) {
      const begin = performance.now();
      const found = inPlot(x, y) ? hit(x, y) : -1;
      if (found !== hovered) {
        hovered = found;
        mark();
        tip.hidden = found < 0;
        if (found >= 0) {
          tip.replaceChildren(make("b", {}, nameOf(found)),
            `${a.specs[a.spec[found]]}, ${gradloomReport.bytes(m.bytes[found])}, steps ${number(m.first[found])} to ` +
            (m.last[found] >= facts.steps ? "the end" : number(m.last[found])));
        }
      }
      if (found >= 0) {
        tip.style.left = `${x > width / 2 ? Math.max(x - tip.offsetWidth - 12, 2) : x + 14}px`;
        tip.style.top = `${Math.min(y + 14, height - tip.offsetHeight - 4)}px`;
      }
      gradloomReport.measure("gradloom map hover", begin);
    }

    const pointers = new Map();
    let moved = 0, spread = 0;
    const place = (event) => {
      const box = top.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    top.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, place(event));
      moved = spread = 0;
      try { top.setPointerCapture(event.pointerId); } catch (error) { /* a pointer that has ended */ }
    });
    top.addEventListener("pointermove", (event) => {
      const [x, y] = place(event), before = pointers.get(event.pointerId);
      if (!before) {
        if (event.pointerType !== "touch") hover(x, y);
        return;
      }
      pointers.set(event.pointerId, [x, y]);
      if (pointers.size === 2) {
        const [one, two] = [...pointers.values()], distance = Math.hypot(one[0] - two[0], one[1] - two[1]);
        if (spread > 0 && distance > 0) zoom(distance / spread, (one[0] + two[0]) / 2, (one[1] + two[1]) / 2, false);
        spread = distance;
        moved = 99;
        return;
      }
      const dx = x - before[0], dy = y - before[1];
      moved += Math.abs(dx) + Math.abs(dy);
      if (moved > 4) {
        area.classList.add("moving");
        tip.hidden = true;
        pan(-dx / plotWidth(), event.pointerType === "touch" ? 0 : dy / plotHeight());
      }
    });
    const release = (event) => {
      if (!pointers.delete(event.pointerId)) return;
      area.classList.remove("moving");
      if (event.type === "pointerup" && moved <= 4) {
        const [x, y] = place(event);
        if (inPlot(x, y)) select(hit(x, y));
      }
      hovered = -1;
    };
    top.addEventListener("pointerup", release);
    top.addEventListener("pointercancel", release);
    top.addEventListener("pointerleave", () => { hovered = -1; tip.hidden = true; mark(); });
    top.addEventListener("wheel", (event) => {
      if (document.activeElement !== top && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const [x, y] = place(event);
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey) pan(Math.sign(event.deltaX) * 0.08, 0);
      else zoom((event.deltaY || event.deltaX) < 0 ? ZOOM : 1 / ZOOM, x, y, event.shiftKey);
    }, { passive: false });
    top.addEventListener("dblclick", (event) => zoom(ZOOM * ZOOM, ...place(event)));
    const next = (by) => {
      if (!m.count) return;
      select(selected < 0 ? (by > 0 ? 0 : m.count - 1) : Math.min(Math.max(selected + by, 0), m.count - 1));
      reveal(selected);
    };
    const actions = {
      "+": () => zoom(ZOOM), "=": () => zoom(ZOOM), "-": () => zoom(1 / ZOOM), "−": () => zoom(1 / ZOOM), "0": () => show(whole()),
      Home: () => show(whole()), ArrowLeft: () => pan(-0.1, 0), ArrowRight: () => pan(0.1, 0), ArrowUp: () => pan(0, 0.1),
      ArrowDown: () => pan(0, -0.1), n: () => next(1), p: () => next(-1), l: () => select(largestInView()),
      Enter: () => select(largestInView()), Escape: () => select(-1),
    };
    top.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (action) {
        action();
        event.preventDefault();
      }
    });

    select(-1);
    gradloomReport.onChange(area, resize);
    resize();
    // For scripts and tests: the place of a buffer in the figure, in CSS pixels, and the view.
    return { count: m.count, view: () => ({ ...view }), selected: () => selected,
      place: (i) => ({ left: px(m.first[i]), right: px(m.last[i] + 1), top: py(m.offset[i] + m.bytes[i]), bottom: py(m.offset[i]) }) };
  }

  gradloomReport.kinds.memory_map = draw;
})();
