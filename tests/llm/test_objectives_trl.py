"""Objectives against TRL: losses and metrics of 50 steps on a small random model in f32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.llm.finetune import finetune
from gradloom.llm.model import load
from gradloom.llm.packing import TokenData
from gradloom.llm.samples import Report
from gradloom.llm.trained_tensors import TrainedTensors
from tests.llm.preference_rows import rows_of_pairs

pytest.importorskip("trl")
from tests.llm import trl_runs

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
STEPS, RATE = 50, 3e-4
METRICS = (
    "rewards/chosen",
    "rewards/rejected",
    "rewards/accuracies",
    "rewards/margins",
    "logps/chosen",
    "logps/rejected",
)
NAMES = {name: name for name in ("loss", *METRICS)}


def random_pairs(count: int, seed: int = 0) -> list[dict[str, list[int]]]:
    rng = np.random.default_rng(seed)
    shortest = {"prompt": 3, "chosen": 2, "rejected": 2}
    return [
        {name: rng.integers(5, trl_runs.VOCAB, rng.integers(least, 8)).tolist() for name, least in shortest.items()}
        for _ in range(count)
    ]


def ours(folder: Path, rows: Any, objective: str, **settings: Any) -> dict[str, np.ndarray]:
    """The numbers of each step: all rows are one batch."""
    run = finetune(
        load(folder), rows, TrainedTensors(), objective=objective, batch_size=len(rows.tokens), epochs=STEPS,
        val_split=0.0, progress=False, optimizer=gl.optim.AdamW(lr=RATE, weight_decay=0.0), max_norm=np.inf, **settings,
    )  # fmt: skip
    found = run.history.to_dict()
    return {name: np.array(found[name]) for name in ("loss", *run.history[0].train.metrics) if "_unc" not in name}


def assert_equal(found: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> None:
    for name, theirs in truth.items():
        assert len(theirs) == STEPS
        np.testing.assert_allclose(found[name], theirs, rtol=1e-4, atol=1e-4, err_msg=name)
    assert truth["loss"][-1] < truth["loss"][0] - 0.05


def rows_of_texts(pairs: list[dict[str, list[int]]], prompts: bool = False) -> Any:
    """A row for each pair; completions end with the token that ends a text."""
    sides = ("chosen", "rejected")
    ended = [(p["prompt"], [[*p[side], trl_runs.EOS] for side in sides]) for p in pairs]
    return rows_of_pairs(ended, prompts=prompts)


def test_sft(tmp_path: Path) -> None:
    model = trl_runs.write_folder(tmp_path / "m")
    pairs = [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in random_pairs(4)]
    truth = trl_runs.sft(model, pairs, tmp_path, {"loss": "loss"}, STEPS, RATE)
    texts = [np.array([*pair["prompt"], *pair["completion"], trl_runs.EOS]) for pair in pairs]
    tokens, positions, labels = np.zeros((3, len(pairs), 16), np.int32)
    labels[:] = -100
    for row, (pair, text) in enumerate(zip(pairs, texts, strict=True)):
        count, prompt = len(text) - 1, len(pair["prompt"])
        tokens[row, :count], positions[row, :count] = text[:-1], np.arange(count)
        labels[row, prompt - 1 : count] = text[prompt:]
    assert_equal(ours(tmp_path / "m", TokenData(tokens, positions, labels, Report()), "sft"), truth)


@pytest.mark.parametrize(("loss_type", "beta"), [("sigmoid", 0.1), ("hinge", 0.2), ("ipo", 0.3)])
def test_dpo(tmp_path: Path, loss_type: str, beta: float) -> None:
    model, pairs = trl_runs.write_folder(tmp_path / "m"), random_pairs(4)
    truth = trl_runs.dpo(model, pairs, tmp_path, NAMES, STEPS, RATE, loss_type=[loss_type], beta=beta)
    assert_equal(ours(tmp_path / "m", rows_of_texts(pairs), "dpo", loss_type=loss_type, beta=beta), truth)


def test_simpo(tmp_path: Path) -> None:
    model, pairs = trl_runs.write_folder(tmp_path / "m"), random_pairs(4)
    more = {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 1.0, "label_smoothing": 0.1}
    truth = trl_runs.cpo(model, pairs, tmp_path, NAMES, STEPS, RATE, **more)
    found = ours(tmp_path / "m", rows_of_texts(pairs), "simpo", beta=2.0, gamma=1.0, label_smoothing=0.1)
    assert_equal(found, truth)


def test_orpo(tmp_path: Path) -> None:
    model, pairs = trl_runs.write_folder(tmp_path / "m"), random_pairs(4)
    names = NAMES | {name: name for name in ("nll_loss", "log_odds_ratio", "log_odds_chosen")}
    truth = trl_runs.orpo(model, pairs, tmp_path, names, STEPS, RATE, beta=0.5)
    assert_equal(ours(tmp_path / "m", rows_of_texts(pairs, prompts=True), "orpo", beta=0.5), truth)


def test_cpo(tmp_path: Path) -> None:
    model, pairs = trl_runs.write_folder(tmp_path / "m"), random_pairs(4)
    names = NAMES | {"nll_loss": "nll_loss"}
    truth = trl_runs.cpo(model, pairs, tmp_path, names, STEPS, RATE, beta=0.2, cpo_alpha=0.5, label_smoothing=0.1)
    found = ours(tmp_path / "m", rows_of_texts(pairs), "cpo", beta=0.2, nll_weight=0.5, label_smoothing=0.1)
    assert_equal(found, truth)


def test_kto(tmp_path: Path) -> None:
    """Samples in order, all in one batch: TRL pairs each prompt with the completion before it in the batch."""
    model = trl_runs.write_folder(tmp_path / "m")
    good = (True, False, True, False, False)
    texts = [pair | {"label": label} for pair, label in zip(random_pairs(5), good, strict=True)]
    samples = [{"prompt": t["prompt"], "completion": t["chosen"], "label": t["label"]} for t in texts]
    names = {name: name for name in NAMES if name not in ("rewards/accuracies", "rewards/margins")}
    more = {"beta": 0.2, "desirable_weight": 1.5, "undesirable_weight": 0.5}
    truth = trl_runs.kto(model, samples, tmp_path, names, STEPS, RATE, **more)
    ended = [[*s["completion"], trl_runs.EOS] for s in samples]
    made = rows_of_pairs([(s["prompt"], [ended[i], ended[i - 1]]) for i, s in enumerate(samples)])
    labels = np.array(good, np.float32)[:, None, None]
    made = replace(made, values=np.concatenate([made.values, labels], 2))
    assert_equal(ours(tmp_path / "m", made, "kto", **more), truth)


@pytest.mark.parametrize("settings", [{}, {"center_rewards_coefficient": 0.02}])
def test_reward(tmp_path: Path, settings: dict[str, Any]) -> None:
    """The head begins with TRL's numbers; both train all tensors but the output."""
    from gradloom.llm.head import Head
    from tests.llm.head_rows import rows_of

    trl_runs.write_folder(tmp_path / "m")
    pairs = random_pairs(4)
    names = {
        "loss": "loss",
        "rewards/accuracies": "accuracy",
        "rewards/margins": "margin",
        "rewards/mean": "mean_reward",
    }
    head, truth = trl_runs.reward(tmp_path / "m", pairs, names, STEPS, RATE, **settings)
    model, adapter = load(tmp_path / "m"), TrainedTensors()
    adapter.add_head(Head("reward"), model, 0, head)
    texts = [[*p["prompt"], *p[side], trl_runs.EOS] for p in pairs for side in ("chosen", "rejected")]
    run = finetune(
        model, rows_of(texts, 2, None, packing=False), adapter, objective="reward", batch_size=4, epochs=STEPS,
        val_split=0.0, progress=False, optimizer=gl.optim.AdamW(lr=RATE, weight_decay=0.0), max_norm=np.inf, **settings,
    )  # fmt: skip
    found = run.history.to_dict()
    assert_equal({name: np.array(found[name]) for name in names}, truth)
