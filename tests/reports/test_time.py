"""Time in reports: rooflines of profiles, in a page of their own and in the report of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.reports.page import page
from gradloom.reports.run_report import report
from gradloom.reports.sections import figures_of
from gradloom.reports.time_section import roofline, time_sections
from gradloom.run.cost import Rates
from gradloom.run.profile import Profile, ProfileRow
from tests.cli.command import run as run_command
from tests.reports.browser import Browser
from tests.reports.test_plan_page import CONTRAST

RATES = Rates(2, 1e11, 1e11, 1e11, 1e10, 1 << 20)
HOSTILE = "a</script><script>window.hacked=1</script>\u202e"


def row(name: str, seconds: float, flops: float, moved: float, line: str = "a.py:1") -> ProfileRow:
    return ProfileRow(name, seconds, flops, moved, max(flops / 1e11, moved / 1e10), name, line, "m", times=(seconds,))


def profile(*rows: ProfileRow, rates: Rates | None = RATES) -> Profile:
    return Profile(rows, (sum(one.seconds for one in rows) * 1.1,), "cpu (avx2, 2 threads)", rates)


ROWS = (
    row("matmul", 4e-3, 2e8, 1e6), row("gelu", 2e-3, 1e6, 8e6, "a.py:2"), row("copy", 1e-3, 0.0, 4e6, "a.py:2"),
)  # fmt: skip


def test_points_are_flops_per_byte_and_speed() -> None:
    found = roofline(profile(*ROWS), "op")
    assert found.arrays["names"] == ["matmul", "gelu"]  # a copy has no arithmetic
    np.testing.assert_allclose(found.arrays["intensity"], [200.0, 0.125])  # type: ignore[arg-type]
    np.testing.assert_allclose(found.arrays["speed"], [50.0, 0.5])  # type: ignore[arg-type]
    np.testing.assert_allclose(found.arrays["share"], [4 / 7, 2 / 7], rtol=1e-6)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.arrays["limit"], [0.5, 0.4], rtol=1e-6)  # type: ignore[arg-type]
    assert found.table.rows[0] == ("matmul", 1, "4.0000", "57.1", "200", "50", "0.25", "50")
    assert [one[0] for one in found.table.rows] == ["matmul", "gelu", "copy"]
    assert "1 with almost no arithmetic are in the table alone" in found.label
    assert [(roof["name"], roof["rate"]) for roof in found.facts["roofs"]] == [
        ("f32 products", 100.0), ("cache", 100.0), ("memory", 10.0)
    ]  # fmt: skip


def test_lines_are_a_figure_of_their_own() -> None:
    (section,) = time_sections({"step": profile(*ROWS)})
    assert [figure.title for figure in section.figures] == [
        "Speed and intensity by op", "Speed and intensity by line of code"
    ]  # fmt: skip
    assert [one[0] for one in section.figures[1].table.rows] == ["a.py:1", "a.py:2"]
    assert dict(section.numbers)["memory here"] == "10 GB/s" and section.title == "Time"
    (without,) = time_sections({"step": profile(*ROWS, rates=None)})
    assert without.figures[0].facts["roofs"] == [] and "memory here" not in dict(without.numbers)


def test_a_profile_saves_its_page(tmp_path: Path) -> None:
    x = gl.input("x", (8, 16))
    h = ops.gelu(x @ gl.parameter(np.ones((16, 4), "f4"), "w"))
    run = gl.compile(ops.sum(h))
    made = run.profile({"x": np.ones((8, 16), "f4")}, steps=2)
    made.save(tmp_path / "p.html")
    made.save(tmp_path / "p.json")
    text = (tmp_path / "p.html").read_text()
    assert "Time of a step" in text and "test_time.py:" in text
    assert json.loads((tmp_path / "p.json").read_text())["traceEvents"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    rng = np.random.default_rng(0)
    np.savez(folder / "d.npz", x=rng.standard_normal((90, 5), np.float32), y=rng.integers(0, 3, 90))
    from gradloom.cli.main import main

    assert main(["fit", str(folder / "d.npz"), "--out", str(folder / "run"), "--epochs", "1", "--quiet"]) == 0
    return folder


@pytest.mark.slow
def test_a_report_times_a_step_where_that_is_asked(
    fitted: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in (fitted / "run").rglob("*") if path.is_file()}
    assert "Time" not in report(fitted / "run").facts["sections"]
    code, out, err = run_command(capsys, "report", fitted / "run", "--profile", "-o", tmp_path / "r.html", "--json")
    assert code == 0, err
    facts = json.loads(out.splitlines()[-1])
    assert "Time" in facts["sections"] and facts["left_out"] == []
    assert {path: path.read_bytes() for path in (fitted / "run").rglob("*") if path.is_file()} == before
    made = gl.report(fitted / "run", profile=True)
    (figure,) = [one for one in figures_of(made.sections) if one.kind == "roofline"]
    assert "adamw" in [one[0] for one in figure.table.rows]
    code, out, err = run_command(capsys, "profile", fitted / "run", "--html", tmp_path / "p.html", "--json")
    assert code == 0 and "with the update" in (tmp_path / "p.html").read_text()
    assert json.loads(out.splitlines()[-1])["html"] == str(tmp_path / "p.html")


def test_the_time_of_a_run_of_python_is_left_out(tmp_path: Path) -> None:
    net, x = nn.Linear(3, 1), np.ones((8, 3), "f4")
    gl.fit(net, (x, x[:, :1]), loss="mse", epochs=1, progress=False, run=tmp_path / "run")
    made = gl.report(tmp_path / "run", profile=True)
    assert made.left_out == [
        "time of run: left out: the run has no settings.toml; requires a run of gradloom fit or finetune"
    ]


# ---- in a browser ----------------------------------------------------------------------------------------------------


def saved(tmp_path: Path, one: Any) -> Path:
    (tmp_path / "page.html").write_text(page("t", time_sections({"step": one})))
    return tmp_path / "page.html"


def test_points_by_mouse_and_keyboard(tmp_path: Path, browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(saved(tmp_path, profile(*ROWS)))
    plot = browser.find("figure[data-kind=roofline] svg")
    readout = browser.all("figure[data-kind=roofline]")[0].find_element("css selector", "[role=status]")
    plot.send_keys(Keys.ARROW_RIGHT)
    assert readout.text == "matmul: 57.1 % of the time, 200 FLOP/byte, 50 GFLOP/s, 0.25 GB/s, 50 % of the limit"
    plot.send_keys(Keys.ARROW_RIGHT)
    assert readout.text.startswith("gelu: 28.6 %")
    plot.send_keys(Keys.HOME, Keys.ESCAPE)
    assert readout.text == ""
    x, y = browser.js(
        "const dot = document.querySelectorAll('circle.op')[1].getBoundingClientRect();"
        "return [dot.left + dot.width / 2, dot.top + dot.height / 2]"
    )
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
    browser.settle()
    assert readout.text.startswith("gelu: ")
    points = browser.js("return gradloomReport.figures[0].points()")
    assert points[0][0] > points[1][0] and points[0][1] < points[1][1]  # more intense and faster
    assert len(browser.all("figure[data-kind=roofline]:first-of-type .roof")) == 3


@pytest.mark.parametrize("media", [{}, {"prefers_color_scheme": "dark"}, {"forced_colors": "active"}])
@pytest.mark.parametrize("width", [360, 1280])
def test_rooflines_adapt(tmp_path: Path, browser: Browser, media: dict[str, str], width: int) -> None:
    browser.open(saved(tmp_path, profile(*ROWS)), width, 800, **media)
    assert browser.js("return document.documentElement.scrollWidth") <= width and not browser.all("figure .problem")
    for selector in (".readout", "figcaption", "summary"):
        assert browser.js(CONTRAST, browser.find(selector)) >= 4.5
    point, paper = browser.js(
        "return [getComputedStyle(document.querySelector('circle.op')).fill, gradloomReport.colour('--surface')]"
    )
    assert point != paper


def test_hostile_names_are_texts(tmp_path: Path, browser: Browser) -> None:
    hostile = [row(f"{HOSTILE}{k}", 1e-3, 1e6, 1e6, f"{HOSTILE}.py:{k}") for k in range(3)]
    path = saved(tmp_path, profile(*hostile))
    assert "\u202e" not in path.read_text() and "<script>window" not in path.read_text()
    browser.open(path)
    browser.find("figure svg").send_keys("\ue014")
    assert browser.js("return window.hacked") is None and "</script>" in browser.find("figure [role=status]").text


def test_a_profile_without_points_and_limits_is_drawn(tmp_path: Path, browser: Browser) -> None:
    browser.open(saved(tmp_path, profile(row("copy", 1e-3, 0.0, 10.0), rates=None)))
    browser.find("figure svg").send_keys("\ue014")
    assert not browser.all("figure .problem") and not browser.all("circle.op")
