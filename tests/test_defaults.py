"""Options that several entry points have: one default, or a reason here why not."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.defaults import FINETUNE_RATES
from gradloom.cli.config import Asked
from gradloom.cli.finetune_settings import FinetuneSettings, settle, training
from gradloom.cli.fit_settings import FitSettings
from gradloom.llm.finetune import Run
from gradloom.llm.lora import LoRA
from gradloom.llm.trained_tensors import TrainedTensors
from gradloom.llm.tuning import Settings, Tuning
from gradloom.train.loop import Loop
from gradloom.train.rate_finder import find_rate


def of_arguments(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def of_fields(kind: Any) -> dict[str, Any]:
    return {one.name: one.default for one in dataclasses.fields(kind) if one.default is not dataclasses.MISSING}


def entry_points() -> dict[str, dict[str, Any]]:
    from gradloom.sklearn import Classifier, Regressor

    return {
        "fit": of_arguments(gl.fit),
        "Trainer": of_arguments(gl.Trainer.__init__),
        "Loop": of_arguments(Loop.__init__),
        "evaluate": of_arguments(gl.evaluate),
        "find_rate": of_arguments(find_rate),
        "dp_train": of_arguments(gl.dp_train),
        "finetune": of_fields(Settings) | of_arguments(Run.__init__) | of_arguments(gl.llm.finetune),
        "Classifier": of_arguments(Classifier.__init__),
        "Regressor": of_arguments(Regressor.__init__),
        "gradloom fit": of_fields(FitSettings),
        "gradloom finetune": of_fields(FinetuneSettings),
    }


DECIDED = "None is decided later; the tests below compare what is decided"
UNSET = "None of a command is an option that was not given: the function's default"
DIFFERENT = {
    "batch_size": "32 rows of a table or image, 4 of `context` tokens, 500 where nothing is trained; " + DECIDED,
    "epochs": "gl.fit makes one pass; " + DECIDED,
    "folds": "gl.fit cannot know whether its model is an ensemble; " + DECIDED,
    "val_split": "gl.fit leaves nothing out unless it is asked; " + DECIDED,
    "optimizer": "an object in Python, None for AdamW (dp_train: Adam, the same steps without weight decay); a name "
    "in commands and estimators",
    "method": "gl.llm.finetune follows the adapter that it was given; without one it is lora, too",
    "out": "a folder for a model of a table, a file for an adapter",
    "schedule": DECIDED,
    "warmup": DECIDED,
    "weight_decay": DECIDED,
    "steps": "of a search for a rate, or of a training in place of epochs",
    "eval_every": UNSET,
    "exchange": UNSET,
    "freeze": UNSET,
    "log": UNSET,
    "max_norm": UNSET,
    "watch": UNSET,
}


def test_a_shared_option_has_one_default() -> None:
    found: dict[str, dict[str, Any]] = {}
    for entry, defaults in entry_points().items():
        for name, value in defaults.items():
            found.setdefault(name, {})[entry] = value
    shared = {name: entries for name, entries in found.items() if len(entries) > 1}
    assert len(shared) > 40
    different = {name: entries for name, entries in shared.items() if len(set(map(repr, entries.values()))) > 1}
    assert {name: entries for name, entries in different.items() if name not in DIFFERENT} == {}
    assert DIFFERENT.keys() - different.keys() == set(), "these have one default by now"


@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_command_finetune_trains_as_the_function(method: str) -> None:
    asked = Asked(FinetuneSettings, {"model": "m.gguf", "data": "d.txt", "method": method})
    by_command = training(settle(asked), None)
    adapter = LoRA() if method == "lora" else TrainedTensors("all")
    names = {one.name for one in dataclasses.fields(Settings)}
    mine = Settings(**{name: value for name, value in by_command.items() if name in names}).with_rate_of(adapter)
    theirs = Settings(method=method).with_rate_of(adapter)
    alike = {"epochs": 1, "weight_decay": 0.0, "method": method}  # what None means, see Tuning
    for name in names:
        one, other = (getattr(each, name) for each in (mine, theirs))
        if name == "optimizer":
            one, other = one or "adamw", other or "adamw"
        assert (alike.get(name) if one is None else one) == (alike.get(name) if other is None else other), name
    defaults = of_arguments(Run.__init__) | {"parallel": None, "exchange": "ordered"}
    more = {name: by_command.get(name, value) for name, value in defaults.items() if name not in {"run", *names}}
    assert len(more) > 10
    for name, value in more.items():
        assert value == defaults[name], name


def test_the_rate_of_a_fine_tuning_follows_from_what_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.llm.random_models import packed, write

    model = gl.llm.load(write(tmp_path))
    options: dict[str, Any] = {"val_split": 0.0, "batch_size": 4, "steps": 4, "warmup": 0.0, "schedule": "constant"}
    for adapter, method, rate in (
        (None, None, 2e-4),
        (None, "lora", 2e-4),
        (None, "full", 2e-5),
        (LoRA(rank=2), None, 2e-4),
        (TrainedTensors(["attn_q"]), None, 2e-5),
    ):
        run: Tuning = Run(model, packed(9, 24), adapter, method=method, **options)
        assert run.rate(0, 0) == run.settings.lr == rate
        assert rate == FINETUNE_RATES["lora" if isinstance(run.adapter, LoRA) else "full"]
        assert Run(model, packed(9, 24), adapter, method=method, lr=0.5, **options).rate(0, 0) == 0.5


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.slow
def test_an_estimator_trains_as_the_command_fit(tmp_path: Path, capsys: Any, optimizer: str) -> None:
    from gradloom.sklearn import Classifier
    from tests.cli.command import run

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((125, 3))
    labels = np.where(rows[:, 0] > 0, "a", "b")
    path, out = tmp_path / "rows.csv", tmp_path / "out"
    lines = [",".join([*(f"{x:.6f}" for x in row), label]) for row, label in zip(rows, labels, strict=True)]
    path.write_text("x,y,z,kind\n" + "\n".join(lines) + "\n")
    code, _, err = run(capsys, "fit", path, "--out", out, "--optimizer", optimizer)
    assert code == 0, err
    fitted = Classifier(optimizer=optimizer).fit(rows[:100], labels[:100])  # a fifth of the file is for the test
    mine, theirs = (one.about for one in (fitted.model_, gl.load(out / "model.safetensors")))
    decided = {"seed", "hidden", "batch_size", "lr", "loss", "optimizer", "dropout", "ensemble", "folds", "rows"}
    assert {name: mine[name] for name in decided} == {name: theirs[name] for name in decided}
