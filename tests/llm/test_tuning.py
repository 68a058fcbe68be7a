"""What steers a fine-tuning beside its rate: optimisers by name, freezing, clipping by value, batches left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import NonFiniteError, SettingError
from gradloom.llm import LoRA, TrainedTensors, finetune, load
from gradloom.llm.finetune import Run
from tests.llm.random_models import packed, write
from tests.refused import refused


def run_on(path: Path, adapter: Any = None, **options: Any) -> Run:
    settings = {"val_split": 0.0, "batch_size": 4, "micro_batch_size": 2, "progress": False, "threads": 1, "steps": 5}
    adapter = LoRA(rank=2, targets="all", seed=1) if adapter is None else adapter
    return finetune(load(path), packed(9, 24), adapter, **(settings | options))


def trained(run: Run) -> dict[str, bytes]:
    return {name: p.numpy().tobytes() for name, p in run.adapter.parameters().items()}


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "lion", "rmsprop"])
def test_an_optimiser_by_name(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    kinds = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "lion": "Lion", "rmsprop": "RMSprop"}
    given = getattr(gl.optim, kinds[name])(lr=gl.optim.schedules.Linear(3e-3, 5), weight_decay=0.1)
    named = run_on(path, optimizer=name, lr=3e-3, schedule="linear", warmup=0.0, weight_decay=0.1)
    assert trained(named) == trained(run_on(path, optimizer=given))
    if name == "adamw":
        assert trained(named) == trained(run_on(path, lr=3e-3, schedule="linear", warmup=0.0, weight_decay=0.1))


@pytest.mark.parametrize("name", ["adamw", "adam", "lion"])
def test_moments_in_8_bits(tmp_path: Path, name: str) -> None:
    """By name the same bits as an object with state_bits, other ones than with f32 moments."""
    path, settings = write(tmp_path), {"schedule": "constant", "warmup": 0.0, "lr": 3e-3}
    tensors = ["token_embd"]
    one = run_on(path, TrainedTensors(tensors), optimizer=name, state_bits=8, **settings)
    kind = next(c for c in (gl.optim.AdamW, gl.optim.Adam, gl.optim.Lion) if c.__name__.lower() == name)
    other = run_on(path, TrainedTensors(tensors), optimizer=kind(lr=3e-3, state_bits=8))
    plain = run_on(path, TrainedTensors(tensors), optimizer=name, **settings)
    assert trained(one) == trained(other) != trained(plain)
    kinds = {p.dtype.name for kept in one.trainer.state.values() for p in kept.values()}
    assert kinds == {"u8", "f32"}
    assert one.history[-1].train.loss == pytest.approx(plain.history[-1].train.loss, rel=2e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_bits": 16}, "finetune: state_bits=16: must be 8 or 32"),
        (
            {"state_bits": 8, "optimizer": "sgd"},
            "finetune: state_bits=8 requires optimizer adamw, adam or lion, not sgd",
        ),
        (
            {"state_bits": 8, "optimizer": gl.optim.AdamW()},
            "finetune: state_bits=8 and optimizer are mutually exclusive",
        ),
        ({"state_bits": 8}, "finetune: state_bits=8 requires a parameter of 4096 elements or more that trains"),
    ],
)
def test_bits_of_moments_that_have_no_effect_are_refused(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        run_on(write(tmp_path), **options)


def test_what_trains_no_language_model_is_refused(tmp_path: Path) -> None:
    with refused("device", "numpy", need="'cpu', 'gpu' or 'gpu:1'", place="finetune"):
        run_on(write(tmp_path), device="numpy")


def test_frozen_parameters_keep_their_bits(tmp_path: Path) -> None:
    path = write(tmp_path)
    before = LoRA(rank=2, targets="all", seed=1)
    before.bind(load(path))
    first = {name: p.numpy().tobytes() for name, p in before.parameters().items()}
    run = run_on(path, freeze=["*.lora_a", "blk.1.*"], weight_decay=0.1)
    kept = {name for name, bits in trained(run).items() if bits == first[name]}
    assert kept == {name for name in first if name.endswith(".lora_a") or name.startswith("blk.1.")}
    count = sum(p.size for name, p in run.adapter.parameters().items() if name not in kept)
    assert run.report["parameters_trained"] == count
    size = sum(p.size for name, p in run.adapter.parameters().items() if name in kept)
    assert run.table.endswith(f"kept by freeze: {size:,} of these parameters in {len(kept)} arrays")
    full = run_on(path, TrainedTensors(["attn_q", "attn_k"]), freeze="blk.0.attn_q.weight")
    assert full.adapter.parameters()["blk.0.attn_q.weight"].numpy().tobytes() == (
        load(path).weights["blk.0.attn_q.weight"].read().tobytes()
    )


def test_gradients_are_clipped_by_value(tmp_path: Path) -> None:
    path, most = write(tmp_path), np.float32(1e-3)
    before = LoRA(rank=2, targets="all", seed=1)
    before.bind(load(path))
    first = {name: p.numpy() for name, p in before.parameters().items()}
    run = run_on(path, optimizer=gl.optim.SGD(lr=1.0), max_value=float(most), steps=1)
    moved = {name: np.abs(p.numpy() - first[name]).max() for name, p in run.adapter.parameters().items()}
    assert max(moved.values()) == pytest.approx(1e-3, rel=1e-3)
    free = run_on(path, optimizer=gl.optim.SGD(lr=1.0), steps=1)
    assert max(np.abs(p.numpy() - first[name]).max() for name, p in free.adapter.parameters().items()) > 2e-3


def test_batches_that_are_not_finite_are_left_out_where_that_is_asked(tmp_path: Path) -> None:
    path = write(tmp_path)
    for how, message in (("stop", "not finite"), ("skip", "none of its 3 batches was finite")):
        adapter = LoRA(rank=2, seed=1)
        adapter.bind(load(path))
        for b in adapter.b.values():
            b.assign(np.full(b.shape, 3e38))
        with pytest.raises(NonFiniteError, match=message):
            run_on(path, adapter, on_nonfinite=how)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lyon"}, "optimizer='lyon': must be one of .*; did you mean lion[?]"),
        ({"optimizer": gl.optim.SGD(), "lr": 1e-3}, "lr=0.001 and optimizer are mutually exclusive"),
        ({"freeze": "*.lora_c"}, "freeze: '[*].lora_c' matches no parameter; parameters: blk"),
        ({"freeze": "*"}, "freeze='[*]' leaves nothing to train"),
        ({"max_value": -1.0}, "max_value=-1.0: must be"),
        ({"on_nonfinite": "go"}, "on_nonfinite"),
    ],
)
def test_what_cannot_be(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        run_on(write(tmp_path), **options)


def test_the_best_weights_are_kept(tmp_path: Path) -> None:
    """Rows at random: what is learned of some is worse for others, so that the first pass is the best one."""
    path = write(tmp_path)
    options: dict[str, Any] = {"steps": None, "val_split": 0.4, "optimizer": gl.optim.AdamW(lr=0.05)}
    long = run_on(path, epochs=6, **options)
    losses = [epoch.val.loss for epoch in long.history]
    best = int(np.argmin(losses)) + 1
    assert best < 6
    kept = run_on(path, epochs=6, keep_best=True, **options | {"optimizer": gl.optim.AdamW(lr=0.05)})
    there = run_on(path, epochs=best, **options | {"optimizer": gl.optim.AdamW(lr=0.05)})
    assert [epoch.val.loss for epoch in kept.history] == losses
    assert trained(kept) == trained(there) != trained(long)
    stopped = run_on(path, epochs=9, patience=2, **options | {"optimizer": gl.optim.AdamW(lr=0.05)})
    assert stopped.stopped and len(stopped.history) == best + 2
    assert kept.report["saved_epoch"] == best and long.report["saved_epoch"] == 6
    for run, at in ((kept, best), (long, 6), (stopped, best + 2)):  # patience alone keeps the last
        epoch = run.history[at - 1]
        assert (run.report["train_loss"], run.report["val_loss"]) == (epoch.train.loss, epoch.val.loss)


def test_validation_inside_of_passes(tmp_path: Path) -> None:
    """Evaluations every second step, of two rows; patience and the best weights count them."""
    path, seen = write(tmp_path), []

    class Seen(gl.train.Callback):
        stateless = True

        def on_evaluation(self, evaluation: gl.train.Evaluation) -> None:
            weights = {name: p.numpy().tobytes() for name, p in run.adapter.parameters().items()}
            seen.append((evaluation.step, evaluation.val.loss, evaluation.val.ndata, weights))

    def run_of(**more: Any) -> Run:
        adapter = LoRA(rank=2, targets="all", seed=1)
        settings: dict[str, Any] = {"val_split": 0.4, "batch_size": 2, "threads": 1, "epochs": 4, "eval_rows": 2}
        return Run(load(path), packed(12, 24), adapter, optimizer=gl.optim.AdamW(lr=0.08), **settings | more)

    run = run_of(eval_every="2steps", callbacks=[Seen()], keep_best=True)
    run.train(progress=False)
    assert {2, 4, 6, 8}.issubset(step for step, *_ in seen) and {ndata for _, _, ndata, _ in seen} == {2}
    best = min(seen, key=lambda one: one[1])
    assert trained(run) == best[3] and best[0] < run.steps
    plain = run_of(eval_rows=None).train(progress=False)
    assert [e.train.loss for e in plain.history] == [e.train.loss for e in run.history]
    early = run_of(eval_every="1steps", patience=1).train(progress=False)
    assert early.stopped and early.steps < run.steps


def test_the_average_of_the_weights(tmp_path: Path) -> None:
    path, means = write(tmp_path), {}
    sgd: Any = gl.optim.SGD(lr=0.5)
    steps = [run_on(path, optimizer=gl.optim.SGD(lr=0.5), steps=count) for count in (1, 2, 3)]
    before = LoRA(rank=2, targets="all", seed=1)
    before.bind(load(path))
    for name, p in before.parameters().items():
        mean = p.numpy().astype(np.float64)
        for one in steps:
            mean = 0.5 * mean + 0.5 * one.adapter.parameters()[name].numpy()
        means[name] = mean
    run = run_on(path, optimizer=sgd, steps=3, ema=0.5)
    for name, p in run.adapter.parameters().items():
        np.testing.assert_allclose(p.numpy(), means[name], rtol=1e-5, atol=1e-7)
