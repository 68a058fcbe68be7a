"""Rows that a report measures a model on: what is known of them, rows that are left out, cells, JSON, refusals."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.main import main
from gradloom.reports.quality import calibration_curve
from gradloom.reports.run_report import Report, report
from gradloom.reports.sections import figures_of
from gradloom.tables.scores import classification_scores, regression_scores
from tests.cli.command import run as run_command
from tests.reports.test_quality import fit, write_churn


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("churn")
    write_churn(folder / "churn.csv", rows=500)
    fit(str(folder / "churn.csv"), "--out", str(folder / "run"), "--epochs", "3", "--ensemble", "1", "--folds", "0")
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file without header."""
    folder = tmp_path_factory.mktemp("plain")
    rng = random.Random(0)
    rows = [[round(rng.gauss(k % 3, 0.6), 2), ("a", "b", "c")[k % 3], round(rng.random(), 2)] for k in range(200)]
    (folder / "plain.csv").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    words = ["--target", "2", "--epochs", "3", "--ensemble", "1", "--folds", "0"]
    fit(str(folder / "plain.csv"), "--out", str(folder / "run"), *words)
    return folder


def section(made: Report, title: str) -> str:
    """The texts and the HTML of a section."""
    found = next(one for one in made.sections if one.title == title)
    return " ".join([*found.text, found.html])


def table_of(html: str) -> list[dict[str, str]]:
    lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in re.findall(r"<tr>(.*?)</tr>", html)]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]


# ---- rows of another file --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_rows_in_another_file_are_stated(
    churn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As predict states them: of a copy, and of its last rows."""
    text = (churn / "churn.csv").read_text()
    head, *rows = text.splitlines()
    (tmp_path / "copy.csv").write_text(text + "\n")
    (tmp_path / "part.csv").write_text("\n".join([head, *rows[-100:]]) + "\n")
    for name in ("copy.csv", "part.csv"):
        capsys.readouterr()
        assert main(["predict", str(churn / "run"), str(tmp_path / name), "--json", "--quiet"]) == 0
        (warning,) = json.loads(capsys.readouterr().out)["warnings"]
        assert "training rows that were compared are in this file" in warning
        made = report(churn / "run", data=tmp_path / name)
        shown = section(made, "Model quality")
        assert warning in shown and "not read" not in shown and "held out" not in shown
        assert made.warnings == [f"model quality of run: {warning}"]
        out = str(tmp_path / "page.html")
        _, _, err = run_command(capsys, "report", churn / "run", "--data", tmp_path / name, "-o", out)
        assert f"warning: model quality of run: {warning}\n" in err


def test_rows_that_the_training_has_not_read_are_compared(churn: Path, tmp_path: Path) -> None:
    write_churn(tmp_path / "new.csv", rows=50, seed=9)
    made = report(churn / "run", data=tmp_path / "new.csv")
    result = json.loads((churn / "run/result.json").read_text())
    assert f"None of the {result['rows_train']} training rows is among them." in section(made, "Model quality")
    assert made.warnings == []


@pytest.mark.slow
def test_rows_that_equal_one_another_are_not_claimed_to_be_new(plain: Path, tmp_path: Path) -> None:
    lines = [f"{k % 3},{'xyz'[k % 3]}" for k in range(90)]
    (tmp_path / "same.csv").write_text("\n".join(["a,kind", *lines]) + "\n")
    fit(str(tmp_path / "same.csv"), "--out", str(tmp_path / "run"), "--epochs", "1", "--ensemble", "1")
    (tmp_path / "new.csv").write_text("a,kind\n1,y\n2,z\n")
    made = report(tmp_path / "run", data=tmp_path / "new.csv")
    assert "Training rows may be among them: too many" in section(made, "Model quality")


@pytest.mark.slow
def test_left_out_rows_and_odd_cells_are_stated(churn: Path, tmp_path: Path) -> None:
    text = ["age,plan,calls,city </script>\u202e,noise,churn", "30,a,3,Bonn,0.5,no", "30,z,3,Bonn,0.5,yes"]
    text += ["30,a,,Bonn,0.5,no", "30,a,3,Bonn,0.5,maybe", "30,a,3,Bonn,0.5,"]
    (tmp_path / "odd.csv").write_text("\n".join(text) + "\n")
    made = report(churn / "run", data=tmp_path / "odd.csv")
    shown = section(made, "Model quality")
    assert "Measured on 3 rows of odd.csv" in shown
    assert "2 of 5 rows count in no score" in shown and "maybe" in shown
    assert "plan: 1 row with a text unknown from training: z" in shown and "calls: 1 empty cell" in shown
    assert made.warnings[0].startswith("model quality of run: 2 of 5 rows count in no score: no 'churn' that")


def test_one_row_has_no_undefined_numbers(churn: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("age,plan,calls,city </script>\u202e,noise,churn\n30,a,3,Bonn,0.5,no\n")
    made = report(churn / "run", data=tmp_path / "one.csv")
    quality = next(one for one in made.sections if one.title == "Model quality")
    assert "nan" not in dict(quality.numbers).values() and "roc_auc" not in dict(quality.numbers)
    shown = section(made, "Model quality") + section(made, "Worst rows")
    assert "Measured on 1 row of one.csv" in shown and "is not defined: all rows are of one class" in shown
    assert "1 rows" not in made.html and "1 parts" not in made.html and "The row with the least" in shown


def test_a_regression_of_one_row_has_no_r2(tmp_path: Path) -> None:
    lines = [f"{k},{2 * k + k % 5 / 10}" for k in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    fit(str(tmp_path / "t.csv"), "--out", str(tmp_path / "run"), "--epochs", "2", "--ensemble", "1", "--folds", "0")
    (tmp_path / "one.csv").write_text("x,y\n3,6.5\n")
    made = report(tmp_path / "run", data=tmp_path / "one.csv")
    quality = next(one for one in made.sections if one.title == "Model quality")
    assert [name for name, _ in quality.numbers] == ["rmse", "mae"] and "R2 is not defined" in " ".join(quality.text)


# ---- worst rows ------------------------------------------------------------------------------------------------------


def test_worst_rows_of_a_file_without_header_have_lines_and_cells(plain: Path) -> None:
    html = section(report(plain / "run"), "Worst rows")
    lines = (plain / "plain.csv").read_text().splitlines()
    rows = table_of(html.partition("<details")[0])
    assert len(rows) == 20 and "Lines of the file are counted from 1." in html
    for row in rows:
        cells = lines[int(row["line"]) - 1].split(",")
        assert [row["column 1"], row["true"], row["column 3"]] == cells


def test_lines_count_the_header_empty_lines_and_lines_within_cells(churn: Path, tmp_path: Path) -> None:
    write_churn(tmp_path / "new.csv", rows=30, seed=5)
    head, *rows = (tmp_path / "new.csv").read_text().splitlines()
    rows[3] = rows[3].replace("Bonn", '"Bonn\nam Rhein"').replace("Ulm\u202e", '"Ulm\nDonau"')
    rows[3] = rows[3].replace("K\u00f6ln</script><b>", '"K\u00f6ln\nDeutz"')
    (tmp_path / "new.csv").write_text("\n".join([head, "", *rows]) + "\n")
    made = report(churn / "run", data=tmp_path / "new.csv")
    html = section(made, "Worst rows")
    assert "counted from 1, its header among them" in html
    lines = (tmp_path / "new.csv").read_text().splitlines()
    for row in table_of(html.partition("<details")[0]):
        assert lines[int(row["line"]) - 1].endswith(f",{row['noise']},{row['true']}")
    for row in made.facts["runs"][0]["quality"]["worst"]:
        assert rows[row["row"] - 1].endswith(f",{row['cells']['noise']},{row['true']}")


# ---- one definition --------------------------------------------------------------------------------------------------


def test_uncertainties_do_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 60, p=[0.8, 0.15, 0.05])
    shares = rng.dirichlet(np.ones(3), 60)
    order = rng.permutation(60)
    weights = rng.random(60)
    for weight in (None, weights):
        one = classification_scores(shares, labels, weight)
        other = classification_scores(shares[order], labels[order], None if weight is None else weight[order])
        assert one.keys() == other.keys() and all(other[k] == pytest.approx(v, rel=1e-9) for k, v in one.items())
    true, predicted = rng.normal(size=(60, 2)), rng.normal(size=(60, 2))
    one, other = regression_scores(predicted, true), regression_scores(predicted[order], true[order])
    assert all(other[k] == pytest.approx(v, rel=1e-9) for k, v in one.items()) and one["r2_unc"] > 0


@pytest.mark.parametrize("name", ["churn", "plain"])
def test_a_number_has_one_uncertainty_on_a_page(name: str, request: pytest.FixtureRequest) -> None:
    made = report(request.getfixturevalue(name) / "run")
    result = json.loads((request.getfixturevalue(name) / "run/result.json").read_text())
    found = made.facts["runs"][0]["quality"]["scores"]
    for key in ("balanced_accuracy", "f1_macro", "roc_auc", "log_loss", "brier", "accuracy"):
        assert found[key] == pytest.approx(result[f"test_{key}"], rel=1e-5)
        assert found[f"{key}_unc"] == pytest.approx(result[f"test_{key}_unc"], rel=1e-3), key
    numbers = dict(made.sections[0].numbers)
    quality = dict(next(one for one in made.sections if one.title == "Model quality").numbers)
    for key in ("accuracy", "roc_auc", "log_loss"):
        assert numbers[f"test {key}"] == quality[key]
    assert "test loss" not in numbers  # of the same rows as log_loss, with the scatter between batches
    scores = {(one["part"], one["quantity"]) for one in made.facts["runs"][0]["scores"]}
    assert ("test", "loss") not in scores and {("training", "loss"), ("test", "log_loss")} <= scores


def test_a_part_with_one_row_has_an_uncertainty() -> None:
    found = calibration_curve(np.array([True]), np.array([0.95]))
    assert found.low == pytest.approx([0.5]) and found.high == pytest.approx([1.0])


# ---- JSON and figures ------------------------------------------------------------------------------------------------


def test_json_has_what_the_sections_show(churn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "report", churn / "run", "-o", tmp_path / "page.html", "--json")
    assert code == 0
    quality = json.loads(out)["runs"][0]["quality"]
    result = json.loads((churn / "run/result.json").read_text())
    assert quality["confusion"] == result["test_confusion"] and quality["classes"] == ["no", "yes"]
    assert (quality["part"], quality["rows"]) == ("test", result["rows_test"])
    assert {one["column"] for one in quality["importance"][:2]} == {"plan", "calls"}
    assert all(one["error"] > 0 and one["deviation"] >= 0 for one in quality["importance"][:2])
    assert len(quality["worst"]) == 20
    worst = quality["worst"][0]
    assert worst["line"] == worst["row"] + 1 and worst["true"] != worst["predicted"] and worst["probability"] < 0.5


def test_the_classes_of_the_roc_chart_are_named(tmp_path: Path) -> None:
    rng = random.Random(0)
    lines = [f"{k % 12 + rng.gauss(0, 0.3):.3f},k{k % 12:02d}" for k in range(240)]
    (tmp_path / "t.csv").write_text("\n".join(["x,kind", *lines]) + "\n")
    fit(str(tmp_path / "t.csv"), "--out", str(tmp_path / "run"), "--epochs", "2", "--ensemble", "1", "--folds", "0")
    shown = section(report(tmp_path / "run"), "Model quality")
    named = re.search(
        r"The ROC chart shows the 10 classes with the most rows of 12, each against the others: (.*?)\.", shown
    )
    assert named is not None and len(re.findall(r"'k\d\d'", named[1])) == 10


def test_pictures_grey_the_bars_that_the_page_greys(churn: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = report(churn / "run")
    bars = next(figure for figure in figures_of(made.sections) if figure.kind == "bars")
    weak = np.abs(bars.arrays["value"]) <= 2 * np.asarray(bars.arrays["error"])
    assert weak.any() and not weak.all()
    made.save_figures(tmp_path, "svg")
    (path,) = tmp_path.glob("*importance*.svg")
    assert path.read_text().count("fill: #d3d3d3") == weak.sum()  # lightgrey


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_refused(churn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    code, _, err = run_command(capsys, "report", churn / "run", "--data", tmp_path / "nope.csv", "-o", page)
    assert code == 2 and err.count("\n") == 1 and "nope.csv: cannot be read: no such file" in err
    assert not page.exists()


def test_data_without_a_model_is_refused(churn: Path, tmp_path: Path) -> None:
    net = gl.nn.Linear(2, 1)
    rows = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)
    history = gl.fit(net, rows, epochs=1, loss="mse", progress=False)
    with pytest.raises(gl.SettingError, match="data requires a model of a table or of images"):
        report(history, data=churn / "churn.csv")
    made = report(history, churn / "run", data=churn / "churn.csv")
    assert made.left_out == ["model quality of run 1: left out: data requires a model of a table or of images"]


def test_a_model_in_memory_needs_its_data(churn: Path) -> None:
    model = gl.load(churn / "run")
    made = gl.report(model)
    assert made.title == "Model of churn"
    (line,) = made.left_out
    assert line.endswith("left out: the place of its data file is not recorded; need it as data")
    made = gl.report(model, data=churn / "churn.csv")
    assert made.left_out == [] and "Measured on 100 test rows of churn.csv" in section(made, "Model quality")


@pytest.mark.parametrize("name", ["data", "save", "save_figures"])
def test_a_path_of_another_type_is_refused(name: str, churn: Path) -> None:
    made = report(churn / "run")
    calls: dict[str, Any] = {
        "data": lambda: report(churn / "run", data=5),  # type: ignore[arg-type]
        "save": lambda: made.save(5),  # type: ignore[arg-type]
        "save_figures": lambda: made.save_figures(5),  # type: ignore[arg-type]
    }
    with pytest.raises(gl.SettingError, match="int; must be a path"):
        calls[name]()
