"""Several runs on one page: three of MNIST in a browser, and ROC curves of the same held-out rows in one drawing."""

from __future__ import annotations

import gzip
import json
import struct
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.data.idx import read_idx
from gradloom.files.toml_file import parse_toml
from gradloom.reports.compared import Measured, compared_roc
from gradloom.reports.held_out import HeldOut
from gradloom.reports.quality import mean_curve, quality, roc_curve
from gradloom.reports.run_report import report
from gradloom.reports.sections import figures_of
from gradloom.reports.summary import Score
from gradloom.tables.scores import class_probabilities
from tests.real_data import need
from tests.reports.browser import Browser
from tests.reports.tables_of import Numbers
from tests.reports.test_quality import fit, write_churn

RUNS = {"small": ("--hidden", "8"), "large": ("--hidden", "32"), "fast": ("--hidden", "8", "--lr", "0.01")}


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs on 1500 images of MNIST, with 300 for the test."""
    folder, source = tmp_path_factory.mktemp("mnist"), need("mnist")
    data = folder / "data"
    data.mkdir()
    for part, count in (("train", 1500), ("t10k", 300)):
        for name in (f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"):
            array = read_idx(source / name)[:count]
            head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (data / name).write_bytes(gzip.compress(head + array.tobytes(), 1))
    for name, words in RUNS.items():
        fit(str(data), "--out", str(folder / name), "--epochs", "2", "--batch-size", "100", *words)
    return folder


@pytest.mark.slow
def test_three_runs_of_mnist_are_compared_on_one_page(mnist: Path, tmp_path: Path, browser: Browser) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    made = report(*(mnist / name for name in RUNS))
    made.save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.all("figure .problem") == [] and made.left_out == []
    page = Numbers((tmp_path / "page.html").read_text())
    results = {name: json.loads((mnist / name / "result.json").read_text()) for name in RUNS}

    first = next(table for table in page.tables if table.caption == "Results of the runs")
    assert first.head[1:] == list(RUNS)
    (shown,) = [row[1:] for row in first.rows if row[0] == "test accuracy"]
    assert shown == [str(Score(one["test_accuracy"], one["test_accuracy_unc"])) for one in results.values()]
    differing = next(table for table in page.tables if table.caption == "Settings that differ")
    settings = [parse_toml(mnist / name / "settings.toml") for name in RUNS]
    assert {row[0]: row[1:] for row in differing.rows} == {
        "hidden": ["[8]", "[32]", "[8]"],
        "lr": [str(one["lr"]) for one in settings],
    }

    figures = figures_of(made.sections)
    drawn = browser.all("figure")
    assert len(drawn) == len(figures)
    kinds = Counter(one.kind for one in figures)
    maps = kinds.pop("memory_map")  # of a training step, one of the rest, and validation, for each run
    assert maps == 9 and sum(kinds.values()) == kinds["curves"] + 1 + 3 * 3
    for element, figure in zip(drawn, figures, strict=True):
        assert element.find_element("css selector", "figcaption").text == figure.title
        kind = {"curves": "canvas", "matrix": "table.matrix", "memory_map": "canvas"}.get(figure.kind, "svg.plot")
        assert element.find_element("css selector", kind).is_displayed()
        assert len(element.find_elements("css selector", "details tbody tr")) == len(figure.table.rows) > 0
    loss = page.of("loss")
    assert set(loss.column("curve")) == {f"{name}: {part}" for name in RUNS for part in ("training", "validation")}
    for name in RUNS:
        lines = [json.loads(line) for line in (mnist / name / "metrics.jsonl").read_text().splitlines()]
        want = [f"{line['val_loss']:.7g}" for line in lines if line["kind"] == "evaluation"]
        assert [row[2] for row in loss.rows if row[1] == f"{name}: validation"] == want

    roc = page.of("ROC of the compared runs")
    assert list(dict.fromkeys(roc.column("run"))) == list(RUNS)
    images, labels = (read_idx(mnist / f"data/t10k-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    for name in RUNS:
        probability = gl.load(mnist / name).predict_proba(images)
        area = metrics.roc_auc_score(labels, probability, multi_class="ovr")
        assert {row[4] for row in roc.rows if row[0] == name} == {f"{area:.4f}"}
        assert results[name]["test_roc_auc"] == pytest.approx(area)
    lines = browser.js(
        "return [...document.querySelectorAll('figure')].filter(f => f.textContent.startsWith('ROC of the compared'))"
        ".map(f => [f.querySelectorAll('polyline').length, [...f.querySelectorAll('li')].map(e => e.textContent)])"
    )
    assert lines == [[3, [f"{name} (area {results[name]['test_roc_auc']:.4f})" for name in RUNS]]]


def test_the_mean_curve_is_that_of_scikit_learn(mnist: Path) -> None:
    """The mean of interpolated curves as in scikit-learn's example of macro-averaged ROC curves, away from steps."""
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 4, 500), rng.random((500, 4))
    scores[np.arange(500), labels] += 0.3
    scores /= scores.sum(axis=1, keepdims=True)
    made = mean_curve([roc_curve(labels == k, scores[:, k]) for k in range(4)], "all")
    assert made.area == pytest.approx(metrics.roc_auc_score(labels, scores, multi_class="ovr"), abs=1e-12)
    grid = (np.unique(made.false_positive)[1:] + np.unique(made.false_positive)[:-1]) / 2
    theirs = np.mean(
        [np.interp(grid, *metrics.roc_curve(labels == k, scores[:, k])[:2]) for k in range(4)], axis=0
    )  # fmt: skip
    assert np.allclose(np.interp(grid, made.false_positive, made.true_positive), theirs, atol=1e-12)
    assert (np.diff(made.true_positive) >= 0).all() and made.true_positive[[0, -1]].tolist() == [
        np.mean([roc_curve(labels == k, scores[:, k]).true_positive[0] for k in range(4)]), 1.0
    ]  # fmt: skip
    without = mean_curve([roc_curve(np.array([True, True]), np.array([0.1, 0.2]))], "none")
    assert np.isnan(without.area)


def of_churn(folder: Path, *words: str) -> Path:
    fit(
        str(folder.parent / "churn.csv"),
        "--out",
        str(folder),
        "--epochs",
        "3",
        "--ensemble",
        "1",
        "--folds",
        "0",
        *words,
    )
    return folder


@pytest.mark.slow
def test_runs_with_other_held_out_rows_are_not_in_the_drawing(tmp_path: Path) -> None:
    write_churn(tmp_path / "churn.csv", rows=400)
    runs = [of_churn(tmp_path / name, *more) for name, more in (
        ("one", ()), ("two", ("--hidden", "4")), ("three", ("--seed", "5"))
    )]  # fmt: skip
    made = report(*runs)
    page = Numbers(made.html)
    roc = page.of("ROC of the compared runs")
    assert set(roc.column("run")) == {"one", "two"}
    for name in ("one", "two"):
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert {row[4] for row in roc.rows if row[0] == name} == {f"{result['test_roc_auc']:.4f}"}
        own = [row[1:] for row in roc.rows if row[0] == name]
        assert own[0][:3] == ["above all", "0", "0"] and own[-1][1:3] == ["1", "1"]
    section = next(one for one in made.sections if one.title == "ROC of the runs")
    assert section.text[0].startswith("Measured on the same 80 test rows of churn.csv: one, two. Positive is 'yes'.")
    assert section.text[1] == "Not in the drawing, because no other run has the same held-out rows: three."
    assert "ROC of the runs" not in [one.title for one in report(runs[0], runs[2]).sections]


@pytest.mark.parametrize(
    "change", ["digest", "part", "rows", "targets", "names", "target"], ids=lambda name: f"another {name}"
)
def test_only_equal_rows_and_answers_are_compared(change: str) -> None:
    rng = np.random.default_rng(0)

    def measured(name: str, **more: Any) -> Measured:
        given = {
            "digest": "sha256:a", "part": "test", "rows": np.arange(20), "targets": np.arange(20) % 2,
            "names": ["no", "yes"], "target": "y",
        } | more  # fmt: skip
        rows = HeldOut(
            "a.csv", given["part"], given["rows"], np.zeros((20, 1), np.float32), given["targets"],
            rng.normal(size=(20, 2)).astype(np.float32), given["digest"],
        )  # fmt: skip
        model = SimpleNamespace(
            task="classification",
            classes=given["names"],
            about={},
            probabilities=lambda outputs: class_probabilities(outputs, "cross_entropy"),
        )
        return Measured(name, given["target"], rows, quality(model, rows))  # type: ignore[arg-type]

    other = {
        "digest": "sha256:b", "part": "validation", "rows": np.arange(20) + 1, "targets": (np.arange(20) + 1) % 2,
        "names": ["yes", "no"], "target": "z",
    }[change]  # fmt: skip
    assert compared_roc([measured("a"), measured("b", **{change: other})]) == []
    (section,) = compared_roc([measured("a"), measured("b")])
    assert len(section.figures) == 1 and len(section.text) == 1
