"use strict";
// The page's own script: decodes the data of each figure and calls the function of its kind.
//
//   report.kinds.NAME = function (figure) {...}   draws into figure.host; its result, or that of a promise, is kept
//                                                 in report.figures
//   figure: {host, element, title, label, facts, arrays: {name: typed array or list of texts}}
const gradloomReport = (function () {
  const report = { kinds: {}, figures: [] };

  async function inflated(text) {
    const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Bytes of the same weight are neighbours in the page: in memory those of one number are. Arrays are little-endian,
  // as are all machines with a browser.
  async function decoded(array) {
    const bytes = await inflated(array.data);
    if (array.type === "texts") return JSON.parse(new TextDecoder().decode(bytes));
    const size = array.size, count = bytes.length / size, joined = new Uint8Array(bytes.length);
    for (let plane = 0, at = 0; plane < size; plane++) {
      for (let i = plane; i < joined.length; i += size) joined[i] = bytes[at++];
    }
    const types = { Uint8Array, Uint16Array, Uint32Array, Int32Array, Float32Array, Float64Array };
    return new types[array.type](joined.buffer, 0, count);
  }

  async function draw(element) {
    const host = element.querySelector(".drawing");
    const data = JSON.parse(element.querySelector('script[type="application/json"]').textContent);
    try {
      const arrays = {};
      for (const [name, array] of Object.entries(data.arrays)) arrays[name] = await decoded(array);
      host.replaceChildren();
      const drawn = await report.kinds[data.kind]({ host, element, title: data.title, label: data.label, facts: data.facts, arrays });
      report.figures.push(drawn);
    } catch (error) {
      const text = `This browser cannot draw the figure (${error}). The table below has the same facts.`;
      host.replaceChildren(report.element("p", { class: "problem", role: "note" }, text));
      element.querySelector("details").open = true;
      console.error(error);
    }
  }

  report.start = async function () {
    for (const element of document.querySelectorAll("figure[data-kind]")) await draw(element);
    performance.mark("gradloom page ready");
    document.documentElement.dataset.ready = "true";
  };

  // An element with attributes and children; texts become text nodes. `style` is set by the object model: the policy
  // of the page permits no style attributes.
  report.element = function (tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "style") Object.assign(made.style, value);
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };

  // Leaves a measure in the performance timeline, from `begin` on, where the address ends in #timing.
  report.measure = function (name, begin) {
    if (location.hash === "#timing") performance.measure(name, { start: begin, end: performance.now() });
  };

  // The colour of a custom property such as "--ink", in the current theme, as canvases need it.
  const probe = document.createElement("i");
  probe.hidden = true;
  probe.style.forcedColorAdjust = "none";
  document.body.append(probe);
  report.colour = function (name) {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };

  // Calls redraw when the size of the element or the theme changes.
  report.onChange = function (element, redraw) {
    new ResizeObserver(redraw).observe(element);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)", "print"]) {
      matchMedia(query).addEventListener("change", redraw);
    }
  };

  report.bytes = function (n) {
    let size = n;
    for (const unit of ["B", "KiB", "MiB"]) {
      if (size < 1024) return unit === "B" ? `${n} B` : `${size.toFixed(2)} ${unit}`;
      size /= 1024;
    }
    return `${size.toFixed(2)} GiB`;
  };

  return report;
})();
