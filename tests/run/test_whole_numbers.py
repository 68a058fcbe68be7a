"""Whole numbers beyond 32 bits: one error that names the input and the number, wherever they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.base.errors import IndexOutOfRange

BIG = np.array([0, 1, 2**33 + 1, 2])
X = np.zeros((4, 3), np.float32)
CLASSES = np.array([0, 1, 2, 0])


def compiled(kind: str, backend: str = "cpu") -> Any:
    return gl.compile(ops.cross_entropy(gl.input("x", (4, 3)), gl.input("labels", (4,), kind)), backend=backend)


def table() -> gl.Parameter:
    return gl.parameter(np.ones((5, 3)), "table")


def stored() -> Any:
    return gl.parameter(BIG, "labels", dtype="i64", trainable=False)


CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "a feed of i32": ("labels", lambda: compiled("i32")(x=X, labels=BIG)),
    "a feed of i64": ("labels", lambda: compiled("i64")(x=X, labels=BIG)),
    "a feed of i64, numpy": ("labels", lambda: compiled("i64", "numpy")(x=X, labels=BIG)),
    "a feed through views": (
        "ids", lambda: gl.compile(ops.embedding(table(), gl.input("ids", (2, 2), "i64").T[0]))(ids=BIG.reshape(2, 2).T),
    ),
    "a Graph": (
        "labels",
        lambda: gl.Graph(ops.cross_entropy(gl.input("x", (4, 3)), gl.input("labels", (4,), "i64"))).compile()(
            x=X, labels=BIG
        ),
    ),
    "a constant": ("constant", lambda: ops.cross_entropy(gl.input("x", (4, 3)), gl.constant(BIG, "i64"))),
    "an array": ("constant", lambda: ops.cross_entropy(gl.input("x", (4, 3)), BIG)),
    "a stored array": ("labels", lambda: gl.compile(ops.cross_entropy(gl.input("x", (4, 3)), stored()))(x=X)),
    "a tensor": ("tensor", lambda: gl.tensor(BIG)),
    "a tensor of i64": ("tensor", lambda: ops.cross_entropy(gl.tensor(X), gl.tensor(BIG, "i64")).numpy()),
    "labels of a data set": ("labels", lambda: gl.data.Dataset(X, BIG)),
    "labels of a step": ("labels", lambda: gl.Trainer(nn.Linear(3, 3)).step(X, BIG)),
    "fit": ("data", lambda: gl.fit(nn.Embedding(5, 3), (BIG, CLASSES), progress=False)),
    "evaluate": ("data", lambda: gl.evaluate(nn.Embedding(5, 3), (BIG, CLASSES))),
    "predict": ("batch", lambda: gl.predict(nn.Embedding(5, 3), BIG)),
    "a step": ("batch", lambda: gl.Trainer(nn.Embedding(5, 3)).step(BIG, CLASSES)),
    "a loader": ("data", lambda: list(gl.data.DataLoader(BIG))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_ids_beyond_32_bits_are_named(case: str) -> None:
    name, run = CASES[case]
    with pytest.raises(IndexOutOfRange) as caught:
        run()
    message = str(caught.value)
    assert "8589934593" in message and name in message and "\n" not in message


@pytest.mark.parametrize("kind", ["i32", "i64"])
def test_numbers_beyond_64_bits_are_named(kind: str) -> None:
    with pytest.raises(gl.GradloomError, match=r"labels: 1\.1805.*e\+21"):
        compiled(kind)(x=X, labels=[0, 1, 2**70, 2])
    with pytest.raises(gl.GradloomError, match="labels: 9223372036854775809"):
        compiled(kind)(x=X, labels=np.array([0, 1, 2**63 + 1, 2], np.uint64))


def test_numbers_of_i64_that_stay_so_are_fed_whole() -> None:
    wide = gl.input("x", (4,), "i64")
    np.testing.assert_array_equal(gl.compile(ops.cast(wide, "f32"))(x=BIG)[0], BIG.astype(np.float32))
    np.testing.assert_array_equal(gl.compile(wide)(x=BIG)[0], BIG)


def test_settings_and_inputs_are_read_only() -> None:
    rate = gl.graph.leaves.setting("rate")
    run = gl.compile(gl.input("x", (2,)) * rate)
    for change in (
        lambda: run.settings.__setitem__("rate", 2.0), lambda: run.settings.update(rate=2.0),
        lambda: run.settings.pop("rate"), lambda: run.inputs.__setitem__("x", 1),
    ):  # fmt: skip
        with pytest.raises(gl.SettingError, match="read-only"):
            change()
    np.testing.assert_array_equal(run(x=[1, 2], rate=3)[0], [3, 6])
    assert list(run.settings) == ["rate"] and dict(run.inputs)["x"].shape == (2,)
