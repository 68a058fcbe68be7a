"""The page of a plan: saved, shown, and read in a browser by mouse, keyboard and table."""

from __future__ import annotations

import re
import sys
import types
import webbrowser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.base.errors import FileError
from gradloom.plan.memory_map import memory_maps, program_map, program_name, step_name
from gradloom.reports import plan_page
from gradloom.reports.plan_page import sections, unique
from tests.plan.devices import DEVICES, ended, schedule_of
from tests.plan.programs import PROGRAMS, planned
from tests.reports.browser import Browser
from tests.reports.test_memory_map import large
from tests.reports.test_page import HOSTILE, Elements


@pytest.fixture(scope="module")
def plan() -> Any:
    return large(8)


@pytest.fixture(scope="module")
def saved(plan: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.html"
    plan.save(path)
    return path


def test_names_of_programs() -> None:
    assert program_name(planned("mlp")) == "Training step: x f32[6,5]"
    assert program_name(planned("chain")) == "Forward pass: x f32[3,5]"
    assert program_name(large(1)) == "Loss and gradients: x f32[16,24]"
    assert unique(["a", "b", "a"]) == ["a", "b", "a (2)"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_has_a_page(name: str, tmp_path: Path) -> None:
    planned(name).save(tmp_path / "a.html")
    assert "Memory plan" in (tmp_path / "a.html").read_text()


def test_an_empty_program_has_a_page(browser: Browser, tmp_path: Path) -> None:
    gl.compile(gl.parameter(np.zeros(3, "f4"), "w").T * 1.0).plan.save(tmp_path / "a.html")
    gl.compile([], list(ops.assign(gl.parameter(np.zeros(3, "f4"), "w"), gl.input("x", (3,))))).plan.save(
        tmp_path / "b.html"
    )
    for name in "ab":
        browser.open(tmp_path / f"{name}.html")
        browser.find(".map-top").send_keys("nlp+0")


def test_a_file_that_cannot_be_written(plan: Any, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="missing"):
        plan.save(tmp_path / "missing" / "plan.html")


def test_show_opens_a_temporary_file(plan: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plan.show()
    (path,) = tmp_path.iterdir()
    assert opened == [path.as_uri()] and path.suffix == ".html" and "Memory plan" in path.read_text()


def test_show_without_a_browser_names_the_file(
    plan: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plan.show()
    (path,) = tmp_path.iterdir()
    assert f"show: no browser was found; the page is {path}" in capsys.readouterr().err


def test_show_in_a_notebook(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    shell = types.SimpleNamespace(kernel=1)
    module: Any = types.ModuleType("IPython")
    inner: Any = types.ModuleType("IPython.display")
    module.get_ipython, inner.HTML, inner.display = (lambda: shell), str, shown.append
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    plan.show()
    ((tag, attributes),) = Elements(shown[0]).found
    assert tag == "iframe" and attributes["sandbox"] == "allow-scripts"
    assert str(attributes["srcdoc"]).startswith("<!doctype html>")
    module.get_ipython = lambda: None  # a console of IPython that has ended
    assert not plan_page.in_notebook()


def test_a_framed_page_is_drawn(plan: Any, browser: Browser, tmp_path: Path) -> None:
    """As in the output of a notebook's cell."""
    path = tmp_path / "notebook.html"
    path.write_text(
        "<!doctype html><meta charset=utf-8><html data-ready=true><body>"
        + plan_page.framed(plan_page.page("t", sections(plan_page.programs_of(plan))))
    )
    browser.open(path)
    browser.driver.switch_to.frame(browser.find("iframe"))
    browser.until(lambda: browser.js("return document.documentElement.dataset.ready") == "true")
    assert len(browser.all(".map-area")) == 1 and browser.all(".problem") == []
    browser.driver.switch_to.default_content()


def test_names_of_nodes_run_nothing(browser: Browser, tmp_path: Path) -> None:
    h = gl.input("<img src=x onerror=window.hacked=1>", (3, 4))
    for name in HOSTILE:
        with gl.scope(name):
            h = ops.relu(h @ gl.parameter(np.ones((4, 4), "f4"), name))
    gl.compile(h).plan.save(tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    for _ in HOSTILE:
        browser.find(".map-top").send_keys("n")
    mouse(browser, "mouseMoved", *place(browser, 0))
    browser.settle()
    assert browser.js("return window.hacked") is None and browser.find(".map-detail h3").text


def test_more_bytes_than_32_bits_count(browser: Browser, tmp_path: Path) -> None:
    h = gl.input("x", (1 << 21, 1024))
    for _ in range(3):
        h = ops.sin(h @ gl.constant(np.ones((1024, 1024), "f4")))
    run = gl.compile([ops.sum(h), h[0]], backend="null")
    assert run.plan.peak_bytes > 1 << 33
    run.plan.save(tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    browser.find(".map-top").send_keys("l")
    assert "8.00 GiB (8,589,934,592)" in browser.find(".map-detail").text
    offsets = [int(row[4]) for row in sections(plan_page.programs_of(run.plan))[0].figures[0].table.rows]
    assert max(offsets) >= 1 << 33


def test_a_schedule_has_a_figure_for_each_device(browser: Browser, tmp_path: Path) -> None:
    weights = [gl.parameter(np.ones((6, 6), "f4"), f"w{k}") for k in range(3)]
    h = gl.input("x", (8, 6))
    for w in weights:
        h = ops.tanh(h @ w)
    outputs, updates = ended(h, gl.input("labels", (8,), "i32"), weights)
    schedule = schedule_of(outputs, updates, lambda i, node: DEVICES[i % 2])
    schedule.save(tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    captions = [one.text for one in browser.all("figcaption")]
    assert len(captions) == 2 and all(device in text for device, text in zip(schedule.parts, captions, strict=True))
    assert "copies between devices" in browser.find(".numbers").text


def test_the_curve_is_drawn_and_has_a_table() -> None:
    found = plan_page.Programs(
        [program_map(planned("mlp"))], [("peak", "1 <b>")], [(4000, 1.0), (3000, 1.1), (2000, 1.5)]
    )
    first, second = sections(found)
    assert first.html.count("<circle") == 3 and "2.93 KiB" in first.html and "×1.500" in first.html
    assert second.title.startswith("Training step")
    elements = Elements(first.html).found
    assert [tag for tag, _ in elements].count("tr") == 4


def test_programs_with_the_highest_peak_come_first() -> None:
    found = sections(plan_page.Programs([program_map(planned(name)) for name in ("chain", "conv", "mlp")]))
    peaks = [dict(one.numbers)["peak"] for one in found]
    expected = sorted([planned(name).peak_bytes for name in ("chain", "conv", "mlp")], reverse=True)
    assert peaks == [plan_page.show_bytes(n) for n in expected]


# ---- in a browser --------------------------------------------------------------------------------------------------


def view(browser: Browser) -> dict[str, float]:
    browser.settle()
    found: dict[str, float] = browser.js("return gradloomReport.figures[0].view()")
    return found


def place(browser: Browser, i: int) -> tuple[float, float]:
    """The middle of rectangle i, in pixels of the page."""
    at = browser.js(
        "const at = gradloomReport.figures[0].place(arguments[0]);"
        "const box = document.querySelector('.map-top').getBoundingClientRect();"
        "return [box.left + (at.left + at.right) / 2, box.top + (at.top + at.bottom) / 2]",
        i,
    )
    return at[0], at[1]


def box_of(browser: Browser) -> list[float]:
    """left, top, width, height of the map."""
    found: list[float] = browser.js(
        "const b = document.querySelector('.map-top').getBoundingClientRect();return [b.left, b.top, b.width, b.height]"
    )
    return found


def mouse(browser: Browser, kind: str, x: float, y: float, **more: Any) -> None:
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})


def click(browser: Browser, x: float, y: float) -> None:
    for kind in ("mousePressed", "mouseReleased"):
        mouse(browser, kind, x, y, button="left", clickCount=1)
    browser.settle()


def largest(one: Any) -> int:
    return int(np.lexsort((one.first, -one.bytes * (one.last - one.first)))[0])


def test_a_click_names_buffer_line_and_readers(browser: Browser, saved: Path, plan: Any) -> None:
    browser.open(saved)
    (one,) = memory_maps(plan)
    i = largest(one)
    click(browser, *place(browser, i))
    assert browser.js("return gradloomReport.figures[0].selected()") == i
    node = plan.order.steps[int(one.first[i])]
    text = browser.find(".map-detail").text
    assert browser.find(".map-detail h3").text == step_name(node)
    assert node.where in text and node.where.startswith("test_memory_map.py:")
    assert f"{int(one.bytes[i]):,}" in text and one.specs[one.spec[i]] in text
    readers = one.readers[one.reader_starts[i] : one.reader_starts[i + 1]]
    buttons = browser.all(".map-readers button")
    assert [int(b.text.split()[0].replace(",", "")) for b in buttons] == readers.tolist() and len(readers) > 0
    browser.click(buttons[-1])
    reader = int(readers[-1])
    if reader in one.first.tolist():
        assert browser.find(".map-detail h3").text == step_name(plan.order.steps[reader])


def test_hover_shows_a_buffer(browser: Browser, saved: Path, plan: Any) -> None:
    browser.open(saved)
    (one,) = memory_maps(plan)
    i = largest(one)
    mouse(browser, "mouseMoved", *place(browser, i))
    browser.settle()
    assert step_name(plan.order.steps[int(one.first[i])]) in browser.find(".map-tip").text
    mouse(browser, "mouseMoved", 2, 2)
    browser.settle()
    assert not browser.find(".map-tip").is_displayed()


def test_zoom_and_pan(browser: Browser, saved: Path) -> None:
    browser.open(saved)
    whole = view(browser)
    x, y = place(browser, 0)
    mouse(browser, "mouseWheel", x, y, deltaX=0, deltaY=-100)
    assert view(browser) == whole, "the page scrolls until the map has the focus"
    browser.js("window.scrollTo(0, 0)")
    browser.find(".map-top").send_keys("+")
    near = view(browser)
    assert near["x1"] - near["x0"] < whole["x1"] - whole["x0"] and near["y1"] - near["y0"] < whole["y1"] - whole["y0"]
    box = box_of(browser)
    middle = box[0] + box[2] / 2, box[1] + box[3] / 2
    mouse(browser, "mouseWheel", *middle, deltaX=0, deltaY=-100)
    nearer = view(browser)
    assert nearer["x1"] - nearer["x0"] < near["x1"] - near["x0"]
    mouse(browser, "mousePressed", *middle, button="left", clickCount=1)
    mouse(browser, "mouseMoved", middle[0] - 60, middle[1] + 30, button="left", buttons=1)
    mouse(browser, "mouseReleased", middle[0] - 60, middle[1] + 30, button="left", clickCount=1)
    moved = view(browser)
    assert moved["x0"] > nearer["x0"] and moved["y0"] > nearer["y0"]
    assert moved["x1"] - moved["x0"] == pytest.approx(nearer["x1"] - nearer["x0"])
    assert browser.js("return gradloomReport.figures[0].selected()") == -1, "a drag selects nothing"
    browser.find("button[aria-label='Show the whole program']").click()
    assert view(browser) == whole
    browser.find("button[aria-label='Zoom in']").click()
    assert view(browser)["x1"] < whole["x1"]
    browser.find("button[aria-label='Move right']").click()
    browser.find("button[aria-label='Zoom out']").click()
    assert view(browser) == pytest.approx(whole, abs=1e-6)


def test_all_by_keyboard(browser: Browser, saved: Path, plan: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(saved)
    (one,) = memory_maps(plan)
    top = browser.find(".map-top")
    top.send_keys("l")
    selected = browser.js("return gradloomReport.figures[0].selected()")
    assert one.bytes[selected] == one.bytes.max()
    top.send_keys("p", "p")
    assert browser.js("return gradloomReport.figures[0].selected()") == selected - 2
    top.send_keys("n")
    assert browser.js("return gradloomReport.figures[0].selected()") == selected - 1
    top.send_keys("+++", Keys.ARROW_RIGHT)
    right = view(browser)
    top.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert view(browser)["x0"] < right["x0"]
    top.send_keys(Keys.ARROW_UP)
    assert view(browser)["y0"] > right["y0"]
    top.send_keys("0", Keys.ESCAPE)
    assert view(browser)["x0"] == 0 and browser.js("return gradloomReport.figures[0].selected()") == -1
    assert "Select a buffer" in browser.find(".map-detail").text
    assert browser.js(
        "return [...document.querySelectorAll('button, canvas.map-top')].every((e) => e.getAttribute('aria-label'))"
    )
    assert str(top.get_attribute("aria-label")).startswith("Memory map of ")


def test_the_table_twin(browser: Browser, saved: Path, plan: Any) -> None:
    browser.open(saved)
    (one,) = memory_maps(plan)
    browser.find("figure summary").click()
    rows = browser.all("figure tbody tr")
    assert len(rows) == min(200, len(one.first))
    cells = [cell.text for cell in rows[0].find_elements("css selector", "td")]
    assert int(cells[3]) == one.bytes.max() and cells[8].startswith("test_memory_map.py:")
    assert re.fullmatch(r"\d+ to (\d+|end)", cells[5])
    summaries = [each.text for each in browser.all("summary")]
    assert any(text.startswith("Stored arrays") for text in summaries)


MEDIA = [
    {}, {"prefers_color_scheme": "dark"}, {"forced_colors": "active"}, {"prefers_reduced_motion": "reduce"},
]  # fmt: skip


@pytest.mark.parametrize("media", MEDIA)
@pytest.mark.parametrize("width", [360, 1280])
def test_no_width_scrolls_sideways_and_texts_have_contrast(
    browser: Browser,
    saved: Path,
    width: int,
    media: dict[str, str],
) -> None:
    browser.open(saved, width, 800, **media)
    assert browser.js("return document.documentElement.scrollWidth") <= width
    colours = browser.js("return [1, 2, 3, 4].map((k) => gradloomReport.colour(`--series-${k}`))")
    assert len(set(colours)) == 4, "phases have colours of their own, also where those of texts are forced"
    for selector in ("p", "dt", "dd", "summary", "figcaption", ".map-hint", "button"):
        ratio = browser.js(CONTRAST, browser.find(selector))
        assert ratio >= 4.5, f"{selector}: {ratio:.2f}"


CONTRAST = """
const luminance = (rgb) => {
  const [r, g, b] = rgb.map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const parts = (text) => text.match(/[0-9.]+/g).map(Number);
let behind = arguments[0];
while (parts(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
const [one, two] = [getComputedStyle(arguments[0]).color, getComputedStyle(behind).backgroundColor]
  .map((text) => luminance(parts(text).slice(0, 3)));
return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
"""


def test_a_touch_drags_and_a_pinch_zooms(browser: Browser, saved: Path) -> None:
    browser.open(saved, 390, 800)
    whole = view(browser)
    browser.js("document.querySelector('.map-area').scrollIntoView({block: 'center'})")
    box = box_of(browser)
    x, y = box[0] + box[2] / 2, box[1] + box[3] / 2

    def touch(kind: str, *points: tuple[float, float]) -> None:
        places = [{"x": a, "y": b, "id": k} for k, (a, b) in enumerate(points)]
        browser.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    touch("touchStart", (x - 20, y), (x + 20, y))
    for spread in (30, 45, 60, 80):
        touch("touchMove", (x - spread, y), (x + spread, y))
    touch("touchEnd")
    near = view(browser)
    assert near["x1"] - near["x0"] < 0.6 * (whole["x1"] - whole["x0"])


def test_gradients_of_a_network_that_fit_trains_have_lines(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    net.ensure_init(0)
    loss = ops.mean(net(gl.input("x", (2, 4))))
    plan = gl.compile([loss, *gl.gradients(loss, list(net.parameters()))]).plan
    table = sections(plan_page.programs_of(plan))[0]
    assert {row[8].split(":")[0] for row in table.figures[0].table.rows} == {"test_plan_page.py"}
