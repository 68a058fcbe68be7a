import json
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gradloom.cli.model import load_model
from gradloom.files import load_arrays
from tests import processes
from tests.cli.command import FILES, run

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "data" / "digits.npz"
ENV = processes.environment(GRADLOOM_THREADS="1")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Small models: a second thread only waits, and many tests may run side by side."""
    monkeypatch.setenv("GRADLOOM_THREADS", "1")


def write(path, text):
    path.write_text(text)
    return str(path)


def houses(path, rows=300, seed=0):
    """A regression with a text column and empty cells: price = 3 size + 5 (north) + noise."""
    rng = np.random.default_rng(seed)
    size, north = rng.uniform(0, 10, rows), rng.integers(0, 2, rows)
    price = 3 * size + 5 * north + rng.normal(0, 0.1, rows)
    lines = [
        f"{'' if i % 50 == 7 else round(s, 4)},{'north' if n else 'south'},{p:.4f}"
        for i, (s, n, p) in enumerate(zip(size, north, price, strict=True))
    ]
    return write(path, "size,side,price\n" + "\n".join(lines) + "\n")


def flowers(path, rows=120, seed=0):
    """Three classes of two numbers, without a header."""
    rng = np.random.default_rng(seed)
    lines = [f"{i % 3 + rng.normal(0, 0.15):.4f},{-(i % 3) + rng.normal(0, 0.15):.4f},kind{i % 3}" for i in range(rows)]
    return write(path, "\n".join(lines) + "\n")


def fitted(capsys, tmp_path, *arguments):
    code, out, err = run(capsys, "fit", *arguments, "--json", "--out", tmp_path / "out")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


# -- training ----------------------------------------------------------------------------------------------------------


def test_classification(capsys, tmp_path):
    path = flowers(tmp_path / "t.csv")
    code, out, err = run(capsys, "fit", path, "--epochs", 30, "--out", tmp_path / "out")
    assert code == 0
    assert "task: classification, because the target 'column 3' holds texts" in err
    assert "epoch 30/30  loss " in err and "rows/s" in err and 2 <= err.count("\nepoch ") <= 30
    assert "test (held out)" in out and "gradloom predict" in out
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["interrupted"] is False and (found["epochs"], found["steps"]) == (30, 90)
    assert found["test_accuracy"] >= 0.95 and (found["rows_train"], found["rows_test"]) == (96, 24)

    code, out, err = run(capsys, "predict", tmp_path / "out", path)
    lines = out.splitlines()
    assert code == 0 and lines[0] == "column 3,p(kind0),p(kind1),p(kind2)" and len(lines) == 121
    assert sum(line.startswith(f"kind{i % 3},") for i, line in enumerate(lines[1:])) >= 115
    assert "on 120 rows that have a 'column 3'" in err
    shares = np.array([[float(p) for p in line.split(",")[1:]] for line in lines[1:]])
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_regression(capsys, tmp_path):
    path = houses(tmp_path / "t.csv")
    found = fitted(capsys, tmp_path, path, "--target", "price", "--val-split", 0.1, "--epochs", 60)
    assert found["task"] == "regression" and found["test_r2"] > 0.9 and found["test_rmse"] < 3
    assert (found["rows_train"], found["rows_val"], found["rows_test"]) == (216, 24, 60)
    assert "test_accuracy" not in found and found["val_loss"] < 0.2
    new = write(tmp_path / "new.csv", "side,size\nsouth,1\nnorth,9\nwest,2\n")
    code, out, err = run(capsys, "predict", tmp_path / "out" / "model.safetensors", new, "--out", tmp_path / "p.csv")
    assert code == 0 and out == "" and "side: 1 row with a text unknown from training: west" in err
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "price" and abs(float(lines[1]) - 3) < 3 and abs(float(lines[2]) - 32) < 4


def test_digits_and_the_same_bits_for_any_number_of_threads(capsys, tmp_path):
    first = fitted(capsys, tmp_path, DIGITS, "--hidden", "32", "--epochs", 4, "--threads", 1)
    weights, _ = load_arrays(tmp_path / "out" / "model.safetensors")
    second = fitted(capsys, tmp_path, DIGITS, "--hidden", "32", "--epochs", 4, "--threads", 2)
    again, _ = load_arrays(tmp_path / "out" / "model.safetensors")
    other = fitted(capsys, tmp_path, DIGITS, "--hidden", "32", "--epochs", 4, "--seed", 1)
    assert first["test_accuracy"] > 0.85 and first["test_accuracy"] == second["test_accuracy"]
    assert first["train_loss"] == second["train_loss"] != other["train_loss"]
    for name, array in weights.items():
        assert array.tobytes() == again[name].tobytes(), name
    keys = "rows_train rows_test train_loss train_loss_unc train_accuracy test_loss test_accuracy epochs steps seconds"
    for key in [*keys.split(), "peak_bytes", "planned_bytes", "parameters", "model"]:
        assert key in first, key
    assert (first["epochs"], first["steps"], first["parameters"]) == (4, 4 * 45, 64 * 32 + 32 + 32 * 10 + 10)
    assert 0 < first["planned_bytes"] < first["peak_bytes"]


@pytest.mark.parametrize(
    "options",
    [
        ["--optimizer", "sgd"],
        ["--optimizer", "sgd", "--lr", "0.03"],
        ["--micro-batch-size", "7"],
        ["--batch-size", "96", "--lr", "0.01"],
        ["--loss", "mse"],
        ["--hidden", "", "--lr", "0.1"],
        ["--hidden", "8,8,8", "--lr", "0.02"],
        ["--val-split", "0.2"],
        ["--task", "classification"],
        ["--target", "column 3"],
    ],
)
def test_every_option_trains(capsys, tmp_path, options):
    found = fitted(capsys, tmp_path, flowers(tmp_path / "t.csv"), *options, "--epochs", 40)
    code, _, err = run(capsys, "predict", tmp_path / "out", tmp_path / "t.csv")
    accuracy = float(err.split("accuracy ")[1].split()[0])
    assert code == 0 and accuracy > 0.9, (found, err)


def test_the_result_has_the_history(capsys, tmp_path):
    found = fitted(capsys, tmp_path, flowers(tmp_path / "t.csv"), "--epochs", 4, "--val-split", 0.2, "--lr", 0.01)
    history = found["history"]
    assert [one["epoch"] for one in history] == [1, 2, 3, 4]
    assert history[-1]["loss"] == found["train_loss"] < history[0]["loss"]
    for name in ("loss_unc", "accuracy"):
        assert history[-1][name] == found[f"train_{name}"]
    for name in ("val_loss", "val_loss_unc", "val_accuracy"):
        assert history[-1].get(name) == found.get(name)
    steps = found["steps"]
    for i, one in enumerate(history):
        last = (i + 1) * steps // 4 - 1
        assert one["lr"] == pytest.approx(0.005 * (1 + np.cos(np.pi * last / steps)), rel=1e-12)
    assert sum(one["seconds"] for one in history) < found["seconds"] and min(one["seconds"] for one in history) > 0


def test_micro_batches_give_the_same_training(capsys, tmp_path):
    path = houses(tmp_path / "t.csv")
    options = ("--optimizer", "sgd", "--epochs", 3, "--batch-size", 30)
    whole = fitted(capsys, tmp_path, path, *options)
    parts = fitted(capsys, tmp_path, path, *options, "--micro-batch-size", 7)
    assert whole["steps"] == parts["steps"] == 24
    np.testing.assert_allclose(whole["test_loss"], parts["test_loss"], rtol=1e-4)


def test_a_batch_larger_than_the_rows_is_one_smaller_batch(capsys, tmp_path):
    data = flowers(tmp_path / "t.csv", 30)
    found = fitted(capsys, tmp_path, data, "--epochs", 3, "--batch-size", 1000, "--micro-batch-size", 500)
    assert (found["rows_train"], found["batch_size"], found["micro_batch_size"], found["steps"]) == (24, 24, 24, 3)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_weights(capsys, tmp_path):
    path = houses(tmp_path / "t.csv")
    options = ("--optimizer", "sgd", "--lr", "1e30", "--epochs", 3, "--out", tmp_path / "out")
    code, out, err = run(capsys, "fit", path, *options)
    last = err.splitlines()[-1]
    assert code == 2 and out == "" and last.startswith("gradloom: training stopped at step ")
    assert last.endswith(f"the weights before the failed step are in {tmp_path / 'out' / 'model.safetensors'}")
    arrays, _ = load_arrays(tmp_path / "out" / "model.safetensors")
    assert all(np.isfinite(a).all() for a in arrays.values())


def test_an_ensemble_has_a_limit_of_its_own(capsys, tmp_path):
    code, _, err = run(capsys, "fit", flowers(tmp_path / "t.csv"), "--ensemble", 100000, "--out", tmp_path / "out")
    assert code == 2 and err.splitlines()[-1].startswith("gradloom: --ensemble 100000") and "10,000" in err


def test_predictions_as_json(capsys, tmp_path):
    """The rows of the CSV in one object: of classes with probabilities, of a regression as numbers."""
    path = flowers(tmp_path / "t.csv")
    fitted(capsys, tmp_path, path, "--epochs", 30)
    code, out, err = run(capsys, "predict", tmp_path / "out", path)
    header, *lines = out.splitlines()
    code, out, err = run(capsys, "predict", tmp_path / "out", path, "--json")
    found = json.loads(out)
    assert code == 0 and out.count("\n") == 1 and "accuracy" in err
    assert (found["task"], found["target"], found["rows"], found["out"]) == ("classification", "column 3", 120, None)
    assert found["classes"] == ["kind0", "kind1", "kind2"] and header.endswith("p(kind2)")
    shown = [f"{c}," + ",".join(f"{p!r}" for p in row)
             for c, row in zip(found["predictions"], found["probabilities"], strict=True)]  # fmt: skip
    assert shown == lines and found["rows_with_target"] == 120
    true = [f"kind{i % 3}" for i in range(120)]
    assert found["accuracy"] == np.mean([a == b for a, b in zip(true, found["predictions"], strict=True)]) > 0.9
    assert 0 <= found["accuracy_unc"] < 0.05 and found["data"] == path and found["notes"] == []

    code, out, err = run(capsys, "predict", tmp_path / "out", path, "--json", "--out", tmp_path / "p.csv")
    again = json.loads(out)
    assert code == 0 and (tmp_path / "p.csv").read_text().splitlines() == [header, *lines]
    assert again == {k: v for k, v in found.items() if k not in ("predictions", "probabilities")} | {
        "out": str(tmp_path / "p.csv")
    }


def test_predictions_of_a_regression_as_json(capsys, tmp_path):
    path = houses(tmp_path / "t.csv")
    fitted(capsys, tmp_path, path, "--target", "price", "--epochs", 20)
    found = json.loads(run(capsys, "predict", tmp_path / "out", path, "--json")[1])
    lines = run(capsys, "predict", tmp_path / "out", path)[1].splitlines()[1:]
    np.testing.assert_allclose(found["predictions"], [float(v) for v in lines], rtol=1e-8)
    true = np.array([float(line.split(",")[2]) for line in Path(path).read_text().splitlines()[1:]])
    rmse = float(np.sqrt(np.mean((np.array(found["predictions"]) - true) ** 2)))
    assert found["rmse"] == pytest.approx(rmse, rel=1e-6) and found["r2"] > 0.5 and found["rows_with_target"] == 300
    assert not {"probabilities", "classes", "accuracy"} & set(found)
    new = write(tmp_path / "new.csv", "side,size\nsouth,1\nwest,2\n")
    found = json.loads(run(capsys, "predict", tmp_path / "out", new, "--json")[1])
    assert found["rows"] == 2 and found["notes"] == ["side: 1 row with a text unknown from training: west"]
    assert not {"rmse", "r2", "rows_with_target"} & set(found)


# -- when something goes wrong outside ---------------------------------------------------------------------------------


def start(*arguments, **options):
    return processes.start([sys.executable, "-m", "gradloom", *arguments], env=ENV, **options)


@pytest.mark.parametrize("options", [[], ["--json"], ["--json", "--val-split", "0.1"]])
@pytest.mark.slow
def test_ctrl_c_saves_the_weights_so_far(tmp_path, options):
    job = start("fit", DIGITS, "--epochs", 100000, "--out", tmp_path / "out", *options)
    for line in job.stderr:
        if line.startswith("epoch ") and int(line.split()[1].split("/")[0]) >= 2:
            break
    job.send_signal(signal.SIGINT)
    started = time.monotonic()
    out, err = job.communicate(timeout=60)
    assert job.returncode == 130 and time.monotonic() - started < 20
    assert out == (tmp_path / "out" / "result.json").read_text() if "--json" in options else out == ""
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    per_epoch = -(-found["rows_train"] // 32)
    assert found["interrupted"] is True and 2 <= found["epochs"] < 100000 and found["train_loss"] > 0
    assert found["epochs"] * per_epoch <= found["steps"] <= (found["epochs"] + 1) * per_epoch
    assert ("val_loss" in found["history"][0]) == ("--val-split" in options) and "test_loss" not in found
    assert "val_loss" not in found or found["steps"] == found["epochs"] * per_epoch  # nobody validated these weights
    path = tmp_path / "out" / "model.safetensors"
    assert err.splitlines()[-2] == f"interrupted; the weights so far are in {path}"
    assert err.splitlines()[-1].endswith(f"; resume with: gradloom fit --out {tmp_path / 'out'} --resume")
    assert "Traceback" not in err and sorted(os.listdir(tmp_path / "out")) == FILES
    read = load_model(path)
    assert read.classes == list("0123456789") and read.net.parameter_count() == 37510


def test_ctrl_c_before_the_first_step_leaves_what_is_there(capsys, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_bytes(b"old")
    monkeypatch.setattr("gradloom.tables.recipe.fit", stop)
    code, out, err = run(capsys, "fit", DIGITS, "--out", tmp_path / "out", "--json")
    assert code == 130 and err.splitlines()[-1] == "interrupted before the first step; nothing is saved"
    found = json.loads(out)
    assert found["interrupted"] is True and (found["steps"], found["epochs"], found["model"]) == (0, 0, None)
    assert found["ending"] == "interrupted" and found["rows_train"] > 0 and "test_loss" not in found
    monkeypatch.setattr("gradloom.data.read_table", stop)  # before there is anything to tell
    code, out, err = run(capsys, "fit", DIGITS, "--out", tmp_path / "out", "--json")
    assert code == 130 and err.splitlines()[-1] == "gradloom: interrupted"
    nothing = {"data": os.path.abspath(DIGITS), "model": None, "steps": 0, "interrupted": True}
    assert json.loads(out) == {"schema": "gradloom.fit/1", **nothing}
    assert run(capsys, "fit", DIGITS, "--out", tmp_path / "out")[:2] == (130, "")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"old" and len(os.listdir(tmp_path / "out")) == 1


def test_full_disk_leaves_the_old_model(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"old")

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))

    job = start("fit", DIGITS, "--epochs", 1, "--out", out, preexec_fn=limit)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 2
    what = re.escape(f"gradloom: {out / 'model.safetensors'}: cannot be written")
    assert re.match(rf"{what} \(1[56]\d{{4}} bytes needed\): file too large;", err.splitlines()[-1])
    assert (out / "model.safetensors").read_bytes() == b"old" and not (out / "result.json").exists()
    assert "the checkpoint of step 45 was not saved" in err and not list((out / "checkpoints").glob("*"))


def test_output_that_nobody_reads(tmp_path, capsys):
    fitted(capsys, tmp_path, DIGITS, "--epochs", 1, "--hidden", "4")
    job = start("predict", tmp_path / "out", DIGITS)
    job.stdout.close()
    assert "Traceback" not in job.stderr.read() and job.wait(timeout=60) == 1
