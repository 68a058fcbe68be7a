"""Watched values in reports: norms as curves and heat maps, histograms as heat maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradloom.reports.page import Figure
from gradloom.reports.pictures import save_pictures
from gradloom.reports.run_report import report
from gradloom.reports.sections import figures_of
from gradloom.reports.watched import watched_section
from tests.reports.browser import Browser
from tests.reports.test_plan_page import CONTRAST

HOSTILE = "a</script><script>window.hacked=1</script>\u202e"


def line(step: int, names: list[str], bins: int = 64) -> dict[str, Any]:
    made: dict[str, Any] = {"kind": "watch", "step": step, "epoch": 1}
    for k, name in enumerate(names):
        made[f"norm/{name}"] = float(step + 1) * 10.0**k
        counts = [(step * 7 + b * 3) % 11 for b in range(bins)]
        made[f"histogram/{name}"] = {"low": -1.0 - step, "high": 2.0 + step, "counts": counts, "not_finite": step % 2}
    return made


def run_with(folder: Path, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    epoch = {"kind": "epoch", "step": 1, "epoch": 1, "loss": 1.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*lines, epoch]))
    return folder


def watched_figures(lines: list[dict[str, Any]]) -> list[Figure]:
    return figures_of(watched_section(lines))


def test_few_norms_are_curves_and_many_a_heat_map() -> None:
    few = [line(k, ["0", "1", "grad:0"]) for k in range(20)]
    norms, gradients, *histograms = watched_figures(few)
    assert (norms.kind, norms.title) == ("curves", "norm of watched values")
    assert [one["name"] for one in norms.facts["curves"]] == ["0", "1"]
    np.testing.assert_array_equal(norms.arrays["y1"], 10.0 * np.arange(1, 21))
    assert [one["name"] for one in gradients.facts["curves"]] == ["grad:0"]
    assert [one.title for one in histograms] == ["histogram of 0", "histogram of 1", "histogram of grad:0"]
    names = [f"blk.{k}" for k in range(9)]
    heat = watched_figures([line(k, names) for k in range(20)])[0]
    assert heat.kind == "heat" and heat.facts["names"] == names
    shade = np.reshape(heat.arrays["shade"], (20, 9))
    assert shade[0, 0] == 0 and shade[-1, -1] == 254
    assert heat.table.rows[1] == ("blk.1", "10", "200", "200")


def test_the_cells_of_a_histogram_are_its_counts() -> None:
    lines = [line(k, ["0"]) for k in range(5)]
    figure = watched_figures(lines)[1]
    expected = [one["histogram/0"]["counts"] for one in lines]
    np.testing.assert_array_equal(np.reshape(figure.arrays["value"], (5, 64)), expected)
    assert figure.arrays["low"].tolist() == [-1.0, -2.0, -3.0, -4.0, -5.0]  # type: ignore[union-attr]
    assert figure.table.rows[1] == (1, "-2", "3", sum(expected[1]), 1)


@pytest.mark.slow
def test_a_page_of_many_watched_steps_is_small(tmp_path: Path) -> None:
    names = [f"blk.{k}.attn_q" for k in range(20)]
    page = report(run_with(tmp_path / "run", [line(k, names) for k in range(1000)]))
    assert len(page.html) < 600_000
    heat = [figure for figure in figures_of(page.sections) if figure.kind == "heat"]
    assert len(heat) == 13 and all(len(figure.arrays["step"]) == 100 for figure in heat)
    assert "The first 12 of 20 histograms." in page.html


def test_odd_values_are_left_out() -> None:
    rng = np.random.default_rng(0)
    odd: list[Any] = [None, [], {}, "x", -1, 1e308, True, 10**400, [[1]], {"low": 1, "high": 0, "counts": [1]}]
    for _ in range(200):
        lines = [line(k, ["0", "1"]) for k in range(3)]
        for one in lines:
            for name in one:
                if rng.random() < 0.2 and name != "kind":
                    one[name] = odd[rng.integers(len(odd))]
                elif isinstance(one[name], dict) and rng.random() < 0.5:
                    part = list(one[name])[rng.integers(4)]
                    one[name][part] = odd[rng.integers(len(odd))]
        watched_figures(lines)


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures = watched_figures([line(k, [f"{n}" for n in range(8)]) for k in range(4)])
    assert len(save_pictures(figures, tmp_path, "png")) == len(figures) == 9


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("media", [{}, {"prefers_color_scheme": "dark"}, {"forced_colors": "active"}])
@pytest.mark.parametrize("width", [360, 1280])
def test_heat_maps_by_mouse_and_keyboard(tmp_path: Path, browser: Browser, media: dict[str, str], width: int) -> None:
    from selenium.webdriver.common.keys import Keys

    lines = [line(k, [f"blk.{n}" for n in range(8)]) for k in range(6)]
    report(run_with(tmp_path / "run", lines)).save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html", width, 800, **media)
    assert browser.js("return document.documentElement.scrollWidth") <= width and not browser.all("figure .problem")
    norms, histogram = browser.all("figure[data-kind=heat]")[:2]
    canvas, readout = (norms.find_element("css selector", one) for one in ("canvas", "[role=status]"))
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert readout.text == "optimiser step 0, blk.0: 1"
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert readout.text == "optimiser step 1, blk.1: 20"
    canvas.send_keys(Keys.ESCAPE)
    assert readout.text == ""
    canvas, readout = (histogram.find_element("css selector", one) for one in ("canvas", "[role=status]"))
    canvas.send_keys(Keys.ARROW_UP, *[Keys.ARROW_DOWN] * 40)
    counts = lines[0]["histogram/blk.0"]["counts"]
    assert readout.text == f"optimiser step 0, -1 to -0.9531: {counts[0]} numbers"
    browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
    x, y = browser.js(
        "const k = gradloomReport.figures.findIndex((f) => f && f.cell && f.cell(0, 0)[1] > f.cell(0, 1)[1]);"
        "const at = gradloomReport.figures[k].cell(2, 5), box = arguments[0].getBoundingClientRect();"
        "return [box.left + at[0], box.top + (at[1] + at[2]) / 2]", canvas,
    )  # fmt: skip
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
    browser.settle()
    assert readout.text.startswith("optimiser step 2, ") and readout.text.endswith(
        f": {lines[2]['histogram/blk.0']['counts'][5]} numbers"
    )
    assert browser.js(CONTRAST, browser.find("figure[data-kind=heat] figcaption")) >= 4.5
    dark = browser.js(
        "const c = arguments[0], s = c.width / c.clientWidth;"
        "const at = gradloomReport.figures.find((f) => f && f.cell).cell(5, 7);"
        "return [...c.getContext('2d').getImageData(at[0] * s, (at[1] + at[2]) / 2 * s, 1, 1).data]",
        norms.find_element("css selector", "canvas"),
    )
    assert dark[3] > 240  # the largest norm is drawn


def test_hostile_names_are_texts(tmp_path: Path, browser: Browser) -> None:
    lines = [line(k, [f"{HOSTILE}{n}" for n in range(8)]) for k in range(3)]
    page = report(run_with(tmp_path / "run", lines))
    assert "\u202e" not in page.html and "<script>window" not in page.html
    page.save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    browser.find("figure[data-kind=heat] canvas").send_keys("\ue014")
    assert browser.js("return window.hacked") is None and not browser.all("figure .problem")
    assert "</script>" in browser.find("figure[data-kind=heat] [role=status]").text
