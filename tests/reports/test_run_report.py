"""Reports of runs: summary, comparison, texts, settings, errors, odd contents; and how a browser shows them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.terminal import printable
from gradloom.cli.main import main
from gradloom.reports.images import image_url
from gradloom.reports.run_files import read_run_files, settings_of_runs
from gradloom.reports.run_report import report
from gradloom.reports.sections import figures_of
from gradloom.reports.summary import Score, pauses, scores_of, summary
from gradloom.runs.plan_file import PLANS
from tests.cli.command import run as run_command
from tests.real_data import need
from tests.reports.browser import Browser
from tests.reports.test_quality import fit, write_churn

HOSTILE = ["a</script><script>alert(1)</script>", "b\u202ecba", "<!--", "]]>&amp;", "\x07bell"]


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("churn")
    write_churn(folder / "churn.csv", rows=600)
    words = ["--epochs", "4", "--ensemble", "2", "--folds", "0"]
    fit(str(folder / "churn.csv"), "--out", str(folder / "one"), *words)
    fit(str(folder / "churn.csv"), "--out", str(folder / "two"), *words, "--lr", "0.01", "--seed", "3")
    return folder


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, model = tmp_path_factory.mktemp("stories"), need("gguf/stories260K.gguf")
    text = folder / "t.txt"
    text.write_text("Once upon a time there was a cat who liked to sit on a mat. " * 200)
    words = ["--steps", "12", "--context", "32", "--sample-prompt", HOSTILE[0], "--sample-every", "6steps"]
    assert main(["finetune", str(model), str(text), "--out", str(folder / "a.gguf"), *words, "--quiet"]) == 0
    return folder


def test_the_summary_is_the_result(churn: Path) -> None:
    result = json.loads((churn / "one/result.json").read_text())
    found = summary(read_run_files(churn / "one"))
    for part, prefix in (("test", "test_"), ("validation", "val_"), ("training", "train_")):
        assert found.scores["accuracy"][part].value == result[f"{prefix}accuracy"]
        assert found.scores["accuracy"][part].spread == result[f"{prefix}accuracy_unc"]
    assert found.scores["accuracy"]["baseline"].value == result["baseline_accuracy"]
    assert found.scores["roc_auc"] == {"test": Score(result["test_roc_auc"], result["test_roc_auc_unc"])}
    facts = dict(found.facts)
    assert facts["state"] == "finished" and facts["baseline"] == result["baseline"] and facts["target"] == "churn"
    assert facts["rows"] == "408 for training, 72 for validation, 120 for the test"
    assert facts["digest of data"].startswith("sha256:") and facts["digest of model.safetensors"].startswith("sha256:")
    assert "proved before the first step" in facts["planned memory of a step"]
    assert facts["versions"].startswith("gradloom ") and facts["instruction set"] and facts["machine"]
    assert found.notes == result["notes"] and found.warnings == result["warnings"]


def test_scores_are_shown_with_two_digits_of_their_uncertainty() -> None:
    shown = [
        str(Score(*pair))
        for pair in ((0.92333, 0.01539), (12.3456, 3.21), (0.5,), (1e-7, 2e-9), (54231.2, 1188.0), (1e9, 3e7))
    ]
    assert shown == [
        "0.923 \u00b1 0.015",
        "12.3 \u00b1 3.2",
        "0.5",
        "1e-07 \u00b1 2e-09",
        "54200 \u00b1 1200",
        "1e+09 \u00b1 3e+07",
    ]


def test_the_report_has_its_sections_and_figures(churn: Path) -> None:
    made = report(churn / "one")
    titles = made.facts["sections"]
    assert titles[:5] == ["Summary", "Curves", "Model quality", "Worst rows", "Memory"] and titles[-1] == "Settings"
    assert titles[5].startswith("Training step: rows f32[")
    kinds = [figure.kind for figure in figures_of(made.sections) if figure.kind != "memory_map"]
    assert kinds.count("curves") >= 5 and kinds[-4:] == ["matrix", "xy", "xy", "bars"]
    assert made.title == "Run one" and len(made.html) < 600_000
    result = json.loads((churn / "one/result.json").read_text())
    matrix = next(figure for figure in figures_of(made.sections) if figure.kind == "matrix")
    assert [list(row[1:]) for row in matrix.table.rows] == result["test_confusion"]
    quality = next(section for section in made.sections if section.title == "Model quality")
    for name in ("accuracy", "roc_auc", "log_loss", "f1_macro"):  # with the uncertainties of the summary
        assert dict(quality.numbers)[name] == str(Score(result[f"test_{name}"], result[f"test_{name}_unc"]))
    (bars,) = [figure for figure in figures_of(made.sections) if figure.kind == "bars"]
    assert {row[0] for row in bars.table.rows[:2]} == {"plan", "calls"}


def test_the_worst_rows_are_rows_of_the_file(churn: Path) -> None:
    html = next(section.html for section in report(churn / "one").sections if section.title == "Worst rows")
    with (churn / "churn.csv").open() as file:
        rows = list(csv.reader(file))
    found = re.findall(r"<tr>(.*?)</tr>", html.partition("<h3>")[0])
    names = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<th.*?>(.*?)</th>", found[0])]
    assert len(found) >= 21 and names[:3] == ["line", "true", "predicted"]
    for line in found[1:21]:
        cells = dict(zip(names, re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line), strict=True))
        row = dict(zip(rows[0], rows[int(cells["line"].replace(",", "")) - 1], strict=True))
        assert cells["true"] == row["churn"] and cells["age"] == row["age"] and cells["plan"] == row["plan"]
        assert cells["predicted"] in ("yes", "no") and float(cells["probability of the true class"]) < 0.9


@pytest.mark.slow
def test_runs_are_compared_by_their_differing_settings(churn: Path) -> None:
    differing, equal = settings_of_runs([read_run_files(churn / name) for name in ("one", "two")])
    assert differing == {"lr": [0.002, 0.01], "seed": [0, 3]} and equal["epochs"] == [4, 4]
    made = report(churn / "one", churn / "two")
    assert made.title == "Runs one, two"
    assert made.facts["sections"][0] == "Results" and made.facts["sections"][-1] == "Settings that differ"
    curves = figures_of(made.sections)[0].facts["curves"]
    assert [one["name"] for one in curves] == [
        "one: training", "one: validation", "two: training", "two: validation"
    ]  # fmt: skip
    assert [one["colour"] for one in curves] == [1, 1, 2, 2]
    assert [one["dashed"] for one in curves] == [False, True, False, True]
    results = [json.loads((churn / name / "result.json").read_text()) for name in ("one", "two")]
    for result in results:
        assert f"<td>{Score(result['test_accuracy'], result['test_accuracy_unc'])}</td>" in made.sections[0].html


@pytest.mark.slow
def test_runs_of_one_name_are_named_apart(churn: Path, tmp_path: Path) -> None:
    import shutil

    for name in ("x", "y"):
        shutil.copytree(churn / "one", tmp_path / name / "run")
    assert report(tmp_path / "x/run", tmp_path / "y/run").title == "Runs x/run, y/run"
    assert "(1)" in report(tmp_path / "x/run", tmp_path / "x/run").title


def test_a_fine_tuning_has_its_losses_and_texts(stories: Path) -> None:
    made = report(stories / "a.gguf")
    sections = made.facts["sections"]
    assert sections[:4] == ["Summary", "Curves", "Sampled texts", "Token losses"] and sections[-1] == "Settings"
    assert sections[4] == "Memory" and sections[5].startswith("Training step: rows i32[") and not made.left_out
    about = json.loads((stories / "a.run/run.json").read_text())
    found = scores_of(read_run_files(stories / "a.run"))
    assert found["loss"]["validation"] == Score(about["latest"]["val_loss"], about["latest"]["val_loss_unc"])
    assert made.sections[2].html.count("<tr>") == 3 and "alert(1)&lt;/script&gt;" in made.sections[2].html


@pytest.mark.slow
def test_a_program_that_runs_no_command_reports_a_fine_tuning(stories: Path) -> None:
    text = f"import gradloom as gl; made = gl.report({str(stories / 'a.run')!r}); print(made.left_out)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.slow
def test_the_memory_plan_of_a_changed_model_is_left_out(tmp_path: Path) -> None:
    model, text = tmp_path / "m.gguf", tmp_path / "t.txt"
    model.write_bytes(need("gguf/stories260K.gguf").read_bytes())
    text.write_text("Once upon a time there was a cat who liked to sit on a mat. " * 50)
    words = ["--steps", "2", "--context", "32", "--quiet", "--out", str(tmp_path / "a.gguf")]
    assert main(["finetune", str(model), str(text), *words]) == 0
    with model.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x00")
    made = report(tmp_path / "a.run")
    why = made.left_out[-1]
    assert re.fullmatch(r"memory plan of a.run: left out: .*m.gguf: has changed: sha256.*", why), why
    titles = made.facts["sections"]  # the maps that the run has stored stay
    at = titles.index("Memory")
    assert titles[at + 1].startswith("Training step: rows i32[")
    assert "The memory plan of the whole run is left out" in made.sections[at].text[1]
    model.unlink()
    assert "cannot be read: no such file" in report(tmp_path / "a.run").left_out[-1]
    (tmp_path / "a.run" / PLANS).unlink()
    assert [title for title in report(tmp_path / "a.run").facts["sections"] if "step" in title] == []
    (tmp_path / "a.run/settings.toml").write_text("run = 3\nmodel = [1]\n")
    assert "a.run" in report(tmp_path / "a.run").left_out[0]


def test_a_fine_tuning_in_memory_has_its_memory_map(stories: Path) -> None:
    run = gl.llm.finetune(
        need("gguf/stories260K.gguf"), stories / "t.txt", steps=4, context=32, progress=False, val_split=0.1
    )
    made = gl.report(run)
    assert made.facts["sections"][:4] == ["Summary", "Curves", "Token losses", "Memory"]
    assert "memory_map" in [figure.kind for figure in figures_of(made.sections)]
    found = scores_of(made._runs[0])["loss"]
    assert found["validation"].value == run.report["val_loss"] and run.before is not None
    assert found["before training"].value == run.before.loss
    assert run._repr_html_().startswith("<iframe ")


def test_preferences_have_curves_of_their_margins(tmp_path: Path) -> None:
    lines = [
        {"kind": "epoch", "step": k, "epoch": 1, "loss": 0.6, "rewards_margin": 0.1 * k, "val_rewards_margin": 0.05 * k}
        for k in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    titles = [figure.title for figure in figures_of(report(tmp_path).sections)]
    assert titles == ["loss", "rewards_margin"]


@pytest.mark.slow
def test_images_have_their_worst_rows_as_pictures(tmp_path: Path) -> None:
    folder = need("mnist/t10k-images-idx3-ubyte.gz").parent
    fit(str(folder), "--out", str(tmp_path / "run"), "--epochs", "1", "--hidden", "16", "--batch-size", "500")
    made = report(tmp_path / "run")
    figures = [figure for figure in figures_of(made.sections) if figure.kind != "memory_map"]
    assert [figure.kind for figure in figures[-3:]] == ["matrix", "xy", "xy"]
    worst = next(section.html for section in made.sections if section.title == "Worst rows")
    assert worst.count('<img src="data:image/png;base64,') == 20
    result = json.loads((tmp_path / "run/result.json").read_text())
    matrix = figures[-3]
    assert [list(row[1:]) for row in matrix.table.rows] == result["test_confusion"]


def test_pictures_are_png() -> None:
    image = pytest.importorskip("PIL.Image")
    import base64
    import io

    rng = np.random.default_rng(0)
    for shape in ([5, 7], [5, 7, 1], [4, 6, 3]):
        row = rng.integers(0, 256, shape).astype(np.uint8)
        data = base64.b64decode(image_url(row.reshape(-1), shape).partition(",")[2])
        assert np.array_equal(
            np.asarray(image.open(io.BytesIO(data))), row.reshape(shape[:2] + shape[2:3] * (3 in shape[2:]))
        )


def test_states_of_runs(churn: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(churn / "one", tmp_path / "run")
    about = json.loads((tmp_path / "run/run.json").read_text())
    (tmp_path / "run/run.json").write_text(
        json.dumps(about | {"state": "interrupted", "went_on": ["from step 7: isa"]})
    )
    facts = summary(read_run_files(tmp_path / "run")).facts
    assert ("state", f"interrupted at step {about['step']}") in facts and ("resumed", "from step 7: isa") in facts
    (tmp_path / "run/run.json").write_text(json.dumps(about | {"state": "running"}))
    found = read_run_files(tmp_path / "run")
    assert found.state == "interrupted" and not found.result and "its process was killed" in found.problems[0]


def test_a_run_that_still_trains_has_a_report(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    net, made = gl.nn.Sequential(gl.nn.Linear(3, 1)), []

    def look(epoch: gl.EpochResult) -> None:
        if epoch.epoch == 2:
            made.append(report(tmp_path / "run"))

    gl.fit(net, (x, x[:, :1]), loss="mse", epochs=3, batch_size=16, progress=False, run=tmp_path / "run", on_epoch=look)
    assert made[0].facts["runs"][0]["state"] == "running" and "killed" not in made[0].html
    assert report(tmp_path / "run").facts["runs"][0]["state"] == "finished"


def test_pauses_are_seen_by_the_clock() -> None:
    lines = [{"step": s, "time": 1e9 + t, "seconds": float(r)} for s, t, r in ((1, 0, 0), (2, 5, 5), (3, 605, 7))]
    assert pauses(lines) == [(2, 598.0)]
    assert pauses([{"step": 1, "time": "x", "seconds": 1.0}, {}]) == []


@pytest.mark.slow
def test_an_older_run_has_the_curves_of_its_result(churn: Path, tmp_path: Path) -> None:
    import shutil

    tmp_path.joinpath("run").mkdir()
    for name in ("model.safetensors", "result.json"):
        shutil.copy(churn / "one" / name, tmp_path / "run" / name)
    made = report(tmp_path / "run")
    assert "over epochs" in made.html and made.left_out == [] and "Measured on 120 test rows of churn.csv" in made.html
    result = json.loads((tmp_path / "run/result.json").read_text())
    (tmp_path / "run/result.json").write_text(json.dumps(result | {"data": None}))
    line = "left out: the place of its data file is not recorded; need it as data"
    assert report(tmp_path / "run").left_out == [f"model quality of run: {line}"]
    with_data = report(tmp_path / "run", data=churn / "churn.csv")
    assert not with_data.left_out and "bars" in [figure.kind for figure in figures_of(with_data.sections)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path / "none", "none: no such file or folder; need the folder of a run"),
        (lambda path: path, "holds no run (no run.json); need the folder of a run"),
        (lambda path: _write(path / "run/metrics.jsonl", "{}\n[1]\n").parent, "line 2 is no JSON object"),
        (lambda path: _write(path / "run/metrics.jsonl", "").parent, "run: has no metrics: no epoch"),
        (lambda path: _write(path / "x.txt", ""), "x.txt: holds no run; need the folder of a run"),
    ],
)
def test_a_bad_run_is_one_line(make: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "report", make(tmp_path), "-o", tmp_path / "report.html")
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_bad_outputs_are_one_line(churn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out, message in ((tmp_path, "is a folder"), (tmp_path / "no/x.html", "does not exist"),
                         (churn / "one/model.safetensors", "model.safetensors")):  # fmt: skip
        code, _, err = run_command(capsys, "report", churn / "one/model.safetensors", "-o", out)
        assert code == 2 and message in err and err.count("\n") == 1, err


def test_other_objects_are_refused() -> None:
    for bad in (3, [], None):
        with pytest.raises(gl.SettingError, match="report: got .*; need the folder of a run, a History of gl.fit"):
            gl.report(bad)
    with pytest.raises(gl.SettingError, match="no run; requires one or more"):
        gl.report()
    with pytest.raises(gl.SettingError, match="the history has no epoch"):
        gl.report(gl.train.History())


def test_a_model_has_its_metrics(churn: Path) -> None:
    model = gl.load(churn / "one")
    made = gl.report(model, data=churn / "churn.csv")
    assert made.facts["sections"] == ["Summary", "Model quality", "Worst rows", "Settings"]
    assert scores_of(made._runs[0])["accuracy"]["test"].value == model.metrics["test_accuracy"]


def test_the_command_writes_the_page_and_json(churn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    code, text, err = run_command(capsys, "report", churn / "one", churn / "two", "-o", out, "--json")
    found = json.loads(text)
    assert code == 0 and found["bytes"] == out.stat().st_size and found["out"] == str(out), err
    assert [run["name"] for run in found["runs"]] == ["one", "two"] and found["left_out"] == []
    result = json.loads((churn / "two/result.json").read_text())
    wanted = {"part": "test", "quantity": "accuracy", "value": result["test_accuracy"]}
    assert wanted | {"value_unc": result["test_accuracy_unc"]} in found["runs"][1]["scores"]


# ---- odd contents ----------------------------------------------------------------------------------------------------


def write_hostile(folder: Path) -> Path:
    """A run whose every text is hostile."""
    folder.mkdir()
    with (folder / "t.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*HOSTILE, "target</script>\u202e"])
        for k in range(200):
            out.writerow([k % 7, k % 5, HOSTILE[k % 3], k, k % 2, HOSTILE[k % 4]])
    fit(str(folder / "t.csv"), "--out", str(folder / "run"), "--epochs", "2", "--ensemble", "1")
    run = folder / "run"
    about = json.loads((run / "run.json").read_text())
    about |= {"host": HOSTILE[0], "versions": {HOSTILE[0]: HOSTILE[1]}, "went_on": HOSTILE}
    (run / "run.json").write_text(json.dumps(about))
    result = json.loads((run / "result.json").read_text())
    result |= {"warnings": HOSTILE, "notes": HOSTILE, "baseline": HOSTILE[0], "target": HOSTILE[1]}
    (run / "result.json").write_text(json.dumps(result))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= dict.fromkeys(HOSTILE, 1.0) | {f"{name}.loss": 2.0 for name in HOSTILE}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = [{"step": 1, "prompt": text, "text": text, "ended": text} for text in HOSTILE]
    (run / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    (run / "settings.toml").write_text((run / "settings.toml").read_text().replace("gradloom fit", "x</script>"))
    return run


def test_hostile_texts_stay_texts(tmp_path: Path, browser: Browser) -> None:
    run = write_hostile(tmp_path / "x<b>\u202e")
    page = report(run)
    assert "alert(1)</script>" not in page.html.replace("\\u003c", "<") or "<script>alert" not in page.html
    assert "\u202e" not in page.html and "<b>" not in page.html
    page.save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert len(browser.all("figure .problem")) == 0
    assert browser.js("return document.scripts.length") == page.html.count("<script")
    assert "alert(1)" in browser.find("main").text


@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_are_one_line_or_a_page(seed: int, churn: Path, tmp_path: Path) -> None:
    """Values of other types at random places."""
    import shutil

    rng = np.random.default_rng(seed)
    shutil.copytree(churn / "one", tmp_path / "run")
    odd: list[Any] = [None, [], {}, "x", -1, 1e308, True, 10**400, [[["y"]]], {"a": {"b": []}}]
    for name in ("result.json", "run.json"):
        values = json.loads((tmp_path / "run" / name).read_text())
        for key in values:
            if rng.random() < 0.4:
                values[key] = odd[rng.integers(len(odd))]
        (tmp_path / "run" / name).write_text(json.dumps(values))
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for key in line:
            if rng.random() < 0.2:
                line[key] = odd[rng.integers(len(odd))]
    (tmp_path / "run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "</html>" in report(tmp_path / "run").html


# ---- in a browser ----------------------------------------------------------------------------------------------------


def test_charts_share_cursor_zoom_and_themes(churn: Path, tmp_path: Path, browser: Browser) -> None:
    made = report(churn / "one", churn / "two")
    made.save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    figures = browser.all("figure[data-kind='curves']")
    assert len(figures) >= 5 and not browser.all("figure .problem")
    assert all(figure.find_elements("css selector", "canvas") for figure in figures)
    host = "document.querySelectorAll('.curves-host')[0]"
    browser.js(
        f"{host}.focus(); {host}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'ArrowRight', bubbles: true}}))"
    )
    browser.settle()
    at = [one.text for one in browser.all(".curves-tools .at")]
    assert at[0].startswith("optimiser step ") and at[0] == at[1], at
    first = figures_of(made.sections)[0]
    shown = [one.text for one in browser.all("figure:first-of-type .series output")]
    before = browser.find("figure:first-of-type .curves-host").location
    assert float(shown[0].split()[0]) == pytest.approx(float(first.arrays["y0"][0]), rel=1e-4)  # type: ignore[arg-type]
    buttons = browser.all("figure:first-of-type .series")
    buttons[0].click()
    assert buttons[0].get_attribute("aria-pressed") == "false"
    _drag(browser)
    browser.settle()
    assert browser.find("figure:first-of-type .curves-host").location == before  # nothing moves below the pointer
    assert all(one.is_displayed() for one in browser.all(".curves-tools button") if one.text == "Whole run")
    assert sum(one.text == "Whole run" for one in browser.all(".curves-tools button")) == len(figures)
    browser.find("figure:first-of-type .curves-tools button").click()
    assert not [one for one in browser.all(".curves-tools button") if one.text == "Whole run"]
    for media, width in (({"prefers_color_scheme": "dark"}, 1280), ({}, 390)):
        browser.open(tmp_path / "page.html", width=width, **media)
        assert not browser.all("figure .problem")
        assert browser.js("return document.documentElement.scrollWidth") <= width


def _drag(browser: Browser) -> None:
    from selenium.webdriver import ActionChains

    over = browser.find("figure:first-of-type .u-over")
    width = over.size["width"]
    chain = ActionChains(browser.driver).move_to_element_with_offset(over, -int(width * 0.2), 0).click_and_hold()
    chain.move_by_offset(int(width * 0.3), 0).release().perform()


def test_tables_have_the_numbers_of_the_figures(churn: Path, tmp_path: Path, browser: Browser) -> None:
    made = report(churn / "one")
    made.save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    shown = browser.js(
        "return [...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll('details tbody tr')]"
        ".map(r => [...r.cells].map(c => c.textContent)))"
    )
    figures = figures_of(made.sections)
    assert shown == [[[printable(str(cell)) for cell in row] for row in figure.table.rows] for figure in figures]
    drawn = browser.js(
        "return [...document.querySelectorAll('.matrix tbody tr')]"
        ".map(r => [...r.querySelectorAll('td')].map(c => +c.textContent))"
    )
    matrix = next(figure for figure in figures if figure.kind == "matrix")
    assert drawn == [list(row[1:]) for row in matrix.table.rows]
    assert browser.js("return document.querySelectorAll('figure[data-kind=bars] rect').length") == 5
