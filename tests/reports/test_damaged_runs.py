"""Runs with damaged or missing files, and runs that failed or were killed: one line each, never a silent gap."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.main import main
from gradloom.files import load_arrays, save_arrays
from gradloom.reports.run_report import report
from tests.cli.command import run as run_command
from tests.real_data import need
from tests.reports.test_quality import fit, write_churn


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("churn")
    write_churn(folder / "churn.csv", rows=300)
    fit(str(folder / "churn.csv"), "--out", str(folder / "run"), "--epochs", "2", "--ensemble", "1", "--folds", "0")
    return folder / "run"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 0x55  # of the description
    path.write_bytes(bytes(data))


def not_finite(path: Path) -> None:
    arrays, metadata = load_arrays(path)
    save_arrays(path, {name: np.full_like(array, np.nan) for name, array in arrays.items()}, metadata)


def noise(path: Path) -> None:
    path.write_bytes(b"\x00" * 500)


def test_a_run_has_nothing_left_out(run: Path) -> None:
    made = report(run)
    assert made.left_out == [] and made.warnings == []


@pytest.mark.parametrize("damage", [cut, flip, not_finite, noise, Path.unlink])
def test_a_damaged_model_is_stated(
    damage: Callable[[Path], None], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    damage(copy / "model.safetensors")
    page = tmp_path / "page.html"
    code, out, err = run_command(capsys, "report", copy, "-o", page, "--json")
    assert code == 0
    (line,) = json.loads(out)["left_out"]
    assert line.startswith(f"model quality of run: left out: {copy / 'model.safetensors'}: ") and line in err
    assert f"Left out: {copy / 'model.safetensors'}" in page.read_text()
    page.unlink()
    code, _, err = run_command(capsys, "report", copy / "model.safetensors", "-o", page)
    assert code == 2 and err.count("\n") == 1 and "model.safetensors: " in err and not page.exists()


@pytest.mark.parametrize(
    ("name", "part"), [("run.json", "state"), ("result.json", "results"), ("settings.toml", "settings")]
)
@pytest.mark.parametrize("text", ["{nonsense", "", "[[[" * 40_000])
def test_a_damaged_file_is_stated(name: str, part: str, text: str, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / name).write_text(text)
    made = report(copy)
    expected = f"{part} of run: left out: {copy / name}: "
    if (name, text) == ("settings.toml", ""):
        assert made.left_out == []  # a file without settings
    else:
        (line,) = made.left_out
        assert line.startswith(expected) and "\n" not in line and len(line) < 400 and expected in made.html
    assert "Model quality" in made.facts["sections"]


def test_metrics_that_are_nested_too_deeply_are_named(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    with (copy / "metrics.jsonl").open("a") as file:
        file.write("[" * 100_000 + "\n")
    count = len((copy / "metrics.jsonl").read_text().splitlines())
    with pytest.raises(gl.FileError, match=f"metrics.jsonl: line {count} is no JSON object"):
        report(copy)


def test_an_empty_name_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run_command(capsys, "report", "", "-o", tmp_path / "page.html")
    assert code == 2 and err == "gradloom: RUN is an empty text; need the folder of a run\n"


def test_a_failed_run_without_a_finished_epoch_has_a_page(run: Path, tmp_path: Path) -> None:
    lines = (run.parent / "churn.csv").read_text()
    (tmp_path / "t.csv").write_text(lines)
    words = ["--epochs", "2", "--ensemble", "1", "--lr", "1e30", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["fit", str(tmp_path / "t.csv"), *words]) != 0
    about = json.loads((tmp_path / "run/run.json").read_text())
    assert about["state"] == "failed" and (tmp_path / "run/metrics.jsonl").read_text() == ""
    made = report(tmp_path / "run")
    assert made.left_out[0] == "curves of run: left out: no epoch, evaluation or interval of the log ended"
    assert dict(made.sections[0].numbers)["state"] == "failed" and "Settings" in made.facts["sections"]
    assert "is not finite, at element" in made.html or "not finite" in made.sections[0].html


def test_the_error_of_a_failed_run_of_python_is_shown(tmp_path: Path) -> None:
    rows = np.ones((64, 2), np.float32), np.ones((64, 1), np.float32)

    def fail(epoch: object) -> None:
        raise RuntimeError("the disk\nof my own")

    with pytest.raises(RuntimeError):
        gl.fit(
            gl.nn.Linear(2, 1), rows, epochs=3, loss="mse", val_split=0.25, progress=False, run=tmp_path / "run",
            on_epoch=fail,
        )  # fmt: skip
    made = report(tmp_path / "run")
    assert dict(made.sections[0].numbers)["error"] == "RuntimeError: the disk\\nof my own"


def killed(run: Path, folder: Path) -> Path:
    """As a kill leaves it: run.json of its last checkpoint, a log with later steps, no model."""
    copy = Path(shutil.copytree(run, folder / "run"))
    about = json.loads((copy / "run.json").read_text())
    about |= {"state": "running", "ended": None, "step": 10, "epoch": 1, "latest": {"loss": 0.4, "val_loss": 0.5}}
    (copy / "run.json").write_text(json.dumps(about))
    lines = [{"kind": "train", "step": k, "epoch": 1, "loss": 1 / k} for k in range(1, 18)]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("model.safetensors", "result.json"):
        (copy / name).unlink()
    return copy


@pytest.mark.slow
def test_both_moments_of_a_killed_run_are_stated(run: Path, tmp_path: Path) -> None:
    made = report(killed(run, tmp_path))
    text = "of step 10; run.json was last written at step 10, the curves end at step 17"
    assert dict(made.sections[0].numbers)["results"] == text
    assert made.left_out == ["model quality of run: left out: the run ended before it saved a model"]
    assert report(run).sections[0].numbers == [one for one in report(run).sections[0].numbers if one[0] != "results"]


def test_parts_that_a_fine_tuning_of_python_lacks_are_stated(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("Once upon a time there was a cat who liked to sit on a mat. " * 50)
    model = need("gguf/stories260K.gguf")
    tuned = gl.llm.finetune(model, text, steps=2, context=32, progress=False, run=tmp_path / "run")
    made = report(tmp_path / "run")
    assert [line.partition(":")[0] for line in made.left_out] == ["validation samples of run", "memory plan of run"]
    assert all("settings.toml" in line for line in made.left_out)
    assert report(tuned).title == "Fine-tuning of stories260K.gguf"
