"""Graphs that bring their own losses (gl.set_loss): each has a weight of its own, they add up, each is reported.
Scalar loss functions: means over rows, whose weight is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from tests.noise import assert_all_noise
from tests.train.split_training import on_ranks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 50).astype(np.int32)
MASKED = np.where(RNG.uniform(size=50) < 0.4, -100, Y).astype(np.int32)
W = RNG.uniform(0.2, 2.0, 50).astype(np.float32)
NAMES = ["ce", "rebuilt", "penalty"]
START = {"w1": RNG.normal(size=(4, 6)) / 2, "w2": RNG.normal(size=(6, 3)) / 2, "w3": RNG.normal(size=(6, 4)) / 2}


def parameters() -> dict[str, gl.Parameter]:
    return {name: gl.parameter(array, name) for name, array in START.items()}


def graph(rows: int = 8, weights: bool = False, only: int | None = None) -> tuple[gl.Graph, dict[str, gl.Parameter]]:
    p = parameters()
    x, labels = gl.input("x", (rows, 4)), gl.input("labels", (rows,), "i32")
    hidden = ops.tanh(x @ p["w1"])
    logits = hidden @ p["w2"]
    by = gl.input("weights", (rows,)) if weights else None
    made = [
        ops.cross_entropy(logits, labels, by),
        0.3 * ops.mse(hidden @ p["w3"], x),
        ops.sum(p["w1"] * p["w1"]) * 0.01,
    ]
    losses = [gl.set_loss(gl.named(loss, name)) for loss, name in zip(made, NAMES, strict=True)]
    return gl.Graph(logits, *(losses if only is None else [losses[only]])), p


def trained(data: Any, rows: int = 8, weights: bool = False, **options: Any) -> tuple[dict[str, np.ndarray], Any]:
    model, p = graph(rows, weights)
    settings = {"epochs": 3, "batch_size": 16, "progress": False, "optimizer": gl.optim.SGD(lr=0.1)} | options
    history = gl.fit(model, data, **settings)
    return {name: each.numpy() for name, each in p.items()}, history


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() for name in a)


def by_torch(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None, steps: int, kind: str) -> dict[str, np.ndarray]:
    """SGD on whole batches."""
    torch = pytest.importorskip("torch")
    p = {n: torch.tensor(a, dtype=getattr(torch, kind), requires_grad=True) for n, a in START.items()}
    given, w = torch.tensor(x, dtype=getattr(torch, kind)), None
    w = torch.ones(len(x), dtype=given.dtype) if weights is None else torch.tensor(weights, dtype=given.dtype)
    for _ in range(steps):
        hidden = torch.tanh(given @ p["w1"])
        each = torch.nn.functional.cross_entropy(
            hidden @ p["w2"], torch.tensor(y, dtype=torch.long), ignore_index=-100, reduction="none"
        )
        counts = w * torch.tensor(y != -100)
        ce = (each * counts).sum() / counts.sum()
        rebuilt = (((hidden @ p["w3"] - given) ** 2).mean(1) * w).sum() / w.sum()
        loss = ce + 0.3 * rebuilt + 0.01 * (p["w1"] ** 2).sum()
        slopes = torch.autograd.grad(loss, list(p.values()))
        with torch.no_grad():
            for each_p, g in zip(p.values(), slopes, strict=True):
                each_p -= 0.1 * g
    return {n: a.detach().numpy() for n, a in p.items()}


@pytest.mark.parametrize("labels", [Y, MASKED], ids=["labels", "some ignored"])
@pytest.mark.parametrize("weights", [None, W], ids=["", "weights"])
@pytest.mark.parametrize("rows", [8, 50])
def test_training_is_that_of_torch(labels: np.ndarray, weights: np.ndarray | None, rows: int) -> None:
    data = gl.data.Dataset(X, labels, weights=weights)
    ours, _ = trained(data, rows, weights is not None, epochs=5, batch_size=50)
    single, double = (by_torch(X, labels, weights, 5, kind) for kind in ("float32", "float64"))
    assert_all_noise(ours, single, double, longest=200)


def test_gradients_are_the_slopes_of_the_loss() -> None:
    model, p = graph()
    trainer = gl.Trainer(model, build="grad")
    trainer.step(X[:16], Y[:16])
    for name, each in p.items():
        slope, start = trainer.grad_acc(name), each.numpy()
        for at in [(0, 0), (3, 2)]:
            losses = []
            for sign in (1, -1):
                moved = start.copy()
                moved[at] += sign * 1e-2
                each.assign(moved)
                losses.append(gl.evaluate(model, (X[:16], Y[:16])).loss)
            each.assign(start)
            assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(slope[at], abs=2e-4)


@pytest.mark.parametrize("weights", [None, W], ids=["", "weights"])
def test_micro_batches_add_up(weights: np.ndarray | None) -> None:
    data = gl.data.Dataset(X, Y, weights=weights)
    whole, history = trained(data, weights=weights is not None)
    for micro in (5, 7, 16):
        parts, other = trained(data, weights=weights is not None, micro_batch_size=micro)
        for name, array in whole.items():
            np.testing.assert_allclose(parts[name], array, rtol=1e-5, atol=1e-6)
        assert other[-1].train.loss == pytest.approx(history[-1].train.loss, rel=1e-6)
        assert other[-1].train.losses == pytest.approx(history[-1].train.losses, rel=1e-6)


@pytest.mark.parametrize("labels", [Y, MASKED], ids=["labels", "some ignored"])
def test_threads_do_not_change_bits(labels: np.ndarray) -> None:
    (one, a), (two, b) = (trained((X, labels), threads=n) for n in (1, 2))
    assert same(one, two) and a[-1].numbers() == b[-1].numbers()


def test_ranks_do_not_change_bits() -> None:
    alone = on_ranks(1, lambda ranks: trained((X, Y), parallel=ranks, threads=1, micro_batch_size=5, val_split=0.2))
    for found in on_ranks(
        3, lambda ranks: trained((X, Y), parallel=ranks, threads=1, micro_batch_size=5, val_split=0.2)
    ):
        assert same(found[0], alone[0][0])
        assert [e.numbers() for e in found[1]] == [e.numbers() for e in alone[0][1]]
    one, history = trained((X, Y), micro_batch_size=5, val_split=0.2)
    for name, array in one.items():
        np.testing.assert_allclose(alone[0][0][name], array, rtol=1e-5, atol=1e-6)
    assert alone[0][1][-1].train.losses == pytest.approx(history[-1].train.losses, rel=1e-5)


def test_means_of_different_weights_are_not_accumulated() -> None:
    for options in ({"micro_batch_size": 5}, {"parallel": True}):
        if "parallel" in options:
            (error,) = on_ranks(1, lambda ranks: trained((X, MASKED), parallel=ranks, threads=1))
        else:
            with pytest.raises(gl.SettingError, match="micro_batch_size") as caught:
                trained((X, MASKED), **options)
            error = caught.value
        assert isinstance(error, gl.SettingError) and "different weights" in str(error)


@pytest.mark.parametrize("batch", [7, 20, 50])
def test_each_loss_is_its_own_mean_over_all_batches(batch: int) -> None:
    model, p = graph()
    found = gl.evaluate(model, (X, MASKED), batch_size=batch)
    hidden = np.tanh(X @ p["w1"].numpy())
    logits = hidden @ p["w2"].numpy()
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    some = MASKED != -100
    want = {
        "ce": -log_p[some, MASKED[some]].mean(), "rebuilt": 0.3 * ((hidden @ p["w3"].numpy() - X) ** 2).mean(),
        "penalty": 0.01 * (p["w1"].numpy() ** 2).sum(),
    }  # fmt: skip
    assert found.losses == pytest.approx(want, rel=1e-5) and list(found.losses) == NAMES
    assert found.loss == pytest.approx(sum(want.values()), rel=1e-5)
    assert {"loss", *NAMES} <= found.numbers().keys() and "rebuilt" in repr(found)


def test_each_loss_is_reported_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    stop = gl.train.EarlyStopping(monitor="val_rebuilt", patience=50)
    _, history = trained(
        (X, Y), progress=True, val_split=0.2, run=tmp_path / "run", log="csv", callbacks=[stop],
        on_epoch=lambda epoch: seen.append(epoch.numbers()),
    )  # fmt: skip
    columns = history.to_dict()
    assert {*NAMES, *(f"val_{name}" for name in NAMES)} <= columns.keys()
    assert columns["ce"][-1] == history[-1].train.losses["ce"] == seen[-1]["ce"]
    assert columns["loss"][-1] == pytest.approx(sum(columns[name][-1] for name in NAMES))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any("val_rebuilt" in line for line in lines) and any("ce" in line for line in lines)
    assert "rebuilt" in capsys.readouterr().err and stop.best == min(columns["val_rebuilt"])


def test_a_run_is_resumed_to_the_bit(tmp_path: Path) -> None:
    whole, history = trained((X, Y), val_split=0.2, micro_batch_size=5)
    count = 0

    def stopping(at: Any) -> None:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt

    options = {"val_split": 0.2, "micro_batch_size": 5, "run": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        trained((X, Y), on_train_batch=stopping, **options)
    again, resumed = trained((X, Y), resume=True, **options)
    assert same(whole, again)
    assert [e.numbers() for e in resumed] == [e.numbers() for e in history]


def test_one_loss_is_the_loss() -> None:
    model, _ = graph(only=0)
    assert gl.evaluate(model, (X, Y)).numbers().keys() & set(NAMES) == set()
    x, labels, p = gl.input("x", (8, 4)), gl.input("labels", (8,), "i32"), parameters()
    per_row = gl.Graph(gl.set_loss(ops.sum(ops.sqr(x @ p["w1"]), 1)))
    logits = ops.tanh(x @ p["w1"]) @ p["w2"]
    assert gl.evaluate(per_row, X).loss == pytest.approx(float(np.mean(np.sum((X @ START["w1"]) ** 2, 1))), rel=1e-5)
    pair = gl.evaluate((x, logits), (X, Y)).loss
    assert gl.evaluate(gl.Graph(gl.set_loss(ops.cross_entropy(logits, labels))), (X, Y)).loss == pair
    np.testing.assert_array_equal(gl.predict(model, X), gl.predict((x, logits), X))


def bad_graphs() -> dict[str, tuple[Callable[[], Any], str]]:
    w, x = gl.parameter(np.ones((4, 3)), "w"), gl.input("x", (8, 4))
    y = x @ w

    def fit(*values: Any, data: Any = X, **options: Any) -> Callable[[], Any]:
        return lambda: gl.fit(gl.Graph(*values), data, progress=False, **options)

    mean, other = gl.set_loss(ops.mean(y)), gl.set_loss(gl.named(ops.mean(ops.sqr(y)), "again"))
    return {
        "loss beside it": (fit(mean, loss="mse"), "loss='mse'"),
        "a plain sum": (fit(gl.set_loss(ops.sum(ops.exp(y)))), "weight of a scalar is not known"),
        "a root": (fit(gl.set_loss(gl.named(ops.sqrt(ops.mean(ops.sqr(y))), "rmse"))), "loss rmse"),
        "a weight that is trained": (
            fit(gl.set_loss(ops.sum(ops.sqr(y)) / ops.sum(ops.exp(y)))), "weight of a scalar is not known",
        ),
        "not per row": (fit(gl.set_loss(ops.sqr(ops.tanh(y)))), "one value per row"),
        "labels that nothing reads": (fit(mean, data=(X, Y)), "no input 'labels'"),
        "no labels": (lambda: gl.fit(graph()[0], X, progress=False), "labels"),
        "two inputs": (fit(gl.set_loss(ops.mean(y + gl.input("z", (8, 3))))), "x, z"),
        "one name": (fit(other, gl.set_loss(gl.named(ops.mean(ops.abs(y)), "again"))), "again"),
        "metrics of its name": (fit(y, other, mean, metrics={"again": lambda o, _: ops.sum(o, 1)}), "again"),
        "predict without outputs": (lambda: gl.predict(gl.Graph(mean), X), "outputs"),
        "weights without effect": (
            lambda: gl.fit(graph()[0], gl.data.Dataset(X, Y, weights=W), progress=False), "row weights",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", bad_graphs())
def test_what_cannot_be_trained_is_named(case: str) -> None:
    run, said = bad_graphs()[case]
    with pytest.raises(gl.GradloomError) as caught:
        run()
    assert said in str(caught.value) and "\n" not in str(caught.value)


# ---- scalar loss functions -------------------------------------------------------------------------------


def fitted(loss: Any, labels: Any = Y, weights: Any = None, **options: Any) -> tuple[dict[str, np.ndarray], float]:
    net = nn.Sequential(nn.Linear(4, 5, "tanh"), nn.Linear(5, 3)).init(0)
    data = gl.data.Dataset(X, labels, weights=weights)
    settings = {"batch_size": 16, "epochs": 2, "progress": False, "optimizer": gl.optim.SGD(lr=0.1)} | options
    history = gl.fit(net, data, loss=loss, **settings)
    return net.state_dict(), history[-1].train.loss


TARGETS = RNG.normal(size=(50, 3)).astype(np.float32)


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 5}], ids=str)
@pytest.mark.parametrize("weights", [None, W], ids=["", "weights"])
def test_a_scalar_mean_is_what_its_rows_are(options: dict[str, Any], weights: Any) -> None:
    wanted = fitted(lambda o, t: ops.mean(ops.sqr(o - t), 1), TARGETS, weights, **options)
    for scalar in (
        lambda o, t: ops.mean(ops.sqr(o - t)),
        lambda o, t: ops.mse(o, t),
        lambda o, t: ops.sum(ops.sqr(o - t)) / o.size,
        lambda o, t: ops.mean(ops.sqr(o - t)) * 3.0 / 3.0,
        lambda o, t: 0.25 * ops.mean(ops.sqr(o - t)) + ops.mean(ops.mean(ops.sqr(o - t), 1)) * 0.75,
    ):
        found = fitted(scalar, TARGETS, weights, **options)
        for name, array in wanted[0].items():
            np.testing.assert_allclose(found[0][name], array, rtol=2e-5, atol=2e-6)
        assert found[1] == pytest.approx(wanted[1], rel=1e-5)


@pytest.mark.parametrize("labels", [Y, MASKED], ids=["labels", "some ignored"])
@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 5}], ids=str)
def test_cross_entropy_as_a_function(labels: np.ndarray, options: dict[str, Any]) -> None:
    named, function = fitted("cross_entropy", labels, **options), fitted(ops.cross_entropy, labels, **options)
    assert named[1] == function[1] and same(named[0], function[0])


def test_a_masked_mean_has_the_weight_of_its_mask() -> None:
    def masked(o: Any, t: Any) -> Any:
        counts = ops.cast(t > 0.0, "f32")
        return ops.sum(ops.sqr(o - t) * counts) / ops.sum(counts)

    def pair(o: Any, t: Any) -> Any:
        counts = ops.cast(t > 0.0, "f32")
        return ops.sum(ops.sqr(o - t) * counts), ops.sum(counts)

    a, b = (fitted(loss, TARGETS, micro_batch_size=5) for loss in (masked, pair))
    assert a[1] == b[1] and same(a[0], b[0])


def test_sums_of_means_with_penalties() -> None:
    def both(o: Any, labels: Any) -> Any:
        return ops.cross_entropy(o, labels) + 0.1 * ops.mean(ops.sqr(o))

    whole, parts = fitted(both), fitted(both, micro_batch_size=5)
    for name, array in whole[0].items():
        np.testing.assert_allclose(parts[0][name], array, rtol=2e-5, atol=2e-6)
    assert math.isclose(whole[1], parts[1], rel_tol=1e-5)
    with pytest.raises(gl.GradloomError, match="weights differ"):
        fitted(both, MASKED)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: ops.sum(ops.sqr(o - t)),
        lambda o, t: ops.sqrt(ops.mean(ops.sqr(o - t))),
        lambda o, t: ops.sum(ops.sqr(o - t)) / 7.0,
        lambda o, t: ops.max(ops.sqr(o - t)),
    ],
    ids=["sum", "root", "another number", "max"],
)
def test_a_scalar_of_unknown_weight_is_refused(loss: Any) -> None:
    with pytest.raises(gl.GradloomError, match="one value per row.*pair"):
        fitted(loss, TARGETS)


WEIGHTED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mean": lambda rows, w, i: ops.mean(rows),
    "rows": lambda rows, w, i: rows,
    "ratio": lambda rows, w, i: ops.sum(rows * w) / ops.sum(w),
    "scaled ratio": lambda rows, w, i: 2.0 * ops.sum(rows * w) / (2.0 * ops.sum(w)),
    "mse": lambda rows, w, i: ops.mse(i, 0 * i, weights=w),
    "mse of a column": lambda rows, w, i: ops.mse(i[:, 0], 0 * i[:, 0], weights=w),
    "mean of weighted": lambda rows, w, i: ops.mean(rows * w),
    "weighted rows": lambda rows, w, i: rows * w,
    "sum by a number": lambda rows, w, i: ops.sum(rows * w) / 8,
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_row_weights_of_a_graph_count_once(name: str) -> None:
    x = np.repeat(np.array([[1.0, 1.0], [2.0, 2.0]], np.float32), 12, 0)
    data = gl.data.Dataset(x, weights=np.repeat([1.0, 3.0], 12))
    i, w = gl.input("x", (8, 2)), gl.input("weights", (8,))
    outputs = i @ gl.parameter(np.eye(2), "W")
    loss = WEIGHTED[name](ops.mean(ops.sqr(outputs), (1,)), w, outputs)
    model = gl.Graph(gl.set_loss(loss))
    if name in ("mean of weighted", "weighted rows", "sum by a number"):
        with pytest.raises(gl.DataError, match=r"applies again.*sum"):
            gl.evaluate(model, data)
        return
    for options in ({}, {"batch_size": 5}):
        assert gl.evaluate(model, data, **options).loss == pytest.approx(3.25)


def test_weighted_mse_adds_up_over_micro_batches() -> None:
    def fitted(**options: Any) -> np.ndarray:
        p = gl.parameter(START["w1"], "w1")
        x, w = gl.input("x", (8, 4)), gl.input("weights", (8,))
        loss = gl.set_loss(ops.mse(x @ p, 0 * (x @ p) + 0.5, weights=w))
        rows = gl.set_loss(ops.mean(ops.sqr(x @ p)))
        gl.fit(gl.Graph(loss, rows), gl.data.Dataset(X, weights=W), epochs=2, batch_size=16, progress=False, **options)
        return p.numpy()

    np.testing.assert_allclose(fitted(micro_batch_size=5), fitted(), rtol=1e-5, atol=1e-6)


def test_class_weights_that_a_marked_loss_ignores_are_refused() -> None:
    model, _ = graph(only=0)
    with pytest.raises(gl.DataError, match=r"class_weight.*cross_entropy\(logits, labels, .*gl\.input"):
        gl.fit(model, (X, Y), class_weight="balanced", progress=False)
    model, _ = graph(weights=True, only=0)
    gl.fit(model, (X, Y), class_weight="balanced", epochs=1, progress=False)
