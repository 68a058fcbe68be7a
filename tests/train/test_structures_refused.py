"""Structures of data, labels and losses that do not fit are refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import gradloom as gl
from gradloom import nn
from tests.train.test_structures import AGE, GROUP, LOSS, ROWS, Heads, U, V, X, Y, off_by


def fit(x: Any = X, y: Any = Y, net: Any = None, loss: Any = LOSS, **options: Any) -> Callable[[], Any]:
    return lambda: gl.fit(net or Heads(), (x, y), loss=loss, epochs=1, progress=False, **options)


def step(x: Any, y: Any) -> Callable[[], Any]:
    return lambda: gl.Trainer(Heads(), LOSS).step(x, y)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "other rows": (fit({"u": U, "v": V[:50]}), "data 'v': 50 rows; need 60, as data 'u'"),
    "other rows of a tuple": (fit((U, V[:50])), "data[1]: 50 rows; need 60, as data[0]"),
    "other rows of labels": (fit(y=Y | {"group": GROUP[:50]}), "labels 'group': 50 rows; need 60"),
    "no rows": (fit({"u": U[:0], "v": V[:0]}, Y), "data: 0 rows; need at least 1"),
    "an empty dict": (fit({}), "data: an empty dict; need at least one array"),
    "texts": (fit({"u": U, "v": ["a"] * ROWS}), "data 'v': dtype <U1; must be one of"),
    "None": (fit({"u": U, "v": None}), "data 'v': None; need an array"),
    "None in a tuple": (fit((U, None)), "data[1]: None; need an array"),
    "None as a label": (fit(y=Y | {"group": None}), "labels 'group': None; need an array"),
    "nested": (fit({"u": {"a": U}, "v": V}), "data 'u': a dict; need an array: structures cannot be nested"),
    "nested tuples": (fit(((U, V), V)), "data[0]: a tuple; need an array: structures cannot be nested"),
    "a list of arrays": (fit([U, V]), "data: rows of different lengths"),
    "a key that is no text": (fit({1: U, "v": V}), "data: the key 1; must be a text without dots"),
    "a key with a dot": (fit({"u.a": U, "v": V}), "data: the key 'u.a'; must be a text without dots"),
    "a missing input": (fit({"u": U}), "data: no 'v', which Heads.forward(u, v) takes; need the keys u, v"),
    "a surplus input": (fit(X | {"w": U}), "data 'w': Heads.forward(u, v) has no such parameter; need the keys u, v"),
    "one array of two": (fit(U), "data: one array; Heads.forward(u, v) takes more: need a dict or a tuple"),
    "a long tuple": (fit((U, V, U)), "data: a tuple of 3 arrays; Heads.forward(u, v) takes 2"),
    "a missing label": (fit(y={"group": GROUP}), "loss 'age': no such label; the data have group"),
    "a missing output": (fit(loss=LOSS | {"size": "mse"}), "loss 'size': the model has no such output; it gives group"),
    "one output": (fit(U, {"group": GROUP}, nn.Linear(4, 3)), "loss: the model gives one output, f32[32,3]"),
    "one label": (fit(y=GROUP), "loss: the labels are one array; need labels for age, group, value"),
    "one loss": (fit(loss="cross_entropy"), "loss cross_entropy: the model gives 3 outputs"),
    "one loss of labels": (fit(U, Y, nn.Linear(4, 3), "cross_entropy"), "the labels are several arrays (age, group, "),
    "no loss": (fit(loss={}), "loss has no loss; must have one for at least one output"),
    "only None": (fit(loss=(None, None)), "loss has no loss"),
    "a total": (fit(loss={"group": "sum"}), "'sum', a total, for output 'group' cannot be one of several"),
    "an unknown loss": (fit(loss={"group": "cross"}), "output 'group': loss: 'cross' is not known"),
    "None as a loss": (fit(loss={"group": None}), "output 'group': loss: got NoneType"),
    "a reserved name": (fit(loss={"loss": "mse"}), "the key 'loss' is reserved or invalid"),
    "a name of the log": (fit(loss={"time": "mse"}), "the key 'time' is reserved or invalid"),
    "a name twice": (
        fit(loss={"a": "cross_entropy", "a_accuracy": "mse"}), "'a_accuracy' is the name of an output"
    ),
    "a class too large": (fit(y=Y | {"group": GROUP + 1}), "labels 'group': id 3 in row"),
    "a target of another shape": (fit(y=Y | {"value": AGE}), "output 'value': mse: shapes differ"),
    "weights without losses": (
        fit(U, GROUP, nn.Linear(4, 3), "cross_entropy", loss_weights={"group": 1.0}), "requires loss by output"
    ),
    "a surplus weight": (fit(loss_weights={"size": 1.0}), "loss_weights: no loss for output 'size'; loss has"),
    "an infinite weight": (fit(loss_weights={"group": math.inf}), "inf of output 'group' must be a finite number"),
    "weights in a tuple": (fit(loss_weights=(1.0, 2.0)), "loss_weights is a tuple; must be a dict as loss is"),
    "class weights": (fit(class_weight="balanced"), "class_weight: the data have several arrays of labels"),
    "a metric of no output": (fit(metrics={"size": {"n": off_by}}, val_split=0.2), "there is no output 'size'"),
    "a metric of a name": (fit(metrics={"group": off_by}, val_split=0.2), "the name 'group' is that of a loss"),
    "a batch of other rows": (step(X | {"v": V[:3]}, Y), "batch 'v': 3 rows; need 60, as batch 'u'"),
    "a batch of no rows": (step({"u": U[:0], "v": V[:0]}, Y), "batch 'u': shape [0, 4]; need rows"),
    "labels of a batch": (step(X, Y | {"age": AGE[:3]}), "labels 'age': shape [3]; need 60 rows"),
    "a batch of (x, y)": (lambda: gl.Trainer(nn.Linear(4, 3)).step((U, GROUP)), "batch: a tuple of 2 arrays"),
    "a dict alone": (lambda: gl.fit(Heads(), X, loss=LOSS), "got dict; need a Dataset, a pair (x, y), an"),
    "a data set of (x, y)": (lambda: gl.data.Dataset((U, GROUP)), "data: a tuple of 2 arrays, without labels"),
    "a prediction of (x, y)": (lambda: gl.predict(nn.Linear(4, 3), (U, GROUP)), "predict: got a pair"),
    "a prediction of other rows": (lambda: gl.predict(Heads(), {"u": U, "v": V[:3]}), "x 'v': 3 rows; need 60"),
    "a prediction of no rows": (lambda: gl.predict(Heads(), (U[:0], V[:0])), "predict: x[0] has shape [0, 4]"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str) -> None:
    run, message = REFUSED[case]
    with pytest.raises(gl.GradloomError) as caught:
        run()
    assert message in str(caught.value) and "\n" not in str(caught.value)
