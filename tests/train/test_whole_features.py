"""Features of whole numbers: i32 and i64 (and u8, i8) train as f32; ids stay whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops

RNG = np.random.default_rng(0)
X = RNG.integers(-20, 20, (60, 4))
Y = RNG.integers(0, 3, 60)
KINDS = ("int8", "int32", "int64")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8, "tanh"), nn.Dropout(0.2), nn.Linear(8, 3))


def weights(model: nn.Module) -> list[bytes]:
    return [p.numpy().tobytes() for p in model.parameters()]


def fitted(x: np.ndarray, model: nn.Module, **options: Any) -> tuple[list[bytes], float]:
    history = gl.fit(model, (x, Y), epochs=3, batch_size=16, val_split=0.2, progress=False, **options)
    return weights(model), history[-1].train.loss


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 5}, {"threads": 2}, {"dynamic": True}], ids=str)
def test_fit_on_whole_numbers_has_the_bits_of_floats(kind: str, options: dict[str, Any]) -> None:
    assert fitted(X.astype(kind), net(), **options) == fitted(X.astype(np.float32), net(), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_predict_and_steps(kind: str) -> None:
    whole, floats = X.astype(kind), X.astype(np.float32)
    model = net().init(1)
    np.testing.assert_array_equal(gl.predict(model, whole), gl.predict(model, floats))
    assert gl.evaluate(model, (whole, Y)).loss == gl.evaluate(model, (floats, Y)).loss
    models = net().init(1), net().init(1)
    for each, x in zip(models, (whole, floats), strict=True):
        trainer = gl.Trainer(each)
        for i in range(0, 60, 20):
            trainer.step(x[i : i + 20], Y[i : i + 20])
    assert weights(models[0]) == weights(models[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_and_a_tape(kind: str) -> None:
    def trained(x: np.ndarray) -> list[bytes]:
        model = nn.Sequential(nn.Linear(4, 3)).init(0)
        optimizer = gl.optim.SGD(model.parameters(), lr=0.01)
        for batch, labels in gl.data.DataLoader(x, Y, batch_size=20):
            with gl.grad_tape() as tape:
                loss = ops.cross_entropy(model(gl.tensor(batch)), gl.tensor(labels))
            optimizer.step(tape.backward(loss))
        return weights(model)

    assert trained(X.astype(kind)) == trained(X.astype(np.float32))


def test_dp_train_takes_whole_numbers() -> None:
    def trained(x: np.ndarray) -> list[bytes]:
        samples = [(x[i : i + 10], Y[i : i + 10]) for i in range(0, 60, 10)]
        run = gl.dp_train(net, samples, loss_fn=ops.loss.cross_entropy_pair, replicas=2, iterations=4, threads=1)
        return weights(run.model)

    assert trained(X.astype(np.int64)) == trained(X.astype(np.float32))


class Mixed(nn.Module):
    """The first column is an id, the others are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.out(ops.concat([self.table(x[:, 0]), x[:, 1:]], axis=1))


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_ids_stay_whole_numbers(kind: str) -> None:
    ids = np.abs(X).astype(kind) % 5
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 3))
    gl.fit(model, (ids, Y), progress=False)
    table = model[0].weight.numpy()
    np.testing.assert_array_equal(gl.predict(model[0], ids), table[ids])
    assert np.isfinite(gl.fit(Mixed(), (ids, Y), progress=False)[-1].train.loss)


@pytest.mark.parametrize("form", ["pair", "graph"])
def test_the_declared_input_decides(form: str) -> None:
    table = gl.parameter(RNG.normal(size=(5, 3)), "table")
    ids, numbers = gl.input("ids", (8,), "i32"), gl.input("x", (8, 4))
    w = gl.parameter(np.ones((4, 3)), "w")
    looked_up, product = ops.embedding(table, ids), numbers @ w
    as_model: Callable[..., Any] = lambda leaf, out: (leaf, out) if form == "pair" else gl.Graph(out)  # noqa: E731
    bytes_ids = np.array([0, 1, 2, 3, 4, 0, 1, 2], np.uint8)
    np.testing.assert_array_equal(gl.predict(as_model(ids, looked_up), bytes_ids), table.numpy()[bytes_ids])
    gl.fit(as_model(ids, looked_up), (bytes_ids, Y[:8]), progress=False)
    np.testing.assert_array_equal(
        gl.predict(as_model(numbers, product), X), gl.predict(as_model(numbers, product), X.astype(np.float32))
    )
    gl.fit(as_model(numbers, product), (X, Y), progress=False)
    with pytest.raises(gl.GradloomError, match="i32"):
        gl.fit(as_model(ids, looked_up), (np.ones(8, np.float32), Y[:8]), progress=False)


def test_features_beyond_32_bits_are_converted_at_once() -> None:
    wide = np.array([[2**33, 1], [5, 2**40], [-(2**35), 3]])
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 3)).init(0)
    np.testing.assert_array_equal(gl.predict(model, wide), gl.predict(model, wide.astype(np.float32)))
    labels = np.array([0, 1, 2])
    assert gl.evaluate(model, (wide, labels)).loss == gl.evaluate(model, (wide.astype(np.float32), labels)).loss


def test_the_data_are_never_converted_as_a_whole() -> None:
    data = np.zeros((4_000_000, 4), np.int8)  # f32: 64 MB
    labels = np.zeros(len(data), np.uint8)
    trainer = gl.Trainer(nn.Linear(4, 3))
    source = trainer.source(gl.data.Dataset(data.astype(np.int32), labels))
    assert [array.nbytes for array in source.arrays] == [64_000_000, 4_000_000]
    assert source.stored[0].read().base is not None and np.shares_memory(source.stored[0].read(), source.arrays[0])
    (step, *_) = trainer.prepare(source, 0, 1000, batch_size=100)
    kinds = [n.attrs["kind"].name for n in step.run.program.nodes if n.op.name == "take_batch"]
    assert sorted(kinds) == ["f32", "i32"]  # data and labels


@pytest.mark.parametrize("kind", ["u8", "i8", "i32", "i64"])
def test_ops_of_floats_take_whole_numbers(kind: str) -> None:
    x = gl.input("x", (2, 3), kind)
    w = gl.parameter(np.ones((3, 2)), "w")
    array = np.array([[0, 1, 2], [3, 4, 5]], gl.base.dtypes.dtype(kind).numpy)
    floats = array.astype(np.float32)
    for build, want in (
        (lambda v: v @ w, floats @ np.ones((3, 2))),
        (lambda v: v * 2 + 1, floats * 2 + 1),
        (lambda v: ops.mean(v), floats.mean()),
        (lambda v: ops.concat([v, v * 0.5], axis=1), np.concatenate([floats, floats * 0.5], axis=1)),
    ):
        np.testing.assert_allclose(gl.compile(build(x))(x=array)[0], want)
        np.testing.assert_allclose(build(gl.tensor(array, kind)).numpy(), want)
    with pytest.raises(gl.DTypeError):  # ids of one kind are not moved as floats
        ops.concat([x, x])


class _Mixed(gl.nn.Module):
    """An embedding of ids, beside a convolution of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.conv, self.last = gl.nn.Embedding(7, 4), gl.nn.Conv2d(1, 2, 3), gl.nn.Linear(12, 3)

    def forward(self, ids: Any, pixels: Any) -> Any:
        return self.last(gl.ops.concat([self.rows(ids), gl.ops.reshape(self.conv(pixels), (-1, 8))], axis=1))


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", ">i2", "u4", ">i4", "i8", "u8", ">u8"])
def test_ids_of_any_width_are_those_of_i32(kind: str) -> None:
    """In fit, evaluate and predict, and beside pixels, which stay numbers."""
    rng = np.random.default_rng(0)
    ids, pixels, y = rng.integers(0, 7, 20), rng.integers(0, 9, (20, 1, 4, 4)).astype("u1"), rng.integers(0, 3, 20)

    def results(kind: str) -> list[Any]:
        found: list[Any] = []
        plain = gl.nn.Sequential(gl.nn.Embedding(7, 4), gl.nn.Linear(4, 3)).init(0)
        for net, x in ((plain, ids.astype(kind)), (_Mixed().init(0), (ids.astype(kind), pixels))):
            found.append(gl.fit(net, (x, y), epochs=1, progress=False)[-1].train.loss)
            found.append(gl.fit(net, [(x, y)], epochs=1, progress=False)[-1].train.loss)
            found += [gl.evaluate(net, (x, y)).loss, gl.predict(net, x).tolist()]
            found.append(gl.Trainer(net, "cross_entropy").step(x, y).loss)
        return found

    assert results(kind) == results("i4")


def test_small_numbers_that_are_no_ids() -> None:
    """The error is that of the data as they are."""
    net = gl.nn.Sequential(gl.nn.Embedding(7, 4), gl.nn.Linear(4, 3))
    with pytest.raises(gl.DTypeError, match="get_rows: dtype f32"):
        gl.predict(net, np.zeros((4, 3), np.float32))
    with pytest.raises(gl.DataError, match="200"):
        gl.predict(net, np.array([[200, 1]], np.uint8))
