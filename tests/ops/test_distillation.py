"""Distillation loss: values and gradients against the formula in float64, with one block of rows and with several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.ops import distillation
from gradloom.run.compile import compile as compile_program


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max(-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(-1, keepdims=True)))


def teacher_of(z: np.ndarray, k: int, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """(ids i32 [N, k], log-probabilities f32 [N, k + 1]) of a teacher's logits."""
    log_p = log_softmax(z / temperature)
    order = np.argsort(-log_p, axis=1, kind="stable")
    ids = order[:, :k].astype(np.int32)
    rest = np.exp(np.take_along_axis(log_p, order[:, k:], 1)).sum(1, keepdims=True)
    with np.errstate(divide="ignore"):
        last = np.maximum(np.log(rest), -1e4)
    return ids, np.concatenate([np.take_along_axis(log_p, ids, 1), last], 1).astype(np.float32)


def by_hand(
    z: np.ndarray, labels: np.ndarray, ids: np.ndarray, teacher: np.ndarray, temperature: float, hard: float
) -> dict[str, float]:
    """The sums, from the definition."""
    used, k = labels != -100, ids.shape[1]
    z, labels, ids, teacher = z[used], labels[used], ids[used], teacher[used].astype(np.float64)
    log_q = log_softmax(z / temperature)
    q = np.exp(log_q)
    p, r = np.exp(teacher[:, :k]), np.exp(teacher[:, k])
    kl = (p * (teacher[:, :k] - np.take_along_axis(log_q, ids, 1))).sum(1)
    if k < z.shape[1]:
        others = q.copy()
        np.put_along_axis(others, ids, 0.0, 1)
        kl += r * (teacher[:, k] - np.log(others.sum(1)))
    nll = -np.take_along_axis(log_softmax(z), labels[:, None], 1)[:, 0]
    loss = (1 - hard) * temperature**2 * kl + hard * nll
    found = {"loss": loss.sum(), "weight": used.sum(), "kl": kl.sum(), "nll": nll.sum()}
    return {name: float(value) for name, value in found.items()} | {"same": float((z.argmax(1) == ids[:, 0]).sum())}


def case(k: int, temperature: float, rows: int = 13, classes: int = 37, width: int = 6) -> tuple[Any, ...]:
    rng = np.random.default_rng(k)
    x, w = rng.normal(size=(rows, width)), rng.normal(size=(classes, width))
    labels = rng.integers(0, classes, rows).astype(np.int32)
    labels[::4] = -100
    ids, teacher = teacher_of(rng.normal(size=(rows, classes)) * 2, k, temperature)
    ids[0], teacher[0] = 0, 0  # of a row that does not count
    return x.astype(np.float32), w.astype(np.float32), labels, ids, teacher


SETTINGS = [(1, 1.0, 0.0), (5, 1.0, 0.0), (5, 2.0, 0.3), (36, 0.5, 0.0), (37, 1.0, 0.0), (37, 3.0, 0.5), (5, 1.0, 1.0)]


@pytest.mark.parametrize("block", [distillation.BLOCK, 4 * 37])
@pytest.mark.parametrize(("k", "temperature", "hard"), SETTINGS)
def test_values_are_those_of_the_formula(
    k: int, temperature: float, hard: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "BLOCK", block)
    x, w, labels, ids, teacher = case(k, temperature)
    truth = by_hand(x.astype(np.float64) @ w.T, labels, ids, teacher, temperature, hard)
    given = [gl.constant(array) for array in (labels, ids, teacher)]
    linear = ops.linear_distilled(gl.constant(x), gl.constant(w), *given, temperature, hard)
    plain = ops.distilled(gl.constant(x @ w.T), *given, temperature, hard)
    for made in (linear, plain):
        found = dict(zip(made._fields, (float(v) for v in compile_program(list(made))()), strict=True))
        assert found == pytest.approx(truth, rel=2e-6, abs=1e-6)


def test_all_classes_are_the_full_divergence() -> None:
    x, w, labels, ids, teacher = case(37, 1.0)
    rows = np.flatnonzero(labels != -100)
    log_q = log_softmax(x.astype(np.float64) @ w.T)[rows]
    log_p = np.zeros_like(log_q)
    np.put_along_axis(log_p, ids[rows], teacher[rows, :37].astype(np.float64), 1)
    made = ops.linear_distilled(*(gl.constant(array) for array in (x, w, labels, ids, teacher)))
    assert float(compile_program([made.kl])()[0]) == pytest.approx((np.exp(log_p) * (log_p - log_q)).sum(), rel=1e-6)


@pytest.mark.parametrize("block", [distillation.BLOCK, 4 * 37])
@pytest.mark.parametrize(("k", "temperature", "hard"), SETTINGS)
def test_gradients_are_those_of_differences(
    k: int, temperature: float, hard: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Central differences of the formula in float64, of the products and of plain logits."""
    monkeypatch.setattr(distillation, "BLOCK", block)
    x, w, labels, ids, teacher = case(k, temperature)
    given = [gl.constant(array) for array in (labels, ids, teacher)]
    a, b = gl.parameter(x, "x"), gl.parameter(w, "w")
    linear = ops.linear_distilled(a, b, *given, temperature, hard).loss * 3.0
    plain = ops.distilled(ops.matmul(a, b, transpose_y=True), *given, temperature, hard).loss * 3.0

    def loss(x: np.ndarray, w: np.ndarray) -> float:
        return 3 * by_hand(x @ w.T, labels, ids, teacher, temperature, hard)["loss"]

    found = compile_program([*gl.gradients(linear, [a, b]), *gl.gradients(plain, [a, b])])()
    x, w = x.astype(np.float64), w.astype(np.float64)
    for i, array in enumerate((x, w)):
        truth = np.zeros_like(array)
        for place in np.ndindex(*array.shape):
            kept = array[place]
            sides = []
            for step in (1e-5, -1e-5):
                array[place] = kept + step
                sides.append(loss(x, w))
            array[place] = kept
            truth[place] = (sides[0] - sides[1]) / 2e-5
        for gradient in (found[i], found[2 + i]):
            assert np.abs(gradient - truth).max() <= 3e-6 * np.abs(truth).max() + 1e-6


def test_second_derivatives() -> None:
    x, w, labels, ids, teacher = case(5, 2.0)
    given = [gl.constant(array) for array in (labels, ids, teacher)]
    a = gl.parameter(x, "x")
    made = ops.linear_distilled(a, gl.constant(w), *given, 2.0, 0.3)
    (first,) = gl.gradients(made.loss, [a])
    assert gl.check_gradients(ops.sum(ops.sqr(first)) + made.kl + ops.sqr(made.nll), {}) < 1e-5


def test_logits_are_held_for_one_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena with 16 blocks has room for the logits of a few blocks only."""
    rows, classes, width = 128, 4096, 8
    monkeypatch.setattr(distillation, "BLOCK", 8 * classes)
    x, w, labels, ids, teacher = case(5, 1.0, rows, classes, width)
    a = gl.parameter(x, "x")
    made = ops.linear_distilled(a, gl.constant(w), *(gl.constant(array) for array in (labels, ids, teacher)))
    run = compile_program([*made, *gl.gradients(made.loss, [a])], threads=1)
    assert run.plan.peak_bytes < 8 * 8 * classes * 4


@pytest.mark.parametrize("wrong", ["labels", "ids", "teacher", "x"])
def test_shapes_that_do_not_fit(wrong: str) -> None:
    x, w, labels, ids, teacher = case(5, 1.0)
    given = {"x": x, "w": w, "labels": labels, "ids": ids, "teacher": teacher}
    given[wrong] = given[wrong][..., :-1]
    with pytest.raises(gl.ShapeError, match="need"):
        ops.linear_distilled(**{name: gl.constant(array) for name, array in given.items()})
