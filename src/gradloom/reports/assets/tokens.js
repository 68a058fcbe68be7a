"use strict";
// tokens: arrays tokens (texts), losses (nats; nan where a token does not count): a text whose tokens are shaded by
// their losses, in steps of one nat.
(function () {
  const report = gradloomReport, LEVELS = 7;

  function level(loss) {
    return Math.min(Math.max(Math.floor(loss), 0), LEVELS - 1);
  }

  report.kinds.tokens = function (figure) {
    const { tokens, losses } = figure.arrays, make = report.element;
    const spans = tokens.map((token, k) => {
      const counts = Number.isFinite(losses[k]);
      const text = token.replaceAll("\n", "\u21b5\n");
      return make("span", { class: counts ? `token loss-${level(losses[k])}` : "token uncounted", "data-k": k }, text);
    });
    const body = make("div", { class: "tokens", tabindex: 0, role: "group", "aria-label": figure.label }, ...spans);
    const readout = make("p", { class: "readout" }, "");
    function show(event) {
      const k = event.target.dataset ? event.target.dataset.k : undefined;
      if (k === undefined) { readout.textContent = ""; return; }
      const loss = losses[k], name = JSON.stringify(tokens[k]);
      readout.textContent = Number.isFinite(loss)
        ? `token ${Number(k) + 1}, ${name}: loss ${loss.toFixed(4)}, probability ${Math.exp(-loss).toPrecision(3)}`
        : `token ${Number(k) + 1}, ${name}: does not count`;
    }
    body.addEventListener("pointermove", show);
    body.addEventListener("click", show);
    const scale = Array.from({ length: LEVELS }, (_, k) =>
      make("li", { class: `token loss-${k}` }, k === LEVELS - 1 ? `${k} and more` : `${k} to ${k + 1}`));
    figure.host.append(body, readout, make("ul", { class: "legend token-scale", "aria-label": "loss in nats" }, make("li", {}, "loss in nats:"), ...scale));
  };
})();
