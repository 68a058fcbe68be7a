"""Hostile names and texts in every field of every kind of page: nothing runs, and nothing is wider than a phone."""

from __future__ import annotations

import base64
import csv
import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.main import main
from gradloom.graph.leaves import named
from gradloom.llm import LoRA, load
from gradloom.llm.plan import plan
from gradloom.reports.page import Section, page
from gradloom.reports.run_report import Report, report
from tests.llm.random_models import write as write_model
from tests.reports.browser import Browser
from tests.reports.test_memory_map import embedded
from tests.reports.test_quality import fit

SCRIPT = "</script><script>window.hacked = 1</script>"
IMAGE = "<img src=x onerror=window.hacked=1>"
STYLE = "</style><style>body{display:none}</style>"
TURNED = "\u202eabc\u2066def\u200f"
NUL = "a\x00b\x1b[2J\x07"
LONE = "\ud800x\udcff"
LONG = "W" * 3000
QUOTES = "\"'`${window.hacked=1}<!-- ]]> &lt;b&gt; \u2028"
HOSTILE = [SCRIPT, IMAGE, STYLE, TURNED, NUL, LONE, LONG, QUOTES]
READABLE = [one for one in HOSTILE if one != LONE]  # a run.json with other texts is not read
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# A name of the file system: no slash, NUL or lone surrogate, at most 255 bytes
FOLDER = f"{SCRIPT}{IMAGE}{TURNED}".replace("/", "\u2215") + "W" * 60


def check(browser: Browser, path: Path, html: str) -> None:
    """Nothing of a page has run, no figure has failed, and at 390 pixels nothing is cut off or wider than the page."""
    assert not STEERING.search(html)
    path.write_text(html, "utf-8")
    for width, media in ((1280, {}), (390, {"prefers_color_scheme": "dark"})):
        browser.open(path, width=width, **media)
        browser.js("for (const one of document.querySelectorAll('details')) one.open = true")
        for top in browser.all(".map-top"):  # select the largest buffer: its facts are shown
            browser.js("arguments[0].focus()", top)
            browser.js("arguments[0].dispatchEvent(new KeyboardEvent('keydown', {key: 'l', bubbles: true}))", top)
        browser.settle()
        assert browser.js("return window.hacked") is None
        assert browser.js("return document.scripts.length") == html.count("<script")
        assert browser.js("return document.styleSheets.length") == 1
        assert [one.text for one in browser.all("figure .problem")] == []
        assert browser.find("main").is_displayed()
        assert browser.js("return document.documentElement.scrollWidth") <= width, wide(browser, width)
        assert wide(browser, width) == []


def wide(browser: Browser, width: int) -> list[str]:
    """Elements that reach beyond the page, outside of parts that scroll."""
    found: list[str] = browser.js(
        """const found = [];
        for (const one of document.body.querySelectorAll('*')) {
          let inside = one, scrolls = false;
          while ((inside = inside.parentElement)) scrolls ||= getComputedStyle(inside).overflowX !== 'visible';
          if (!scrolls && one.getBoundingClientRect().right > arguments[0] + 1)
            found.push(`${one.tagName} ${one.getAttribute('class')}: ${one.textContent.slice(0, 60)}`);
        }
        return found.slice(0, 5);""",
        width,
    )
    return found


def changed(run: Path, name: str, change: Any) -> None:
    """Change a JSON file of a run, or each of its lines."""
    path = run / name
    if name.endswith("l"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            change(line)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a classification whose columns, classes, target, folder and files are hostile."""
    folder = tmp_path_factory.mktemp("table") / FOLDER
    folder.mkdir()
    names = [one.encode("utf-8", "replace").decode().replace("\x00", "0") for one in HOSTILE]
    with (folder / "t.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*(name[:900] for name in names), f"target {SCRIPT}{TURNED}"])
        for k in range(240):
            cells = [k % 7, k % 5, names[k % 3], k, k % 2, k % 11, names[6][: 900 - k % 3], k % 13]
            out.writerow([*cells, names[k % 8][:900]])
    for name, lr in (("run", "0.01"), ("again", "0.02")):
        words = ["--epochs", "2", "--ensemble", "1", "--lr", lr]
        fit(str(folder / "t.csv"), "--out", str(folder / f"{name}{FOLDER[:60]}"), *words)
    return folder


def runs_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def with_hostile_files(run: Path) -> Path:
    """Each text of its files is hostile: also those that no command writes so."""

    def about(values: dict[str, Any]) -> None:
        values |= {"host": LONG + SCRIPT, "versions": dict.fromkeys(HOSTILE, IMAGE), "went_on": READABLE}
        values |= {"state": "interrupted", "latest": dict.fromkeys(HOSTILE, 1.0)}

    def result(values: dict[str, Any]) -> None:
        values |= {"warnings": HOSTILE, "notes": HOSTILE, "baseline": SCRIPT + LONG, "target": LONG, "task": IMAGE}
        values |= {"ending": LONG + SCRIPT} | {f"{name}.loss": 2.0 for name in HOSTILE}

    def line(values: dict[str, Any]) -> None:
        values |= dict.fromkeys(HOSTILE, 1.0) | {f"{name}.loss": 2.0 for name in HOSTILE}
        values |= {f"{name}.lr": 0.1 for name in HOSTILE}

    changed(run, "run.json", about)
    if (run / "result.json").exists():
        changed(run, "result.json", result)
    changed(run, "metrics.jsonl", line)
    samples = [{"step": k, "prompt": one, "text": other, "ended": other} for k, (one, other) in enumerate(
        zip([*HOSTILE, LONG + SCRIPT], [LONG, *HOSTILE], strict=True))]  # fmt: skip
    (run / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples))
    return run


def test_a_table_with_hostile_names(table: Path, tmp_path: Path, browser: Browser) -> None:
    made = report(runs_of(table)[0])
    kinds = [figure.kind for section in made.sections for figure in section.figures]
    assert {"curves", "matrix", "xy", "bars"} <= set(kinds) and made.left_out == []
    check(browser, tmp_path / "page.html", made.html)


def test_hostile_runs_that_are_compared(table: Path, tmp_path: Path, browser: Browser) -> None:
    made = report(*runs_of(table))
    assert "ROC of the runs" in made.facts["sections"]
    check(browser, tmp_path / "page.html", made.html)


def test_a_run_whose_files_are_hostile(table: Path, tmp_path: Path, browser: Browser) -> None:
    run = with_hostile_files(Path(shutil.copytree(runs_of(table)[0], tmp_path / FOLDER[:80])))
    settings = (run / "settings.toml").read_text()
    (run / "settings.toml").write_text(f"{settings}\n[extra]\n" + "".join(
        f"{json.dumps(name)} = {json.dumps(name)}\n" for name in (SCRIPT, IMAGE, STYLE, LONG, QUOTES)
    ))  # fmt: skip
    made = report(run)
    assert "Sampled texts" in made.facts["sections"]
    check(browser, tmp_path / "page.html", made.html)


def test_a_regression_with_a_hostile_target(tmp_path: Path, browser: Browser) -> None:
    rng = np.random.default_rng(0)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([IMAGE, TURNED, LONG[:900] + SCRIPT])
        for a, b in rng.normal(size=(200, 2)).tolist():
            out.writerow([f"{a:.4f}", f"{b:.4f}", f"{a - b:.4f}"])
    fit(str(tmp_path / "t.csv"), "--out", str(tmp_path / "run"), "--epochs", "2", "--loss", "mse", "--ensemble", "1")
    made = report(tmp_path / "run")
    assert "counts" in [figure.kind for section in made.sections for figure in section.figures]
    check(browser, tmp_path / "page.html", made.html)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuning whose texts, prompts, model and folder are hostile."""
    folder = tmp_path_factory.mktemp("tuned") / FOLDER
    folder.mkdir()
    model = write_model(folder, "llama", context=512)
    texts = [*HOSTILE[:4], "a\x1bb\x07", QUOTES, LONG[:200], "plain"]
    rows = [{"prompt": texts[k % 8], "completion": texts[(k + k // 8) % 8]} for k in range(64)]
    pairs = [{"prompt": texts[k % 8], "chosen": texts[(k + 1) % 8], "rejected": texts[(k + 2) % 8]} for k in range(64)]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    for data, out, more in (("t", "a", ()), ("p", "b", ("--objective", "dpo"))):
        words = ["--steps", "2", "--context", "512", "--val-split", "0.2", "--sample-prompt", SCRIPT + TURNED]
        target = str(folder / f"{out}{FOLDER[:40]}.gguf")
        assert (
            main(["finetune", str(model), str(folder / f"{data}.jsonl"), "--out", target, *words, *more, "--quiet"])
            == 0
        )
    return folder


def test_fine_tunings_with_hostile_texts(tuned: Path, tmp_path: Path, browser: Browser) -> None:
    first, second = runs_of(tuned)
    made = report(first)
    kinds = {figure.kind for section in made.sections for figure in section.figures}
    assert {"tokens", "memory_map", "curves"} <= kinds and made.left_out == [], made.left_out
    check(browser, tmp_path / "page.html", made.html)
    made = report(with_hostile_files(Path(shutil.copytree(second, tmp_path / "copy"))), first)
    kinds = {figure.kind for section in made.sections for figure in section.figures}
    assert "counts" in kinds and made.left_out == [], made.left_out
    check(browser, tmp_path / "page.html", made.html)


def test_memory_maps_with_hostile_names(tuned: Path, tmp_path: Path, browser: Browser) -> None:
    value = gl.input(SCRIPT + TURNED, (8, 4))
    weights = []
    for name in (IMAGE, LONG, NUL, LONE, STYLE):
        weights.append(gl.parameter(np.ones((4, 4), np.float32), name))
        value = named(gl.ops.relu(gl.ops.matmul(value, weights[-1])), name)
    loss = gl.ops.sum(value)
    run = gl.compile([loss, *gl.gradients(loss, weights)])
    run.plan.save(tmp_path / "plan.html")
    (figure,) = embedded((tmp_path / "plan.html").read_text())
    shown = json.loads(zlib.decompress(base64.b64decode(figure["arrays"]["names"]["data"])))
    assert any(IMAGE in name for name in shown) and any(STYLE in name for name in shown)
    check(browser, tmp_path / "page.html", (tmp_path / "plan.html").read_text())
    plan(load(tuned / "llama.gguf"), LoRA(rank=2), context=24, threads=1).save(tmp_path / "plan.html")
    check(browser, tmp_path / "page.html", (tmp_path / "plan.html").read_text())


def test_a_notebook_shows_a_hostile_report_in_a_frame(table: Path, tmp_path: Path, browser: Browser) -> None:
    made: Report = report(runs_of(table)[0])
    outer = page("notebook", [Section("cell", html=made._repr_html_())])
    outer = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", outer)
    (tmp_path / "page.html").write_text(outer, "utf-8")
    browser.open(tmp_path / "page.html")
    assert browser.js("return window.hacked") is None and len(browser.all("iframe")) == 1
    assert browser.all("main img") == []
