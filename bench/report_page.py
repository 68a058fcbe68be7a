"""The page of a plan of 10 000 instructions: seconds to create, bytes, first paint, drawing and hover in Chromium.

    python bench/report_page.py [--instructions 10000] [--keep FILE.html]

The plan is that of loss and gradients of a residual network, planned and proved, never run. First paint is Chromium's
own entry `first-contentful-paint`; the map is drawn when the page's script has ended. Drawing and hover are measures
that the page's script leaves in the performance timeline (#timing), hover over 400 positions.
Needs chromium, chromedriver and the package selenium.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the tests are written as modules

import gradloom as gl
from gradloom import ops
from gradloom.plan.memory_map import memory_maps
from gradloom.reports.memory_map import figure
from gradloom.reports.page import json_text
from tests.reports.browser import Browser, launched

PER_LAYER = 9  # instructions: forward and backward


def network(layers: int) -> Any:
    """The plan of loss and gradients of a residual network."""
    h, weights = gl.input("x", (32, 64)), []
    for k in range(layers):
        with gl.scope(f"block.{k}"):
            w = gl.parameter(np.zeros((64, 64), np.float32), f"block.{k}.weight")
            h = h + ops.gelu(ops.rms_norm(h) @ w)
            weights.append(w)
    loss = ops.mean(ops.sqr(h))
    return gl.compile([loss, *gl.gradients(loss, weights)], backend="null").plan


def measures(browser: Browser, name: str) -> list[float]:
    """Durations in ms of the measures of this name."""
    found: list[float] = browser.js("return performance.getEntriesByName(arguments[0]).map((e) => e.duration)", name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instructions", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="write the page here")
    args = parser.parse_args()
    begin = time.perf_counter()
    plan = network(-(-args.instructions // PER_LAYER))
    planned = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        path = args.keep or Path(folder, "plan.html")
        begin = time.perf_counter()
        plan.save(path)
        created = time.perf_counter() - begin
        (one,) = memory_maps(plan)
        data = json.loads(json_text({n: len(_encoded(a)) for n, a in figure(one, "").arrays.items()}))
        rows = [
            ("instructions", f"{len(plan.order.steps)}"), ("rectangles", f"{len(one.first)}"),
            ("planned and proved", f"{planned:.2f} s"), ("page created", f"{created:.2f} s"),
            ("page", f"{path.stat().st_size / 1024:.0f} KiB"),
            ("embedded bytes per rectangle", f"{sum(data.values()) / len(one.first):.2f}"),
        ]  # fmt: skip
        rows += in_browser(path)
    table(rows, ("plan of a residual network", "measured"))


def _encoded(array: Any) -> str:
    from gradloom.reports.page import encoded

    return str(encoded(array)["data"])


def in_browser(path: Path) -> list[tuple[str, str]]:
    """Rows of the table that a browser measures."""
    driver = launched()
    try:
        browser = Browser(driver)
        browser.open(path, end="#timing")
        browser.settle()
        paint = browser.js("return performance.getEntriesByName('first-contentful-paint').map((e) => e.startTime)[0]")
        draws = measures(browser, "gradloom map draw")
        ready = browser.js("return performance.getEntriesByName('gradloom page ready')[0].startTime")
        box = browser.js(
            "const b = document.querySelector('.map-top').getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height]"
        )
        rng = np.random.default_rng(0)
        for x, y in rng.uniform(0.1, 0.95, (400, 2)):
            move = {"type": "mouseMoved", "x": box[0] + x * box[2], "y": box[1] + y * box[3]}
            driver.execute_cdp_cmd("Input.dispatchMouseEvent", move)
        browser.settle()
        hovers = sorted(measures(browser, "gradloom map hover"))
        for key in "++++----":
            browser.find(".map-top").send_keys(key)
            browser.settle()
        zooms = sorted(measures(browser, "gradloom map draw")[len(draws) :])
    finally:
        driver.quit()
    return [
        ("first contentful paint", f"{paint:.0f} ms"), ("map drawn", f"{ready:.0f} ms after the load began"),
        ("drawing of the whole map", f"{draws[0]:.1f} ms"),
        ("drawing while zooming, median and most", f"{zooms[len(zooms) // 2]:.1f}, {zooms[-1]:.1f} ms"),
        ("hover, median and most", f"{hovers[len(hovers) // 2]:.2f}, {hovers[-1]:.2f} ms of {len(hovers)}"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
