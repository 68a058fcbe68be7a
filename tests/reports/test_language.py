"""Losses of tokens and rewards in reports: equal to evaluate and to the log, or left out with a reason."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli import validated
from gradloom.cli.main import main
from gradloom.llm import validation
from gradloom.llm.evaluate import evaluate
from gradloom.llm.lora import LoRA
from gradloom.llm.model import load
from gradloom.reports.language import validation_sections
from gradloom.reports.page import Section
from gradloom.reports.run_files import run_files
from gradloom.reports.run_report import report
from gradloom.reports.sections import figures_of
from tests.real_data import need
from tests.reports.browser import Browser
from tests.reports.tables_of import Numbers

HOSTILE = "</script><img src=x onerror=window.hacked=1>"


def write_rows(folder: Path) -> None:
    """sft.jsonl, pairs.jsonl and judged.jsonl of the same questions."""
    rows = [
        {"prompt": f"What is {k} plus {k + 1}?", "chosen": f" It is {2 * k + 1} {HOSTILE * (k % 9 == 0)}.",
         "rejected": f" I do not know {k}."}
        for k in range(40)
    ]  # fmt: skip
    lines: dict[str, list[dict[str, Any]]] = {
        "sft": [{"prompt": row["prompt"], "completion": row["chosen"]} for row in rows],
        "pairs": rows,
        "judged": [
            {"prompt": row["prompt"], "completion": row["chosen" if k % 2 else "rejected"], "label": k % 2 == 1}
            for k, row in enumerate(rows)
        ],
    }
    for name, of in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in of))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("language")
    write_rows(made)
    (made / "text.txt").write_text("Once upon a time there was a cat who liked to sit on a mat. " * 60)
    return made


def tune(folder: Path, name: str, data: str, *words: str) -> Path:
    model, options = need("gguf/stories260K.gguf"), ["--steps", "6", "--context", "64", "--val-split", "0.25"]
    out = str(folder / f"{name}.gguf")
    given = ["finetune", str(model), str(folder / data), "--out", out, *options, "--quiet", "--threads", "1"]
    assert main([*given, *words]) == 0
    return folder / f"{name}.run"


@pytest.fixture(scope="module")
def sft(folder: Path) -> Path:
    return tune(folder, "sft", "sft.jsonl")


def last_line(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return found


def test_the_table_has_the_loss_of_each_token(sft: Path, folder: Path) -> None:
    """That of evaluate on the sample alone; the tokens are its text."""
    page = Numbers(report(sft).html)
    shown = page.numbers["Token losses"]
    val_loss = last_line(sft)["val_loss"]
    text = shown["mean loss of a token"].partition(" \u00b1 ")[0]
    assert float(text) == pytest.approx(val_loss, abs=0.5 * 10.0 ** -len(text.partition(".")[2]) * 1.01)
    assert float(shown["perplexity"]) == pytest.approx(np.exp(val_loss), rel=1e-3)

    model = load(need("gguf/stories260K.gguf"))
    adapter = LoRA.load(folder / "sft.gguf", model)
    rows = [json.loads(line) for line in (folder / "sft.jsonl").read_text().splitlines()]
    texts = {f"{row['prompt']}{row['completion']}": row for row in rows}
    tables = [table for table in page.tables if table.caption.startswith("Validation sample")]
    assert len(tables) == 4
    for table in tables:
        tokens = table.column("token")
        assert tokens[0] == "<s>" and tokens[-1] == "</s>" and table.column("loss")[0] == ""
        (row,) = [row for of, row in texts.items() if " " + of == "".join(tokens[1:-1])]
        losses = [float(loss) for loss in table.column("loss") if loss]
        prompt = len(model.tokenizer.encode(row["prompt"]))
        assert len(losses) == len(tokens) - prompt and all(loss == "" for loss in table.column("loss")[:prompt])
        measured = evaluate(model, [row], adapter, context=len(tokens))
        assert np.mean(losses) == pytest.approx(measured.nll, rel=1e-4) and len(losses) == measured.tokens
        mean = float(re.search(r"mean loss ([\d.]+) of", table.caption)[1])  # type: ignore[index]
        assert mean == pytest.approx(measured.nll, abs=1e-4)
        for loss, probability in zip(losses, filter(None, table.column("probability")), strict=True):
            assert float(probability) == pytest.approx(np.exp(-loss), rel=6e-3)


@pytest.mark.slow
def test_windows_of_a_text_have_losses(folder: Path) -> None:
    run = tune(folder, "text", "text.txt")
    page = Numbers(report(run).html)
    text = page.numbers["Token losses"]["mean loss of a token"].partition(" \u00b1 ")[0]
    assert float(text) == pytest.approx(last_line(run)["val_loss"], abs=0.02)
    first = next(table for table in page.tables if table.caption.startswith("Validation sample"))
    assert len(first.rows) == 65 and "cat who liked" in "".join(first.column("token"))
    assert [row[2] for row in first.rows].count("") == 1


@pytest.mark.parametrize("words", [("dpo",), ("orpo",), ("simpo",), ("cpo",), ("reward",), ("dpo", "--method", "full")],
                         ids=" ".join)  # fmt: skip
def test_margins_are_those_of_the_log(folder: Path, words: tuple[str, ...]) -> None:
    more = ("--train-dtype", "f32") if "full" in words else ()
    run = tune(folder, "-".join(words), "pairs.jsonl", "--objective", *words, *more)
    section = section_of(run)
    assert section.title == "Rewards of validation samples"
    shown, line = dict(section.numbers), last_line(run)
    (figure,) = section.figures
    counts = [row[2] for row in figure.table.rows]
    assert sum(counts) == 10 and figure.table.head == ("from", "to", "pairs")  # type: ignore[arg-type]
    margin, accuracy = (line[f"val_rewards/{name}"] for name in ("margins", "accuracies"))
    text, _, unc = shown["mean margin"].partition(" \u00b1 ")
    assert float(text) == pytest.approx(margin, abs=float(unc) / 5 + 1e-9)
    assert float(figure.label.partition("mean ")[2].partition(",")[0]) == pytest.approx(margin, rel=1e-3)
    positive = float(shown["pairs with a positive margin"].partition(" \u00b1 ")[0])
    assert positive == pytest.approx(accuracy, abs=0.01)


def test_judged_completions_have_rewards(folder: Path) -> None:
    run = tune(folder, "kto", "judged.jsonl", "--objective", "kto")
    section = section_of(run)
    line = last_line(run)
    for figure, name in zip(section.figures, ("chosen", "rejected"), strict=True):
        mean = float(figure.label.partition("mean ")[2].partition(",")[0])
        assert mean == pytest.approx(line[f"val_rewards/{name}"], rel=1e-3)
    assert section.figures[0].table.rows[0][0] == section.figures[1].table.rows[0][0]  # the same parts


@pytest.mark.slow
def test_a_run_in_memory_has_the_same_losses(sft: Path, folder: Path) -> None:
    settings: dict[str, Any] = {"steps": 6, "context": 64, "val_split": 0.25, "threads": 1, "progress": False}
    run = gl.llm.finetune(need("gguf/stories260K.gguf"), folder / "sft.jsonl", **settings)
    assert "Token losses" in report(run).facts["sections"]
    one, other = ([figure.table for figure in section_of(of).figures] for of in (run, sft))
    assert one == other and len(one) == 4
    pairs = gl.llm.finetune(need("gguf/stories260K.gguf"), folder / "pairs.jsonl", objective="dpo", **settings)
    mean = float(section_of(pairs).figures[0].label.partition("mean ")[2].partition(",")[0])
    assert mean == pytest.approx(pairs.report["rewards_margin"], rel=1e-3)


@pytest.mark.slow
def test_a_file_of_validation_rows_is_read_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (folder / "sft.jsonl").read_text().splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(rows[:30]))
    (folder / "val.jsonl").write_text("".join(rows[30:]))
    model = str(need("gguf/stories260K.gguf"))
    words = ["--val", str(folder / "val.jsonl"), "--steps", "3", "--context", "64", "--quiet"]
    assert main(["finetune", model, str(folder / "train.jsonl"), "--out", str(folder / "v.gguf"), *words]) == 0
    monkeypatch.setattr(validated, "_LARGEST", (folder / "val.jsonl").stat().st_size)
    shown = Numbers(report(folder / "v.run").html).numbers["Token losses"]
    text = shown["mean loss of a token"].partition(" \u00b1 ")[0]
    assert float(text) == pytest.approx(last_line(folder / "v.run")["val_loss"], abs=0.02)


def section_of(run: Any) -> Section:
    """The section of a run, without a reason to leave it out."""
    reasons: list[str] = []
    (section,) = validation_sections(run_files(run), "", reasons)
    assert reasons == []
    return section


def left_out(run: Path) -> str:
    """The reason why the section of a run is left out."""
    reasons: list[str] = []
    (section,) = validation_sections(run_files(run), "", reasons)
    (line,) = reasons
    assert section.title == "Validation samples" and section.text[0].startswith("Left out: ") and "\n" not in line
    return line


def test_changed_and_missing_inputs_are_left_out_with_the_reason(folder: Path, sft: Path, tmp_path: Path) -> None:
    for name in ("sft.gguf", "sft.jsonl"):
        shutil.copy(folder / name, tmp_path / name)
    run = shutil.copytree(sft, tmp_path / "sft.run")
    for name in ("settings.toml", "run.json"):
        (run / name).write_text((run / name).read_text().replace(str(folder), str(tmp_path)))
    section_of(run)
    with (tmp_path / "sft.gguf").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x00\x00\x80\x3f")
    assert re.search(r"sft.gguf: has changed since the run saved it \(sha256:.*, then sha256:", left_out(run))
    (tmp_path / "sft.gguf").unlink()
    assert left_out(run).endswith("sft.gguf: cannot be read: no such file or directory")
    about = json.loads((run / "run.json").read_text())
    del about["output"]
    (run / "run.json").write_text(json.dumps(about))
    assert left_out(run).endswith("run.json does not record a saved adapter or model")
    shutil.copy(folder / "sft.gguf", tmp_path / "sft.gguf")
    about["output"] = {
        "path": str(tmp_path / "sft.gguf"),
        "digest": json.loads((sft / "run.json").read_text())["output"]["digest"],
    }
    (run / "run.json").write_text(json.dumps(about))
    section_of(run)
    (tmp_path / "sft.jsonl").write_text("{}\n")
    assert "sft.jsonl: has changed" in left_out(run)
    about["output"] = ["x"]
    (run / "run.json").write_text(json.dumps(about))
    assert "does not record" in left_out(run)


def test_time_and_memory_are_bounded(sft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as small:
        small.setattr(validation, "MOST_ROWS", 2)
        section = section_of(sft)
        assert "on 2 of 7 validation rows, evenly spaced" in section.text[0]
    with monkeypatch.context() as slow:
        slow.setattr(validation, "evaluation_seconds", lambda plan, batches, options: 40.0 * batches)
        slow.setattr(validation, "_TOKENS", 1)
        section = section_of(sft)
        assert "on 1 of 7 validation rows" in section.text[0]
        slow.setattr(validation, "evaluation_seconds", lambda plan, batches, options: 70.0 * batches)
        assert "would take 1 min" in left_out(sft)
    with monkeypatch.context() as large:
        large.setattr(validated, "_LARGEST", 100)
        assert "at most 64 MiB are read" in left_out(sft)


def test_a_run_without_validation_rows_is_left_out(folder: Path) -> None:
    assert left_out(tune(folder, "none", "sft.jsonl", "--val-split", "0")).endswith("the run has no validation rows")


@pytest.mark.slow
def test_other_objectives_have_no_such_section(folder: Path) -> None:
    lines = [{"text": f"a story of {k}", "label": "ab"[k % 2]} for k in range(40)]
    (folder / "labelled.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = tune(folder, "classes", "labelled.jsonl", "--objective", "classify")
    assert validation_sections(run_files(run), "", []) == []


def test_tokens_are_shaded_in_a_browser(sft: Path, tmp_path: Path, browser: Browser) -> None:
    made = report(sft)
    made.save(tmp_path / "page.html")
    for width, media in ((1280, {}), (390, {"prefers_color_scheme": "dark"})):
        browser.open(tmp_path / "page.html", width=width, **media)
        assert browser.js("return window.hacked") is None and not browser.all("figure .problem")
        assert browser.js("return document.documentElement.scrollWidth") <= width
        figures = [figure for figure in figures_of(made.sections) if figure.kind == "tokens"]
        for element, figure in zip(browser.all("figure[data-kind=tokens]"), figures, strict=True):
            shown = browser.js(
                "return [...arguments[0].querySelectorAll('.tokens .token')].map(e => [e.textContent, e.className])",
                element,
            )
            assert shown == [
                [row[1], f"token loss-{min(int(float(str(row[2]))), 6)}" if row[2] else "token uncounted"]
                for row in figure.table.rows
            ]
            browser.click(element.find_element("css selector", ".tokens .token:last-child"))
            readout = element.find_element("css selector", ".readout").text
            assert readout == f'token {len(shown)}, "</s>": loss {figure.table.rows[-1][2]}, probability ' + (
                browser.js("return Math.exp(-arguments[0]).toPrecision(3)", float(figure.arrays["losses"][-1]))
            )
        shades = browser.js(
            "return [0, 3, 6].map(k => document.querySelector('.token-scale .loss-' + k))"
            ".map(e => getComputedStyle(e).backgroundColor)"
        )
        assert len(set(shades)) == 3
