"""Predicted seconds of commands: the line before the first step, and the key of --json."""

import json
import re

import numpy as np
import pytest

from tests.cli.command import run
from tests.llm.random_models import write

DURATION = r"about [\d.]+ s"


@pytest.fixture
def announced(monkeypatch):
    """Every run counts as long."""
    monkeypatch.setattr("gradloom.train.prediction.LONG", 0.0)


@pytest.fixture
def table(tmp_path):
    x = np.random.default_rng(0).standard_normal((200, 3)).round(3)
    place = tmp_path / "t.csv"
    place.write_text("\n".join(["a,b,c,y", *(f"{a},{b},{c},{int(a > b)}" for a, b, c in x)]) + "\n")
    return place


def test_a_fit_predicts_its_duration(announced, capsys, tmp_path, table):
    code, out, err = run(capsys, "fit", table, "--epochs", 3, "--out", tmp_path / "out", "--json")
    line = re.search(rf"^at most {DURATION}: 3 epochs of [\d.]+ s; checkpoints not included$", err, re.M)
    assert code == 0 and line and err.index(line[0]) < err.index("epoch 1/3"), err
    assert json.loads(out)["predicted_seconds"] >= 0


def test_a_finetuning_and_an_evaluation_predict_their_durations(announced, capsys, tmp_path):
    model, text, made = write(tmp_path, "llama", context=64), tmp_path / "t.txt", tmp_path / "a.gguf"
    text.write_text("once upon a time there was a little girl " * 100)
    code, out, err = run(capsys, "finetune", model, text, "--context", 32, "--steps", 2, "--out", made, "--json")
    line = rf"^{DURATION}: 2 steps of [\d.]+ s, 2 evaluations of [\d.]+ s; checkpoints not included$"
    assert code == 0 and re.search(line, err, re.M), err
    assert json.loads(out)["predicted_seconds"] >= 0
    code, out, err = run(capsys, "evaluate", model, text, "--context", 32, "--json")
    assert code == 0 and re.search(rf"^{DURATION}$", err, re.M), err
    assert json.loads(out)["predicted_seconds"] >= 0


def test_short_runs_report_no_prediction(capsys, tmp_path, table):
    code, out, err = run(capsys, "fit", table, "--epochs", 1, "--out", tmp_path / "out", "--json")
    assert code == 0 and "about" not in err and "predicted_seconds" not in json.loads(out)
