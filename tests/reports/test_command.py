"""gradloom plan --html, and the same page from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.main import main
from gradloom.llm import LoRA, load
from gradloom.llm.finetune import Run
from gradloom.llm.plan import plan
from tests.cli.command import run
from tests.llm.random_models import rows_of, write
from tests.reports.browser import Browser
from tests.reports.test_memory_map import embedded


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model"), "llama")


def trained(folder: Path) -> None:
    """A run of a Python program."""
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    gl.fit(gl.nn.Linear(3, 1), (x, x[:, :1]), loss="mse", epochs=1, run=folder, progress=False)


def titles(path: Path) -> list[str]:
    return [part.split("</h2>")[0].split(">")[-1] for part in path.read_text().split("<h2 ")[1:]]


def test_the_command_writes_a_map_of_each_program(
    capsys: pytest.CaptureFixture[str], browser: Browser, model: Path, tmp_path: Path
) -> None:
    page = tmp_path / "plan.html"
    rows = ("--batch-size", 256, "--micro-batch-size", 256)  # several huge pages: with one the curve is a point
    code, out, err = run(capsys, "plan", model, "--context", 24, "--threads", 1, *rows, "--html", page)
    assert code == 0, err
    assert "activations" in out
    names = titles(page)
    planned = plan(load(model), None, context=24, threads=1, batch_size=256, micro_batch_size=256)
    assert names[0] == "Memory" and len(names) == 1 + len(planned.programs) == 1 + len(embedded(page.read_text()))
    assert names[1].startswith("Training step: rows i32[") and names[-1].startswith("Forward pass")
    browser.open(page)
    assert len(browser.all(".map-area")) == len(planned.programs)
    facts = browser.find(".facts").text
    assert "optimiser state" in facts and "time of a step" in facts
    points = browser.all("svg.curve circle")
    assert len(points) >= 2 and browser.find("svg.curve").is_displayed()
    assert "programs" in browser.find("header").text


def test_no_input_is_replaced(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    code, _, err = run(capsys, "plan", model, "--context", 24, "--html", model)
    assert code == 2 and err.startswith("gradloom: ") and model.read_bytes() == before
    code, _, err = run(capsys, "plan", model, "--context", 24, "--html", tmp_path / "missing" / "a.html")
    assert code == 2 and "missing" in err and list(tmp_path.iterdir()) == []


def test_a_page_is_not_written_under_the_name_of_another_format(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    line = "p.png: ends in .png; a page is HTML: need a name that ends in .html"
    trained(tmp_path / "a")
    for command in (("report", tmp_path / "a", "-o"), ("plan", model, "--context", 24, "--html")):
        code, _, err = run(capsys, *command, tmp_path / "p.png")
        assert code == 2 and line in err, err
    with pytest.raises(gl.FileError, match=line):
        gl.compile(gl.parameter(np.zeros(3, "f4"), "w") * 2.0).plan.save(tmp_path / "p.png")
    assert not (tmp_path / "p.png").exists()


def test_a_report_goes_to_any_output(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trained(tmp_path / "a")
    assert main(["report", str(tmp_path / "a"), "-o", "/dev/stdout"]) == 0
    assert capfd.readouterr().out.startswith("<!doctype html>")
    (tmp_path / "file").touch()
    assert main(["report", str(tmp_path / "a"), "-o", str(tmp_path / "file" / "a.html")]) == 2
    assert f"{tmp_path / 'file'} is a file; need a folder there" in capfd.readouterr().err
    assert main(["profile", str(tmp_path / "a")]) == 2
    assert "is a run of a Python program, without a settings.toml" in capfd.readouterr().err


def test_plan_and_run_have_the_same_maps(model: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"context": 24, "batch_size": 4, "micro_batch_size": 2, "threads": 1}
    planned = plan(load(model), LoRA(rank=4), val_split=0, **settings)
    planned.save(tmp_path / "plan.html")
    made = Run(load(model), rows_of(8), LoRA(rank=4), val_split=0.0, **settings | {"context": None})
    made.prepare()
    made.memory().save(tmp_path / "run.html")
    first, second = (embedded((tmp_path / name).read_text()) for name in ("plan.html", "run.html"))
    arrays = [
        [{k: d["arrays"][k]["data"] for k in ("offset", "bytes", "first", "life")} for d in each]
        for each in (first, second)
    ]
    assert arrays[1] and all(one in arrays[0] for one in arrays[1])


def test_reports_hold_no_plans(model: Path) -> None:
    found = plan(load(model), None, context=24, threads=1)
    assert "programs" not in repr(found) and not any(name.startswith("programs") for name in found.report())
    assert found._repr_html_().count("<tr>") == len(found.lines())
