"""What steers a fit from the command: each option changes what is trained, or is refused; rerun repeats it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.model import load_model
from gradloom.data import read_table
from gradloom.files import load_arrays
from gradloom.files.toml_file import parse_toml
from gradloom.optim.names import optimizer_names
from gradloom.tables.perceptron import OPTIMIZERS
from gradloom.tables.perceptron import network as network_of
from tests.cli.command import run
from tests.cli.test_fit import flowers, houses, one_thread  # noqa: F401
from tests.cli.test_outputs import table

BASE = ("--epochs", 4, "--hidden", 8, "--val-split", 0.2, "--lr", 0.01)


def fitted(capsys, out, *arguments):
    """(bytes of the model, result)"""
    code, text, err = run(capsys, "fit", *arguments, "--out", out, "--json")
    assert code == 0, err
    return (Path(out) / "model.safetensors").read_bytes(), json.loads(text.splitlines()[-1])


def weights(model):
    """The numbers in the bytes of a model, without what its head tells of the training."""
    return model[8 + int.from_bytes(model[:8], "little") :]


def uneven(path):
    """Three classes with 60, 30 and 10 rows."""
    rng = np.random.default_rng(1)
    kinds = [0] * 60 + [1] * 30 + [2] * 10
    path.write_text("".join(f"{k + rng.normal():.4f},{rng.normal() - k:.4f},kind{k}\n" for k in kinds))
    return str(path)


@pytest.mark.parametrize(
    "options",
    [
        ("--max-norm", 0.1),
        ("--ema", 0.9),
        ("--freeze", "0.*"),
        ("--freeze", "*.bias", "--freeze", "1.weight"),
        ("--class-weight", "balanced"),
        ("--dropout", 0.3),
        *[("--optimizer", name) for name in OPTIMIZERS if name != "adamw"],
    ],
)
@pytest.mark.slow
def test_each_option_changes_what_is_trained_and_is_repeated(capsys, tmp_path, options):
    data = uneven(tmp_path / "t.csv")
    before, _ = fitted(capsys, tmp_path / "a", data, *BASE)
    after, _ = fitted(capsys, tmp_path / "b", data, *BASE, *options)
    assert before != after
    assert run(capsys, "rerun", tmp_path / "b")[0] == 0
    assert (tmp_path / "b-again" / "model.safetensors").read_bytes() == after


def test_dropout(capsys, tmp_path):
    """Of hidden layers, in training alone: saved with the model, whose outputs are those without it."""
    data, options = uneven(tmp_path / "t.csv"), (*BASE, "--hidden", "8,6", "--dropout", 0.5)
    code, _, err = run(capsys, "fit", data, *options, "--out", tmp_path / "a")
    assert code == 0 and "model: 8 networks 2-8-6-3, dropout 0.5, " in err, err
    arrays, described = load_arrays(tmp_path / "a" / "model.safetensors")
    network = json.loads(described["gradloom.model"])["network"]["net"]
    assert (network["layer"], network["dropout"]) == ("Ensemble", 0.5)
    of_numbers = [f"0.{name}" for name in ("bias", "coefficients", "phases", "weight")]
    of_layers = [f"{i}.{name}" for i in (1, 2, 3, "shortcut") for name in ("bias", "weight")]
    assert sorted(arrays) == of_numbers + of_layers
    read = load_model(tmp_path / "a")
    net, preprocess = read.net, read.preprocess
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    plain = network_of(preprocess, [8, 6], members=8)
    plain.load_state_dict(net.state_dict())
    assert net.dropout.rate == 0.5 and np.array_equal(gl.predict(net, x), gl.predict(plain, x))
    gl.fit(net, (x, np.zeros(50, np.int32)), epochs=1, batch_size=50, seed=0, progress=False)
    gl.fit(plain, (x, np.zeros(50, np.int32)), epochs=1, batch_size=50, seed=0, progress=False)
    assert not np.array_equal(gl.predict(net, x), gl.predict(plain, x))
    stopped = ("fit", data, *options, "--checkpoint-every", "3steps", "--out", tmp_path / "b")
    assert run(capsys, *stopped, "--stop-after", "0.001s")[0] == 0
    assert run(capsys, "fit", "--out", tmp_path / "b", "--resume")[0] == 0
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert one == two
    code, _, err = run(capsys, "fit", data, "--hidden", "", "--dropout", 0.5, "--out", tmp_path / "c")
    assert code == 2 and err == "gradloom: --dropout 0.5 requires at least one --hidden layer\n"


def test_what_is_frozen_keeps_its_bits(capsys, tmp_path):
    data = flowers(tmp_path / "t.csv")
    once, often = ((*BASE, "--freeze", "0.*", "--epochs", n, "--out", tmp_path / str(n)) for n in (1, 5))
    for options in (once, often):
        assert run(capsys, "fit", data, *options)[0] == 0
    one, five = (load_arrays(tmp_path / str(n) / "model.safetensors")[0] for n in (1, 5))
    for name in one:
        assert (one[name].tobytes() == five[name].tobytes()) == name.startswith("0."), name
    code, _, err = run(capsys, "fit", data, "--freeze", "0.wieght", "--out", tmp_path / "c")
    assert code == 2 and "0.wieght" in err.splitlines()[-1] and "0.weight" in err.splitlines()[-1]


def test_groups_of_a_settings_file(capsys, tmp_path):
    data = flowers(tmp_path / "t.csv")
    before, _ = fitted(capsys, tmp_path / "a", data, *BASE)
    (tmp_path / "s.toml").write_text("[[groups]]\nmatch = '*.bias'\nweight_decay = 0.0\nlr = 0.1\n")
    after, _ = fitted(capsys, tmp_path / "b", data, *BASE, "--config", tmp_path / "s.toml")
    assert before != after
    assert run(capsys, "rerun", tmp_path / "b")[0] == 0
    assert (tmp_path / "b-again" / "model.safetensors").read_bytes() == after
    (tmp_path / "s.toml").write_text("[[groups]]\nmatch = '*.bais'\nlr = 0.1\n")
    code, _, err = run(capsys, "fit", data, "--config", tmp_path / "s.toml", "--out", tmp_path / "c")
    assert code == 2 and "*.bais" in err.splitlines()[-1]


def test_early_stopping_keeps_the_best_weights(capsys, tmp_path):
    data = uneven(tmp_path / "t.csv")
    options = (data, *BASE, "--lr", 0.3, "--epochs", 400)
    _, found = fitted(capsys, tmp_path / "a", *options, "--patience", 3)
    losses = [one["val_loss"] for one in found["history"]]
    assert found["epochs"] == len(losses) < 400 and len(losses) - 1 - int(np.argmin(losses)) == 3
    train = read_table(data, val_split=0.2).train
    rows = train.split(0.2, 0)[1]
    held = gl.data.Dataset(train.data[rows], train.labels[rows])
    kept, row = load_model(tmp_path / "a"), found["history"][int(np.argmin(losses))]
    assert gl.evaluate(kept.net, held).loss == pytest.approx(min(losses), rel=1e-5)
    assert found["saved_epoch"] == row["epoch"] == kept.about["saved_epoch"] < found["epochs"]
    for part in ("train", "val"):  # what is told and saved is of the weights that are saved
        number = row["loss" if part == "train" else "val_loss"]
        assert number == found[f"{part}_loss"] == kept.metrics[f"{part}_loss"]
    code, said, _ = run(capsys, "fit", *options, "--patience", 3, "--out", tmp_path / "s")
    assert code == 0 and f"  of epoch {row['epoch']} of {found['epochs']}, the best\n" in said, said
    _, other = fitted(capsys, tmp_path / "b", *options, "--patience", 3, "--monitor", "loss")
    assert other["epochs"] != found["epochs"]
    code, _, err = run(capsys, "fit", *options, "--monitor", "loss", "--patience", 0, "--out", tmp_path / "c")
    assert code == 2 and err == "gradloom: --monitor loss requires --patience > 0\n"
    code, _, err = run(capsys, "fit", *options, "--patience", 2, "--monitor", "val_lss", "--out", tmp_path / "c")
    assert code == 2 and "val_lss" in err.splitlines()[-1] and "val_loss" in err.splitlines()[-1]


def test_a_mistyped_monitor_leaves_the_run_that_was_there(capsys, tmp_path):
    data, out = uneven(tmp_path / "t.csv"), tmp_path / "run"
    fitted(capsys, out, data, *BASE, "--epochs", 2)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, _, err = run(capsys, "fit", data, *BASE, "--epochs", 2, "--patience", 1, "--monitor", "val_f1", "--out", out)
    assert code == 2 and "--monitor val_f1 is not measured" in err.splitlines()[-1] and "Traceback" not in err
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_files_to_validate_on(capsys, tmp_path):
    data, clean, noisy = flowers(tmp_path / "t.csv"), flowers(tmp_path / "v.csv", 60, 1), uneven(tmp_path / "n.csv")
    base, _ = fitted(capsys, tmp_path / "a", data, "--epochs", 5, "--hidden", 8)
    one, found = fitted(capsys, tmp_path / "b", data, "--epochs", 5, "--hidden", 8, "--val", clean)
    assert weights(one) == weights(base) != b"" and found["val_loss"] == found["history"][-1]["val_loss"]
    several = ("--val", f"clean={clean}", "--val", f"noisy={noisy}")
    two, found = fitted(capsys, tmp_path / "c", data, "--epochs", 5, "--hidden", 8, *several)
    assert weights(two) == weights(base) and found["clean.loss"] == found["val_loss"] != found["noisy.loss"]
    assert run(capsys, "predict", tmp_path / "b", clean)[0] == 0
    code, out, _ = run(capsys, "predict", tmp_path / "b", clean, "--json")
    assert json.loads(out)["accuracy"] == found["clean.accuracy"]
    saved = parse_toml(tmp_path / "c" / "settings.toml")
    assert saved["val"] == {"clean": clean, "noisy": noisy} and set(saved["run"]["digests"]) == {
        "data", "val.clean", "val.noisy"
    }  # fmt: skip
    uneven(tmp_path / "n.csv")
    assert run(capsys, "rerun", tmp_path / "c")[0] == 0
    flowers(tmp_path / "n.csv")
    code, _, err = run(capsys, "rerun", tmp_path / "c")
    assert code == 2 and f"{noisy}: has changed: " in err


def test_a_regression_is_validated_in_its_units(capsys, tmp_path):
    data, other = houses(tmp_path / "t.csv"), houses(tmp_path / "v.csv", 50, 3)
    _, found = fitted(capsys, tmp_path / "a", data, "--target", "price", "--epochs", 30, "--val", other)
    assert found["val_loss"] < 0.2 and found["rows_val"] == 50
    (tmp_path / "x.csv").write_text("size,side\n1,north\n")
    code, _, err = run(capsys, "fit", data, "--val", tmp_path / "x.csv", "--out", tmp_path / "b")
    assert code == 2 and "has no 'price' to validate on" in err


@pytest.mark.slow
def test_evaluations_inside_of_epochs(capsys, tmp_path):
    data = flowers(tmp_path / "t.csv")
    before, _ = fitted(capsys, tmp_path / "a", data, *BASE)
    after, _ = fitted(capsys, tmp_path / "b", data, *BASE, "--eval-every", "1steps", "--eval-rows", 5)
    many = flowers(tmp_path / "many.csv", 200)
    _, few = fitted(capsys, tmp_path / "e", many, "--epochs", 1, "--eval-rows", 50)
    assert few["folds"] and few["rows_val"] == 50 < few["rows_train"]
    assert weights(before) == weights(after) != b""
    code, _, err = run(capsys, "fit", data, "--eval-every", "1steps", "--out", tmp_path / "c")
    assert code == 2 and "--eval-every 1steps requires validation rows: --val, or --folds or --val-split above 0" in err
    _, stopped = fitted(
        capsys, tmp_path / "d", data, *BASE, "--lr", 9.0, "--epochs", 50, "--eval-every", "1steps", "--patience", 2
    )
    assert stopped["steps"] < 50 * 3


def test_batches_that_are_not_finite_stop_it_or_are_skipped(capsys, tmp_path):
    options = (table(tmp_path / "t.csv"), "--optimizer", "sgd", "--lr", "1e15", "--epochs", 3)
    code, _, err = run(capsys, "fit", *options, "--out", tmp_path / "a")
    assert code == 2 and err.splitlines()[-1].startswith("gradloom: training stopped at step ")
    code, _, err = run(capsys, "fit", *options, "--on-nonfinite", "skip", "--out", tmp_path / "b")
    assert code == 2 and "all were skipped" in err.splitlines()[-1]


def test_logs(capsys, tmp_path):
    data = flowers(tmp_path / "t.csv")
    assert run(capsys, "fit", data, *BASE, "--log", "csv", "--out", tmp_path / "a")[0] == 0
    assert (tmp_path / "a" / "metrics.csv").read_text().count("\n") > 4 and (tmp_path / "a" / "metrics.jsonl").exists()
    code, _, err = run(capsys, "fit", data, *BASE, "--log", "csv,xml", "--out", tmp_path / "b")
    assert code == 2 and "--log csv,xml: must be a list, each of it csv or tensorboard" in err


def test_every_optimiser_has_its_defaults():
    assert set(OPTIMIZERS) == set(optimizer_names())
